//! The superblock, 1024 bytes.

use super::checksum::Checksum;
use super::{BLOCKS_PER_GROUP, INODE_SIZE, Ino, Put, group_desc};
use crate::tree::Timestamp;

/// Bytes in a superblock.
pub(in crate::ext4) const SIZE: usize = 1024;

/// Where the first one is: after the room for a boot sector.
pub(in crate::ext4) const OFFSET: usize = 1024;

/// The longest label, bytes.
pub(in crate::ext4) const LABEL_MAX: usize = 16;

/// `log2` of the groups whose bitmaps and inode tables lie together.
pub(in crate::ext4) const LOG_GROUPS_PER_FLEX: u8 = 4;

/// `has_journal`, `ext_attr`, `resize_inode`, `dir_index`.
const COMPAT: u32 = 0x4 | 0x8 | 0x10 | 0x20;
/// `filetype`, `extents`, `64bit`, `flex_bg`.
const INCOMPAT: u32 = 0x2 | 0x40 | 0x80 | 0x200;
/// `ea_inode`, set where a value is too large for an attribute block.
const INCOMPAT_EA_INODE: u32 = 0x400;
/// `sparse_super`, `large_file`, `huge_file`, `dir_nlink`, `extra_isize`, `metadata_csum`.
const RO_COMPAT: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400;

/// Whether a group has a copy of the superblock and the group descriptors (`sparse_super`).
pub(in crate::ext4) fn in_group(group: u32) -> bool {
    let power_of = |base: u32| {
        let mut power = base;
        while power < group {
            power = power.saturating_mul(base);
        }
        power == group
    };
    group <= 1 || power_of(3) || power_of(5) || power_of(7)
}

/// The fields that differ between file systems.
#[derive(Clone, Debug)]
pub(in crate::ext4) struct Superblock {
    pub(in crate::ext4) inodes: u32,
    pub(in crate::ext4) blocks: u64,
    pub(in crate::ext4) free_blocks: u64,
    pub(in crate::ext4) free_inodes: u32,
    pub(in crate::ext4) inodes_per_group: u32,
    /// Blocks kept for more group descriptors.
    pub(in crate::ext4) reserved_gdt_blocks: u32,
    /// Blocks of metadata that no file can have: what `df` leaves out.
    pub(in crate::ext4) overhead_blocks: u32,
    pub(in crate::ext4) uuid: [u8; 16],
    pub(in crate::ext4) hash_seed: [u8; 16],
    /// At most [`LABEL_MAX`] bytes.
    pub(in crate::ext4) label: Vec<u8>,
    pub(in crate::ext4) created: Timestamp,
    /// `i_block` and size of the journal's inode, kept in case that is lost.
    pub(in crate::ext4) journal: ([u8; 60], u64),
    /// Whether a value lies in an inode of its own.
    pub(in crate::ext4) large_xattrs: bool,
}

/// Takes the feature of values in inodes of their own out of a superblock; one that is damaged stays so.
pub(in crate::ext4) fn hide_large_xattrs(bytes: &mut [u8; SIZE]) {
    let whole = checksum(bytes).to_le_bytes() == bytes[SIZE - 4..];
    bytes[0x61] &= !((INCOMPAT_EA_INODE >> 8) as u8);
    if whole {
        let sum = checksum(bytes);
        bytes.put32(SIZE - 4, sum);
    }
}

fn checksum(bytes: &[u8; SIZE]) -> u32 {
    Checksum::START.over(&bytes[..SIZE - 4]).value()
}

impl Superblock {
    /// The bytes of the copy in `group`. Copies are not marked clean: whoever needs one must check.
    pub(in crate::ext4) fn encode(&self, group: u32) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        self.put_counts(&mut bytes);
        self.put_constants(&mut bytes);
        self.put_identity(&mut bytes);
        self.put_journal(&mut bytes);
        bytes.put16(0x3A, u16::from(group == 0));
        bytes.put16(0x5A, u16::try_from(group).unwrap_or(u16::MAX));
        let sum = checksum(&bytes);
        bytes.put32(SIZE - 4, sum);
        bytes
    }

    fn put_counts(&self, bytes: &mut [u8]) {
        bytes.put32(0x00, self.inodes);
        bytes.put32(0x04, self.blocks as u32);
        bytes.put32(0x0C, self.free_blocks as u32);
        bytes.put32(0x10, self.free_inodes);
        bytes.put32(0x20, BLOCKS_PER_GROUP);
        bytes.put32(0x24, BLOCKS_PER_GROUP);
        bytes.put32(0x28, self.inodes_per_group);
        bytes.put16(0xCE, self.reserved_gdt_blocks as u16);
        bytes.put32(0x150, (self.blocks >> 32) as u32);
        bytes.put32(0x158, (self.free_blocks >> 32) as u32);
        bytes.put32(0x248, self.overhead_blocks);
    }

    fn put_constants(&self, bytes: &mut [u8]) {
        let incompat = if self.large_xattrs { INCOMPAT | INCOMPAT_EA_INODE } else { INCOMPAT };
        bytes.put32(0x18, 2); // log2 of the block size over 1024
        bytes.put32(0x1C, 2); // and of the cluster size
        bytes.put16(0x36, u16::MAX); // no check after a number of mounts
        bytes.put16(0x38, 0xEF53); // magic
        bytes.put16(0x3C, 2); // on errors, go read-only: what Debian asks for its roots
        bytes.put32(0x4C, 1); // revision with features
        bytes.put32(0x54, Ino::FIRST.0);
        bytes.put16(0x58, INODE_SIZE as u16);
        bytes.put32(0x5C, COMPAT);
        bytes.put32(0x60, incompat);
        bytes.put32(0x64, RO_COMPAT);
        bytes.put8(0xFC, 1); // half-MD4
        bytes.put16(0xFE, group_desc::SIZE as u16);
        bytes.put32(0x100, 0x4 | 0x8); // mount with user attributes and ACLs
        bytes.put16(0x15C, 32); // extra fields every inode has
        bytes.put16(0x15E, 32); // and new ones get
        bytes.put32(0x160, 0x2); // names hash as unsigned bytes
        bytes.put8(0x174, LOG_GROUPS_PER_FLEX);
        bytes.put8(0x175, 1); // CRC-32C
    }

    fn put_identity(&self, bytes: &mut [u8]) {
        bytes.put(0x68, &self.uuid);
        bytes.put(0x78, &self.label);
        bytes.put(0xEC, &self.hash_seed);
        let seconds = u64::try_from(self.created.seconds).unwrap_or(0);
        for (low, high) in [(0x30, 0x274), (0x40, 0x277), (0x108, 0x276)] {
            bytes.put32(low, seconds as u32);
            bytes.put8(high, (seconds >> 32) as u8);
        }
    }

    fn put_journal(&self, bytes: &mut [u8]) {
        let (block, size) = &self.journal;
        bytes.put32(0xE0, Ino::JOURNAL.0);
        bytes.put8(0xFD, 1); // the next fields are a copy of the journal's inode
        bytes.put(0x10C, block);
        bytes.put32(0x148, (size >> 32) as u32);
        bytes.put32(0x14C, *size as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::in_group;

    #[test]
    fn copies_are_in_groups_0_1_and_powers_of_3_5_7() {
        let groups: Vec<u32> = (0..400).filter(|&group| in_group(group)).collect();
        assert_eq!(groups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
    }
}
