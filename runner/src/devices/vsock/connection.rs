//! One stream between a host's socket and a guest's.
//!
//! Flow control is the specification's credit (section 5.10.6.3): neither side sends more than the other
//! has room for. What the guest sends waits in `outgoing` until the host's socket takes it, and is
//! acknowledged only then, so nothing is lost and memory is bounded.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::packet::{
    GUEST_CID, HOST_CID, Op, Packet, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM,
};

/// Room for data from the guest, bytes.
pub(super) const BUF_ALLOC: u32 = 256 << 10;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The request is to be sent.
    New,
    /// The request was sent.
    Requested,
    /// Refused; to be asked for again when the timer says so.
    Waiting,
    Established,
    /// A reset is to be sent, and that is the end.
    Resetting,
    Over,
}

/// A stream, from the host's request to its end.
pub(super) struct Connection {
    stream: UnixStream,
    local_port: u32,
    guest_port: u32,
    phase: Phase,
    /// Sent before anything of the stream.
    greeting: Vec<u8>,
    /// Whether the socket may have something to read; edge-triggered.
    readable: bool,
    /// Whether the host's side has hung up both ways.
    hung_up: bool,
    /// From the guest, not yet taken by the socket.
    outgoing: VecDeque<u8>,
    guest_buf_alloc: u32,
    guest_fwd_cnt: u32,
    /// Bytes sent to the guest, modulo 2^32.
    sent: u32,
    /// Bytes the socket took, modulo 2^32; and what of that the guest knows.
    taken: u32,
    told: u32,
    /// Shutdown flags the guest sent, and those we sent and have to send.
    guest_shutdown: u32,
    own_shutdown: u32,
    shutdown_due: u32,
    credit_asked: bool,
    credit_wanted: bool,
}

impl Connection {
    /// A stream to be opened to `guest_port`. `stream` must not block.
    pub(super) fn new(stream: UnixStream, local_port: u32, guest_port: u32) -> Self {
        Self {
            stream,
            local_port,
            guest_port,
            phase: Phase::New,
            greeting: Vec::new(),
            readable: true,
            hung_up: false,
            outgoing: VecDeque::new(),
            guest_buf_alloc: 0,
            guest_fwd_cnt: 0,
            sent: 0,
            taken: 0,
            told: 0,
            guest_shutdown: 0,
            own_shutdown: 0,
            shutdown_due: 0,
            credit_asked: false,
            credit_wanted: false,
        }
    }

