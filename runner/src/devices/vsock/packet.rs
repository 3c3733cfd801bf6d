//! The header of a vsock packet (virtio 1.2, section 5.10.6).

/// Bytes of `struct virtio_vsock_hdr`.
pub(super) const HEADER: usize = 44;
/// Streams; there is no other type here.
pub(super) const TYPE_STREAM: u16 = 1;
/// The context identifier of the host.
pub(super) const HOST_CID: u64 = 2;
/// The context identifier of every guest: each machine has a host side of its own.
pub(super) const GUEST_CID: u64 = 3;
/// Flag of a shutdown: the sender receives no more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
/// Flag of a shutdown: the sender sends no more.
pub(super) const SHUTDOWN_SEND: u32 = 2;
/// Neither way.
pub(super) const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Op {
    Request = 1,
    Response = 2,
    Reset = 3,
    Shutdown = 4,
    Data = 5,
    CreditUpdate = 6,
    CreditRequest = 7,
}

impl Op {
    fn decode(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// A header. Ports are the sender's (`src`) and the receiver's (`dst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    /// Bytes of data that follow.
    pub(super) len: u32,
    pub(super) kind: u16,
    /// `None` for a number that the specification does not know.
    pub(super) op: Option<Op>,
    pub(super) flags: u32,
    /// Bytes the sender has room for in all.
    pub(super) buf_alloc: u32,
    /// Bytes the sender has taken out of that room, modulo 2^32.
    pub(super) fwd_cnt: u32,
}

impl Packet {
    pub(super) fn decode(raw: &[u8; HEADER]) -> Self {
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self {
            src_cid: long(0),
            dst_cid: long(8),
            src_port: word(16),
            dst_port: word(20),
            len: word(24),
            kind: word(28) as u16,
            op: Op::decode((word(28) >> 16) as u16),
            flags: word(32),
            buf_alloc: word(36),
            fwd_cnt: word(40),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut raw = [0; HEADER];
        raw[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        raw[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        raw[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        raw[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        raw[24..28].copy_from_slice(&self.len.to_le_bytes());
        raw[28..30].copy_from_slice(&self.kind.to_le_bytes());
        raw[30..32].copy_from_slice(&self.op.map_or(0, |op| op as u16).to_le_bytes());
        raw[32..36].copy_from_slice(&self.flags.to_le_bytes());
        raw[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        raw[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        raw
    }

    /// A reset in answer to a packet for which there is no stream.
    pub(super) fn refuse(to: &Self) -> Self {
        Self {
            src_cid: HOST_CID,
            dst_cid: GUEST_CID,
            src_port: to.dst_port,
            dst_port: to.src_port,
            len: 0,
            kind: TYPE_STREAM,
            op: Some(Op::Reset),
            flags: 0,
            buf_alloc: 0,
            fwd_cnt: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_written() {
        let packet = Packet {
            src_cid: 1 << 40,
            dst_cid: 3,
            src_port: 5,
            dst_port: 7,
            len: 9,
            kind: 1,
            op: Some(Op::CreditRequest),
            flags: 11,
            buf_alloc: 13,
            fwd_cnt: u32::MAX,
        };
        assert_eq!(Packet::decode(&packet.encode()), packet);
    }

    #[test]
    fn an_unknown_operation_is_none() {
        for number in [0_u16, 8, u16::MAX] {
            let mut raw = [0; HEADER];
            raw[30..32].copy_from_slice(&number.to_le_bytes());
            assert_eq!(Packet::decode(&raw).op, None);
        }
    }
}
