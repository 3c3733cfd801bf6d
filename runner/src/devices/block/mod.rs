//! virtio-blk (virtio 1.2, section 5.2): the root disk.
//!
//! Requests are carried out one after the other in the event loop: between two of them, none is in
//! flight, so a snapshot needs no draining beyond the queue itself.

mod bitmap;
pub mod disk;
mod request;

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use std::io::ErrorKind;

use super::DeviceError;
use super::chain::Chain;
use super::mmio::{Io, TransportStateV1, VirtioDevice};
use super::queue::Broken;
use crate::chain::chain;
use crate::notice::Notices;
use disk::{BLOCK, Disk};
use request::{Executed, SECTOR};

const QUEUE_SIZE: u16 = 256;
/// Data segments of one request: the ring less the header and the status.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Most sectors of one range to discard or to zero: 1 GiB.
const MAX_CLEAR_SECTORS: u32 = 1 << 21;
/// Most ranges of one request to discard or to zero.
const MAX_CLEAR_RANGES: u32 = 16;

/// What a snapshot keeps of the block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStateV1 {
    /// Registers and queue.
    pub transport: TransportStateV1,
    /// Size of the disk the driver knows, in bytes.
    pub bytes: u64,
}

impl BlockStateV1 {
    /// Whether the disk has grown since; it must not have shrunk.
    pub(crate) fn check_size(&self, disk: &Disk) -> Result<bool, DeviceError> {
        let (was, is) = (self.bytes, disk.bytes());
        if is < was {
            let why = format!("the saved machine's disk has {was} bytes, this one {is}");
            return Err(DeviceError::state(Block::NAME, why));
        }
        Ok(is > was)
    }
}

/// The block device.
pub(crate) struct Block {
    disk: Disk,
    config: [u8; 60],
    /// The request at hand.
    chain: Chain,
    /// It found no room for what it writes, and is tried again.
    stalled: bool,
    /// The last write found no room.
    full: bool,
    notices: Notices,
}

impl Block {
    pub(crate) fn new(disk: Disk) -> Self {
        let config = configuration(disk.bytes());
        Self {
            disk,
            config,
            chain: Chain::default(),
            stalled: false,
            full: false,
            notices: Notices::default(),
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Carries out what is in the queue, at most as many requests as it holds.
    fn serve(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        let queue = &mut io.queues[0];
        for _ in 0..queue.size() {
            if !self.stalled && !queue.pop(io.mem, &mut self.chain)? {
                if queue.ask_for_kick(io.mem)? {
                    continue;
                }
                return Ok(());
            }
            let done = request::execute(&mut self.disk, io.mem, &self.chain)?;
            self.stalled = self.report(&done);
            if self.stalled {
                return Ok(());
            }
            queue.complete(io.mem, self.chain.head(), done.written)?;
        }
        io.again(0);
        Ok(())
    }

    /// Tells of what the host could not do. Whether the request is to wait.
    fn report(&mut self, done: &Executed) -> bool {
        let Some(trouble) = &done.trouble else {
            self.full &= !done.stored;
            return false;
        };
        if !matches!(trouble.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            self.notices.say(format!("the root disk: {}; the guest gets an I/O error", chain(trouble)));
            return false;
        }
        let wait = self.disk.waits_for_room();
        if !std::mem::replace(&mut self.full, true) {
            let then =
                if wait { "the machine waits until there is some" } else { "the guest gets I/O errors" };
            let (folder, free) = self.disk.room();
            let folder = folder.display();
            let line =
                format!("{folder} has no room for what the machine writes ({free} bytes are free); {then}");
            self.notices.say(line);
        }
        wait
    }

    /// Whether a request waits for room; it is to be [processed](VirtioDevice::process) now and then.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Has requests that find no room fail from now on, the one that waits included.
    pub(crate) fn stop_waiting(&mut self) {
        self.disk.stop_waiting();
    }
}

/// The configuration space (section 5.2.4).
fn configuration(bytes: u64) -> [u8; 60] {
    let mut config = [0; 60];
    let mut put = |at: usize, value: &[u8]| config[at..at + value.len()].copy_from_slice(value);
    let block_sectors = (BLOCK / SECTOR) as u32;
    put(0, &(bytes / SECTOR).to_le_bytes()); // capacity
    put(12, &SEG_MAX.to_le_bytes()); // seg_max
    put(20, &(BLOCK as u32).to_le_bytes()); // blk_size
    put(36, &MAX_CLEAR_SECTORS.to_le_bytes()); // max_discard_sectors
    put(40, &MAX_CLEAR_RANGES.to_le_bytes()); // max_discard_seg
    put(44, &block_sectors.to_le_bytes()); // discard_sector_alignment
    put(48, &MAX_CLEAR_SECTORS.to_le_bytes()); // max_write_zeroes_sectors
    put(52, &MAX_CLEAR_RANGES.to_le_bytes()); // max_write_zeroes_seg
    put(56, &[1]); // write_zeroes_may_unmap
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

    fn reset(&mut self) {
        self.stalled = false;
    }

    fn process(&mut self, _queue: usize, io: &mut Io<'_>) -> Result<(), Broken> {
        self.serve(io)
    }
}

#[cfg(test)]
mod tests;
