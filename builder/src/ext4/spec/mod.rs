//! Bytes on the disk, as the kernel's ext4 documentation names them. No arithmetic about where things
//! go and no I/O: each file encodes one structure.

pub(super) mod acl;
pub(super) mod checksum;
pub(super) mod dir;
pub(super) mod extent;
pub(super) mod group_desc;
pub(super) mod hash;
pub(super) mod inode;
pub(super) mod journal;
pub(super) mod superblock;
pub(super) mod xattr;

/// Bytes in a block. The only size written here: the kernel's page, so that no block straddles one.
pub(super) const BLOCK_SIZE: usize = 4096;

/// [`BLOCK_SIZE`] for arithmetic on file positions.
pub(super) const BLOCK_BYTES: u64 = BLOCK_SIZE as u64;

/// Blocks in a group: what one block of bitmap covers.
pub(super) const BLOCKS_PER_GROUP: u32 = 8 * BLOCK_SIZE as u32;

/// Bytes in an inode.
pub(super) const INODE_SIZE: usize = 256;

/// Inodes in a block of an inode table.
pub(super) const INODES_PER_BLOCK: u32 = (BLOCK_SIZE / INODE_SIZE) as u32;

/// A block's number in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block(pub(super) u64);

impl Block {
    /// The block `n` further on.
    pub(super) fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }

    /// The lower half, where a structure splits the number.
    pub(super) fn low(self) -> u32 {
        self.0 as u32
    }

    /// The upper half.
    pub(super) fn high(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An inode's number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ino(pub(super) u32);

impl Ino {
    /// The root folder.
    pub(super) const ROOT: Self = Self(2);
    /// The file that owns the blocks reserved for growing the group descriptors.
    pub(super) const RESIZE: Self = Self(7);
    /// The journal.
    pub(super) const JOURNAL: Self = Self(8);
    /// The first that ordinary files may have; by custom lost+found.
    pub(super) const FIRST: Self = Self(11);
}

/// Little-endian stores into a structure's bytes, at the offsets its documentation gives.
pub(super) trait Put {
    /// One byte.
    fn put8(&mut self, at: usize, value: u8);
    /// Two bytes.
    fn put16(&mut self, at: usize, value: u16);
    /// Four bytes.
    fn put32(&mut self, at: usize, value: u32);
    /// Bytes as they are.
    fn put(&mut self, at: usize, bytes: &[u8]);
}

impl Put for [u8] {
    fn put8(&mut self, at: usize, value: u8) {
        self[at] = value;
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
