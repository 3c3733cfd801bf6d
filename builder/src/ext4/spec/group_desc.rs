//! Group descriptors, 64 bytes each.

use super::checksum::Checksum;
use super::{Block, Put};

/// Bytes in a descriptor.
pub(in crate::ext4) const SIZE: usize = 64;

/// The inode table and bitmap were never used.
pub(in crate::ext4) const INODE_UNINIT: u16 = 0x1;
/// The block bitmap was never written: only the group's own copies of the superblock are in use.
pub(in crate::ext4) const BLOCK_UNINIT: u16 = 0x2;
/// The inode table's unused part is zeros on the disk, so that the kernel need not clear it.
pub(in crate::ext4) const INODE_ZEROED: u16 = 0x4;

/// What the file system keeps of a group.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct GroupDesc {
    /// Where its block bitmap is.
    pub(in crate::ext4) block_bitmap: Block,
    /// Where its inode bitmap is.
    pub(in crate::ext4) inode_bitmap: Block,
    /// Where its inode table starts.
    pub(in crate::ext4) inode_table: Block,
    /// Blocks free.
    pub(in crate::ext4) free_blocks: u32,
    /// Inodes free.
    pub(in crate::ext4) free_inodes: u32,
    /// Inodes that are folders.
    pub(in crate::ext4) used_dirs: u32,
    /// Of [`INODE_UNINIT`], [`BLOCK_UNINIT`], [`INODE_ZEROED`].
    pub(in crate::ext4) flags: u16,
    /// Of the block bitmap; 0 where it is not initialised.
    pub(in crate::ext4) block_bitmap_csum: u32,
    /// Of the inode bitmap; 0 where it is not initialised.
    pub(in crate::ext4) inode_bitmap_csum: u32,
    /// Inodes at the table's end that were never used.
    pub(in crate::ext4) itable_unused: u32,
}

impl GroupDesc {
    /// The bytes, checksum included; `checksum` starts at the file system's UUID.
    pub(in crate::ext4) fn encode(&self, group: u32, checksum: Checksum) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        for (low, high, block) in
            [(0x00, 0x20, self.block_bitmap), (0x04, 0x24, self.inode_bitmap), (0x08, 0x28, self.inode_table)]
        {
            bytes.put32(low, block.low());
            bytes.put32(high, block.high());
        }
        for (low, high, value) in [
            (0x0C, 0x2C, self.free_blocks),
            (0x0E, 0x2E, self.free_inodes),
            (0x10, 0x30, self.used_dirs),
            (0x18, 0x38, self.block_bitmap_csum),
            (0x1A, 0x3A, self.inode_bitmap_csum),
            (0x1C, 0x32, self.itable_unused),
        ] {
            bytes.put16(low, value as u16);
            bytes.put16(high, (value >> 16) as u16);
        }
        bytes.put16(0x12, self.flags);
        let sum = checksum.over(&group.to_le_bytes()).over(&bytes);
        bytes.put16(0x1E, sum.low());
        bytes
    }
}