    pub(super) fn guest_port(&self) -> u32 {
        self.guest_port
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it waits to be asked for again.
    pub(super) fn waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Asks again for a stream that was refused.
    pub(super) fn retry(&mut self) {
        if self.phase == Phase::Waiting {
            self.phase = Phase::New;
        }
    }

    /// The socket's state has changed.
    pub(super) fn socket_event(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable || hung_up;
        self.hung_up |= hung_up;
        if hung_up && matches!(self.phase, Phase::New | Phase::Waiting) {
            self.phase = Phase::Over;
        }
        if writable {
            self.flush();
        }
        if hung_up && self.own_shutdown & SHUTDOWN_SEND != 0 {
            self.shutdown_due |= SHUTDOWN_BOTH;
        }
    }

    /// Takes in a packet of this stream with its data. `greeting` makes what is sent first, when the
    /// stream is established.
    pub(super) fn receive(&mut self, packet: &Packet, data: &[u8], greeting: impl FnOnce() -> Vec<u8>) {
        self.guest_buf_alloc = packet.buf_alloc;
        self.guest_fwd_cnt = packet.fwd_cnt;
        self.credit_asked = false;
        match (self.phase, packet.op) {
            (Phase::Requested, Some(Op::Response)) => {
                self.phase = Phase::Established;
                self.greeting = greeting();
            }
            // Nobody listens yet: the guest is still booting.
            (Phase::Requested, Some(Op::Reset)) => self.phase = Phase::Waiting,
            (_, Some(Op::Reset)) => {
                self.flush();
                self.phase = Phase::Over;
            }
            (Phase::Established, Some(Op::Data)) => self.take_data(data),
            (Phase::Established, Some(Op::Shutdown)) => {
                self.guest_shutdown |= packet.flags & SHUTDOWN_BOTH;
                self.flush();
            }
            (Phase::Established, Some(Op::CreditRequest)) => self.credit_wanted = true,
            (Phase::Established, Some(Op::CreditUpdate)) => {}
            _ => self.phase = Phase::Resetting,
        }
    }

    fn take_data(&mut self, data: &[u8]) {
        if self.outgoing.len() + data.len() > BUF_ALLOC as usize {
            // More than there was credit for.
            self.phase = Phase::Resetting;
            return;
        }
        self.outgoing.extend(data);
        self.flush();
    }

    /// Gives the socket what it takes of the guest's data.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let (first, _) = self.outgoing.as_slices();
            match self.stream.write(first) {
                Ok(0) => break,
                Ok(n) => {
                    self.outgoing.drain(..n);
                    self.taken = self.taken.wrapping_add(n as u32);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The host reads no more: so the guest need not write.
                    self.outgoing.clear();
                    self.phase = Phase::Resetting;
                    return;
                }
            }
        }
        if self.guest_shutdown & SHUTDOWN_SEND != 0 {
            // The guest has sent its last byte, and the socket has it.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        if self.guest_shutdown == SHUTDOWN_BOTH && self.phase == Phase::Established {
            self.phase = Phase::Resetting;
        }
    }

    /// The next packet for the guest, its data put into `buf`; `None` when there is nothing to send, or no
    /// credit to send it with.
    pub(super) fn next(&mut self, buf: &mut [u8]) -> Option<(Packet, usize)> {
        match self.phase {
            Phase::New => {
                self.phase = Phase::Requested;
                Some((self.packet(Op::Request, 0, 0), 0))
            }
            Phase::Resetting => {
                self.phase = Phase::Over;
                Some((self.packet(Op::Reset, 0, 0), 0))
            }
            Phase::Established => self.next_established(buf),
            Phase::Requested | Phase::Waiting | Phase::Over => None,
        }
    }

    fn next_established(&mut self, buf: &mut [u8]) -> Option<(Packet, usize)> {
        if let Some(len) = self.data(buf) {
            self.sent = self.sent.wrapping_add(len as u32);
            return Some((self.packet(Op::Data, len as u32, 0), len));
        }
        if self.shutdown_due & !self.own_shutdown != 0 {
            self.own_shutdown |= self.shutdown_due;
            return Some((self.packet(Op::Shutdown, 0, self.own_shutdown), 0));
        }
        if self.credit_wanted || self.taken.wrapping_sub(self.told) >= BUF_ALLOC / 2 {
            self.credit_wanted = false;
            return Some((self.packet(Op::CreditUpdate, 0, 0), 0));
        }
        if self.readable && self.credit() == 0 && !self.credit_asked {
            self.credit_asked = true;
            return Some((self.packet(Op::CreditRequest, 0, 0), 0));
        }
        None
    }

    /// How much more the guest has room for.
    fn credit(&self) -> usize {
        let on_the_way = self.sent.wrapping_sub(self.guest_fwd_cnt);
        self.guest_buf_alloc.saturating_sub(on_the_way) as usize
    }

    /// Reads what may be sent.
    fn data(&mut self, buf: &mut [u8]) -> Option<usize> {
        let room = self.credit().min(buf.len());
        if room == 0 || self.own_shutdown & SHUTDOWN_SEND != 0 || self.guest_shutdown & SHUTDOWN_RECEIVE != 0
        {
            return None;
        }
        if !self.greeting.is_empty() {
            let some = room.min(self.greeting.len());
            buf[..some].copy_from_slice(&self.greeting[..some]);
            self.greeting.drain(..some);
            return Some(some);
        }
        while self.readable {
            match self.stream.read(&mut buf[..room]) {
                Ok(0) => {
                    self.readable = false;
                    self.shutdown_due |= if self.hung_up { SHUTDOWN_BOTH } else { SHUTDOWN_SEND };
                }
                Ok(n) => return Some(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.readable = false;
                    self.fail_unless_blocked(&e);
                }
            }
        }
        None
    }

    fn fail_unless_blocked(&mut self, error: &io::Error) {
        if error.kind() != ErrorKind::WouldBlock {
            self.shutdown_due |= SHUTDOWN_BOTH;
        }
    }

    fn packet(&mut self, op: Op, len: u32, flags: u32) -> Packet {
        self.told = self.taken;
        Packet {
            src_cid: HOST_CID,
            dst_cid: GUEST_CID,
            src_port: self.local_port,
            dst_port: self.guest_port,
            len,
            kind: TYPE_STREAM,
            op: Some(op),
            flags,
            buf_alloc: BUF_ALLOC,
            fwd_cnt: self.taken,
        }
    }
}
