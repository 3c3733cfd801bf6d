//! One request to the disk (virtio 1.2, section 5.2.6): a header to read, data, and a status byte to write.

use std::io;
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};

use super::disk::{BLOCK, Disk};
use super::{MAX_CLEAR_RANGES, MAX_CLEAR_SECTORS};
use crate::devices::GuestMemory;
use crate::devices::chain::{Buffers, Chain};
use crate::devices::queue::Broken;

/// The unit of addresses and lengths in the protocol, in bytes.
pub(super) const SECTOR: u64 = 512;
/// Bytes of a request's header: type, a reserved word, the first sector.
const HEADER: usize = 16;
/// Bytes of a discard or write-zeroes segment: first sector, sectors, flags.
const RANGE: usize = 16;
/// Most data bytes of one request. It bounds how long the event loop is at it.
const MAX_DATA: u64 = 32 << 20;
/// The name under which the guest finds the disk, in `/dev/disk/by-id`.
const SERIAL: &[u8] = b"smolpack-root";

/// Why a request fails: its driver gets this status.
enum Failure {
    /// It asks for what there is not.
    Refused,
    /// The host cannot do it.
    Host(io::Error),
    Unsupported,
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::InvalidInput { Self::Refused } else { Self::Host(e) }
    }
}

/// A request that was carried out, or could not be.
pub(super) struct Executed {
    /// Bytes written to its buffers.
    pub(super) written: u32,
    /// Whether it was a write, and was done.
    pub(super) stored: bool,
    /// What the host could not do; the driver is told of an I/O error.
    pub(super) trouble: Option<io::Error>,
}

/// Carries out the request in `chain`.
pub(super) fn execute(disk: &mut Disk, mem: &GuestMemory, chain: &Chain) -> Result<Executed, Broken> {
    let mut header = [0; HEADER];
    chain.readable().read(mem, 0, &mut header)?;
    let [kind, _, low, high] = words(&header);
    let sector = u64::from(high) << 32 | u64::from(low);
    let Some(status_at) = chain.writable().len().checked_sub(1) else {
        return Err(Broken::Buffer("a disk request has no room for its status"));
    };
    let done = dispatch(disk, mem, chain, kind, sector)?;
    let (status, written, trouble) = match done {
        Ok(written) => (VIRTIO_BLK_S_OK, written, None),
        Err(Failure::Refused) => (VIRTIO_BLK_S_IOERR, 0, None),
        Err(Failure::Host(e)) => (VIRTIO_BLK_S_IOERR, 0, Some(e)),
        Err(Failure::Unsupported) => (VIRTIO_BLK_S_UNSUPP, 0, None),
    };
    chain.writable().write(mem, status_at, &[status as u8])?;
    let stored = kind == VIRTIO_BLK_T_OUT && status == VIRTIO_BLK_S_OK;
    Ok(Executed { written: written + 1, stored, trouble })
}

/// Does what a request of type `kind` asks for; returns the bytes of data written to the guest.
fn dispatch(
    disk: &mut Disk,
    mem: &GuestMemory,
    chain: &Chain,
    kind: u32,
    sector: u64,
) -> Result<Result<u32, Failure>, Broken> {
    let (incoming, outgoing) = (chain.readable().len() - HEADER, chain.writable().len() - 1);
    Ok(match kind {
        VIRTIO_BLK_T_IN => position(sector, outgoing).and_then(|(at, len)| {
            disk.read(mem, chain.writable(), at, len)?;
            Ok(len as u32)
        }),
        VIRTIO_BLK_T_OUT => position(sector, incoming).and_then(|(at, len)| {
            disk.write(mem, chain.readable(), HEADER, at, len)?;
            Ok(0)
        }),
        VIRTIO_BLK_T_FLUSH => disk.flush().map(|()| 0).map_err(Failure::from),
        VIRTIO_BLK_T_GET_ID => Ok(identify(mem, chain.writable(), outgoing)?),
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            clear(disk, mem, chain.readable(), kind == VIRTIO_BLK_T_WRITE_ZEROES)?
        }
        _ => Err(Failure::Unsupported),
    })
}

/// The bytes of the disk a request is about. Only whole blocks, as the configuration says.
fn position(sector: u64, len: usize) -> Result<(u64, u64), Failure> {
    let (at, len) = (sector.checked_mul(SECTOR).ok_or(Failure::Refused)?, len as u64);
    let aligned = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
    if aligned && len <= MAX_DATA { Ok((at, len)) } else { Err(Failure::Refused) }
}

fn identify(mem: &GuestMemory, to: &Buffers, room: usize) -> Result<u32, Broken> {
    let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
    id[..SERIAL.len()].copy_from_slice(SERIAL);
    let len = room.min(id.len());
    to.write(mem, 0, &id[..len])?;
    Ok(len as u32)
}

/// Discards or zeroes ranges: what is discarded reads as zeros here, too.
fn clear(
    disk: &mut Disk,
    mem: &GuestMemory,
    from: &Buffers,
    may_unmap: bool,
) -> Result<Result<u32, Failure>, Broken> {
    let bytes = from.len() - HEADER;
    if !bytes.is_multiple_of(RANGE) || bytes > RANGE * MAX_CLEAR_RANGES as usize {
        return Ok(Err(Failure::Refused));
    }
    for at in (HEADER..HEADER + bytes).step_by(RANGE) {
        let mut range = [0; RANGE];
        from.read(mem, at, &mut range)?;
        if let Err(failure) = clear_range(disk, &range, may_unmap) {
            return Ok(Err(failure));
        }
    }
    Ok(Ok(0))
}

fn clear_range(disk: &mut Disk, range: &[u8; RANGE], may_unmap: bool) -> Result<(), Failure> {
    let [low, high, sectors, flags] = words(range);
    let allowed = if may_unmap { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
    if flags & !allowed != 0 {
        return Err(Failure::Unsupported);
    }
    if sectors > MAX_CLEAR_SECTORS {
        return Err(Failure::Refused);
    }
    let sector = u64::from(high) << 32 | u64::from(low);
    let at = sector.checked_mul(SECTOR).ok_or(Failure::Refused)?;
    Ok(disk.zero(at, u64::from(sectors) * SECTOR)?)
}

/// Four little-endian words.
fn words(bytes: &[u8; 16]) -> [u32; 4] {
    std::array::from_fn(|i| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}
