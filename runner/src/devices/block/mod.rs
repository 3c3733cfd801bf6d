//! virtio-blk (virtio 1.2, section 5.2): the root disk.
//!
//! Requests are carried out one after the other on the event loop, so none is in flight when the machine
//! is saved. The disk has blocks of 4 KiB; a request that is not made of whole ones is answered with an
//! error, as is one beyond the end.

mod bitmap;
pub mod disk;

use serde::{Deserialize, Serialize};
use std::io;
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

use super::GuestMemory;
use super::chain::Chain;
use super::mmio::{Io, TransportStateV1, VirtioDevice};
use super::queue::Broken;
use disk::{BLOCK, Disk};

/// Bytes of a sector, the unit of addresses whatever the block size (section 5.2.4).
const SECTOR: u64 = 512;
/// `struct virtio_blk_req` up to the data: type, reserved, sector.
const HEADER: usize = 16;
/// `struct virtio_blk_discard_write_zeroes`: sector, count, flags.
const RANGE: usize = 16;
const QUEUE_SIZE: u16 = 256;
/// Header, status, and these make up the longest chain a driver may use without indirection.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Most bytes discarded or zeroed by one range: 1 GiB.
const MAX_CLEAR_SECTORS: u32 = 1 << 21;
const MAX_RANGES: u32 = 16;
const SERIAL: &[u8] = b"smolpack-root";

/// What a snapshot keeps of a block device; what was written is in the overlay section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStateV1 {
    /// Registers and queue.
    pub transport: TransportStateV1,
    /// Size of the disk in bytes, which the driver has read from the configuration.
    pub bytes: u64,
}

/// The block device.
pub(crate) struct Block {
    disk: Disk,
    config: [u8; 60],
    chain: Chain,
}

impl Block {
    pub(crate) fn new(disk: Disk) -> Self {
        let config = config(disk.bytes());
        Self { disk, config, chain: Chain::default() }
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    fn answer(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        for _ in 0..io.queues[0].size() {
            if !io.queues[0].pop(io.mem, &mut self.chain)? {
                if io.queues[0].ask_for_kick(io.mem)? {
                    continue;
                }
                return Ok(());
            }
            let written = self.request(io.mem)?;
            io.queues[0].complete(io.mem, self.chain.head(), written)?;
        }
        io.again(0);
        Ok(())
    }

    /// Carries out the request in `chain`; how many bytes of it were written.
    fn request(&mut self, mem: &GuestMemory) -> Result<u32, Broken> {
        let mut header = [0; HEADER];
        self.chain.readable().read(mem, 0, &mut header)?;
        let (kind, sector) = (le32(&header, 0), le64(&header, 8));
        let Some(room) = self.chain.writable().len().checked_sub(1) else {
            return Err(Broken::Buffer("a request has no room for its status"));
        };
        let done = match kind {
            VIRTIO_BLK_T_IN => self.read(mem, sector, room),
            VIRTIO_BLK_T_OUT => self.write(mem, sector),
            VIRTIO_BLK_T_FLUSH => self.disk.flush().map(|()| 0),
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => self.clear(mem),
            VIRTIO_BLK_T_GET_ID => self.identify(mem, room),
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        let (status, filled) = match done {
            Ok(filled) => (VIRTIO_BLK_S_OK, filled),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => (VIRTIO_BLK_S_UNSUPP, 0),
            Err(_) => (VIRTIO_BLK_S_IOERR, 0),
        };
        self.chain.writable().write(mem, room, &[status as u8])?;
        Ok((filled + 1) as u32)
    }

    fn read(&self, mem: &GuestMemory, sector: u64, len: usize) -> io::Result<usize> {
        self.disk.read(mem, self.chain.writable(), whole_blocks(sector, len as u64)?, len as u64)?;
        Ok(len)
    }

    fn write(&mut self, mem: &GuestMemory, sector: u64) -> io::Result<usize> {
        let len = (self.chain.readable().len() - HEADER) as u64;
        let at = whole_blocks(sector, len)?;
        self.disk.write(mem, self.chain.readable(), HEADER, at, len)?;
        Ok(0)
    }

    /// Discards or zeroes: both leave zeros and free what they covered.
    fn clear(&mut self, mem: &GuestMemory) -> io::Result<usize> {
        let bytes = self.chain.readable().len() - HEADER;
        if bytes == 0 || !bytes.is_multiple_of(RANGE) || bytes > RANGE * MAX_RANGES as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for at in (HEADER..HEADER + bytes).step_by(RANGE) {
            let mut range = [0; RANGE];
            self.chain.readable().read(mem, at, &mut range).map_err(io::Error::other)?;
            let (sector, count) = (le64(&range, 0), le32(&range, 8));
            if count > MAX_CLEAR_SECTORS {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let len = u64::from(count) * SECTOR;
            self.disk.zero(whole_blocks(sector, len)?, len)?;
        }
        Ok(0)
    }

    fn identify(&self, mem: &GuestMemory, room: usize) -> io::Result<usize> {
        let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
        id[..SERIAL.len()].copy_from_slice(SERIAL);
        let id = &id[..id.len().min(room)];
        self.chain.writable().write(mem, 0, id).map_err(io::Error::other)?;
        Ok(id.len())
    }
}

/// The byte at which a request starts, if it is made of whole blocks.
fn whole_blocks(sector: u64, len: u64) -> io::Result<u64> {
    match sector.checked_mul(SECTOR) {
        Some(at) if at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) => Ok(at),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn le32(bytes: &[u8; 16], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn le64(bytes: &[u8; 16], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// `struct virtio_blk_config` (section 5.2.4).
fn config(bytes: u64) -> [u8; 60] {
    let mut config = [0; 60];
    let mut put = |at: usize, value: u32| config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, (bytes / SECTOR) as u32);
    put(4, (bytes / SECTOR >> 32) as u32);
    put(12, SEG_MAX);
    put(20, BLOCK as u32);
    put(36, MAX_CLEAR_SECTORS);
    put(40, MAX_RANGES);
    put(44, (BLOCK / SECTOR) as u32);
    put(48, MAX_CLEAR_SECTORS);
    put(52, MAX_RANGES);
    config[56] = 1; // zeroed ranges may be unmapped
    config
}

impl VirtioDevice for Block {
    const NAME: &'static str = "block";
    const ID: u32 = 2;
    const QUEUES: &'static [u16] = &[QUEUE_SIZE];

    fn features(&self) -> u64 {
        1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_FLUSH
            | 1 << VIRTIO_BLK_F_DISCARD
            | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn activate(&mut self, _features: u64) {}

    fn reset(&mut self) {}

    fn process(&mut self, _queue: usize, io: &mut Io<'_>) -> Result<(), Broken> {
        let answered = self.answer(io);
        io.queues[0].signal(io.mem, io.interrupt)?;
        answered
    }
}
