//! Extents: runs of a file's blocks that lie together on the disk, four in the inode or in a tree.

use super::checksum::Checksum;
use super::{BLOCK_SIZE, Block, Put};

/// How many entries the inode itself holds.
pub(in crate::ext4) const IN_INODE: usize = 4;

/// How many a block of the tree holds; the checksum takes the last four bytes.
pub(in crate::ext4) const IN_BLOCK: usize = (BLOCK_SIZE - HEADER - 4) / ENTRY;

/// The most blocks in one initialised extent.
pub(in crate::ext4) const MAX_BLOCKS: u32 = 32768;

const MAGIC: u16 = 0xF30A;
const HEADER: usize = 12;
const ENTRY: usize = 12;

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext4) struct Extent {
    /// Its first block in the file.
    pub(in crate::ext4) logical: u32,
    /// How many blocks, 1 to [`MAX_BLOCKS`].
    pub(in crate::ext4) len: u32,
    /// Its first block on the disk.
    pub(in crate::ext4) physical: Block,
}

/// A pointer to a node of the tree.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Index {
    /// The first block of the file that the node knows about.
    pub(in crate::ext4) logical: u32,
    /// Where the node is.
    pub(in crate::ext4) node: Block,
}

/// The entries of a node.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) enum Entries<'a> {
    /// Depth 0.
    Leaf(&'a [Extent]),
    /// This many levels above the leaves.
    Inner(u16, &'a [Index]),
}

impl Entries<'_> {
    fn put(&self, bytes: &mut [u8], max: usize) {
        let (depth, len) = match self {
            Self::Leaf(extents) => (0, extents.len()),
            Self::Inner(depth, indexes) => (*depth, indexes.len()),
        };
        bytes.put16(0, MAGIC);
        bytes.put16(2, len as u16);
        bytes.put16(4, max as u16);
        bytes.put16(6, depth);
        let (slots, _) = bytes[HEADER..].as_chunks_mut::<ENTRY>();
        match self {
            Self::Leaf(extents) => slots.iter_mut().zip(*extents).for_each(|(slot, extent)| extent.put(slot)),
            Self::Inner(_, indexes) => {
                slots.iter_mut().zip(*indexes).for_each(|(slot, index)| index.put(slot));
            }
        }
    }

    /// The 60 bytes in an inode; at most [`IN_INODE`] entries.
    pub(in crate::ext4) fn in_inode(&self) -> [u8; 60] {
        let mut bytes = [0; 60];
        self.put(&mut bytes, IN_INODE);
        bytes
    }

    /// Fills a zeroed block; at most [`IN_BLOCK`] entries.
    pub(in crate::ext4) fn put_block(&self, block: &mut [u8], checksum: Checksum) {
        self.put(block, IN_BLOCK);
        let sum = checksum.over(&block[..BLOCK_SIZE - 4]);
        block.put32(BLOCK_SIZE - 4, sum.value());
    }
}

impl Extent {
    fn put(&self, slot: &mut [u8; ENTRY]) {
        slot.put32(0, self.logical);
        slot.put16(4, self.len as u16);
        slot.put16(6, self.physical.high() as u16);
        slot.put32(8, self.physical.low());
    }
}

impl Index {
    fn put(&self, slot: &mut [u8; ENTRY]) {
        slot.put32(0, self.logical);
        slot.put32(4, self.node.low());
        slot.put16(8, self.node.high() as u16);
    }
}
