//! Which blocks a file has, and the extents that say where they are.

use super::space::{Slot, Space};
use crate::ext4::spec::checksum::Checksum;
use crate::ext4::spec::extent::{Entries, Extent, IN_BLOCK, IN_INODE, Index, MAX_BLOCKS};
use crate::ext4::spec::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::tree;

/// Blocks of a file that follow each other, with data in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext4) struct Run {
    /// The first, counted from the file's start.
    pub(in crate::ext4) first: u64,
    /// How many.
    pub(in crate::ext4) len: u64,
}

/// The runs of blocks that a file's data extents touch: the rest are holes.
///
/// The extents must be sorted and apart.
pub(in crate::ext4) fn data_runs(extents: &[tree::Extent]) -> impl Iterator<Item = Run> {
    let mut extents = extents.iter().peekable();
    std::iter::from_fn(move || {
        let extent = extents.next()?;
        let first = extent.at / BLOCK_BYTES;
        let mut end = (extent.at + extent.len).div_ceil(BLOCK_BYTES);
        while let Some(next) = extents.next_if(|next| next.at / BLOCK_BYTES <= end) {
            end = end.max((next.at + next.len).div_ceil(BLOCK_BYTES));
        }
        Some(Run { first, len: end - first })
    })
}

/// The one run of a file without holes.
pub(in crate::ext4) fn whole(blocks: u64) -> impl Iterator<Item = Run> {
    (blocks > 0).then_some(Run { first: 0, len: blocks }).into_iter()
}

/// The extents of a file whose blocks take slots from `slot` on.
pub(in crate::ext4) fn extents(
    space: &Space,
    slot: Slot,
    runs: impl Iterator<Item = Run>,
) -> impl Iterator<Item = Extent> {
    let mut next = slot;
    runs.flat_map(move |run| {
        let slot = next;
        next = next.plus(run.len);
        let mut logical = run.first;
        space.runs(slot, run.len).flat_map(move |(block, len)| {
            let start = logical;
            logical += len;
            (0..len).step_by(MAX_BLOCKS as usize).map(move |from| Extent {
                logical: (start + from) as u32,
                len: (len - from).min(u64::from(MAX_BLOCKS)) as u32,
                physical: block.plus(from),
            })
        })
    })
}

/// How many blocks the tree over `extents` extents takes, the root in the inode left out.
pub(in crate::ext4) fn tree_blocks(extents: u64) -> u64 {
    let mut total = 0;
    let mut level = extents;
    while level > IN_INODE as u64 {
        level = level.div_ceil(IN_BLOCK as u64);
        total += level;
    }
    total
}

/// An extent tree: its root, and its blocks in the order of their slots, the leaves first.
#[derive(Debug)]
pub(in crate::ext4) struct ExtentTree {
    /// For the inode.
    pub(in crate::ext4) root: [u8; 60],
    /// As many as [`tree_blocks`] says.
    pub(in crate::ext4) blocks: Vec<u8>,
}

impl ExtentTree {
    /// The tree over `extents`, its blocks from `slot` on; `checksum` is that of the inode.
    pub(in crate::ext4) fn new(space: &Space, slot: Slot, extents: &[Extent], checksum: Checksum) -> Self {
        if extents.len() <= IN_INODE {
            return Self { root: Entries::Leaf(extents).in_inode(), blocks: Vec::new() };
        }
        let mut tree = Self { root: [0; 60], blocks: Vec::new() };
        let mut level: Vec<Index> = extents
            .chunks(IN_BLOCK)
            .map(|leaf| {
                let node = tree.add(space, slot, Entries::Leaf(leaf), checksum);
                Index { logical: leaf[0].logical, node }
            })
            .collect();
        let mut depth = 1;
        while level.len() > IN_INODE {
            level = level
                .chunks(IN_BLOCK)
                .map(|node| {
                    let at = tree.add(space, slot, Entries::Inner(depth, node), checksum);
                    Index { logical: node[0].logical, node: at }
                })
                .collect();
            depth += 1;
        }
        tree.root = Entries::Inner(depth, &level).in_inode();
        tree
    }

    fn add(&mut self, space: &Space, slot: Slot, entries: Entries<'_>, checksum: Checksum) -> Block {
        let index = self.blocks.len() / BLOCK_SIZE;
        self.blocks.resize(self.blocks.len() + BLOCK_SIZE, 0);
        entries.put_block(&mut self.blocks[index * BLOCK_SIZE..], checksum);
        space.block(slot.plus(index as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceId;

    fn runs(extents: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let extents: Vec<_> = extents
            .iter()
            .map(|&(at, len)| tree::Extent { at, len, source: SourceId(0), offset: 0 })
            .collect();
        data_runs(&extents).map(|run| (run.first, run.len)).collect()
    }

    #[test]
    fn runs_are_the_blocks_that_extents_touch() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[(0, 1)]), [(0, 1)]);
        assert_eq!(runs(&[(0, 4096), (4096, 1)]), [(0, 2)]);
        assert_eq!(runs(&[(10, 10), (100, 4000), (8192, 4096)]), [(0, 3)]);
        assert_eq!(runs(&[(4095, 2), (12288, 1)]), [(0, 2), (3, 1)]);
    }

    #[test]
    fn trees_have_a_block_for_340_entries_at_each_level() {
        for (extents, blocks) in
            [(0, 0), (4, 0), (5, 1), (340, 1), (341, 2), (1360, 4), (1361, 6), (150_000, 442 + 2)]
        {
            assert_eq!(tree_blocks(extents), blocks, "{extents}");
        }
    }
}
