//! Where a file system of a given size has its own structures. Only the size decides, and the number
//! of inodes where that is unusually high: a change of content moves nothing here.

use crate::ext4::spec::superblock::{self, LOG_GROUPS_PER_FLEX};
use crate::ext4::spec::{BLOCK_BYTES, BLOCK_SIZE, BLOCKS_PER_GROUP, Block, INODES_PER_BLOCK, group_desc};

/// Inodes a group usually gets: one for 16 KiB.
const INODES_PER_GROUP: u32 = 8192;
/// The most that a block of bitmap covers.
const MAX_INODES_PER_GROUP: u32 = BLOCKS_PER_GROUP;
/// Blocks of group descriptors for 1 TiB, to which every image can grow while mounted.
const GROWN_GDT_BLOCKS: u32 = 128;
/// The most blocks that can be reserved: what the resize inode's map has room for.
const MAX_RESERVED_GDT_BLOCKS: u32 = BLOCK_SIZE as u32 / 4;
/// The least room that makes a last, short group worth having.
const SHORT_GROUP_ROOM: u32 = 50;
/// Groups whose bitmaps and tables lie together.
const GROUPS_PER_FLEX: u32 = 1 << LOG_GROUPS_PER_FLEX;

/// Sizes and places.
#[derive(Clone, Debug)]
pub(in crate::ext4) struct Geometry {
    /// Blocks in the file system.
    pub(in crate::ext4) blocks: u64,
    /// Groups, the last one perhaps short.
    pub(in crate::ext4) groups: u32,
    /// Inodes in each group.
    pub(in crate::ext4) inodes_per_group: u32,
    /// Blocks of group descriptors.
    pub(in crate::ext4) gdt_blocks: u32,
    /// Blocks kept behind them for more.
    pub(in crate::ext4) reserved_gdt_blocks: u32,
    /// Blocks of the journal.
    pub(in crate::ext4) journal_blocks: u32,
    /// The places of each group's structures.
    pub(in crate::ext4) places: Vec<Places>,
    /// The same in the order of the disk.
    pub(in crate::ext4) fixed: Vec<Fixed>,
}

/// Where a group's bitmaps and inode table are; not always in the group.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Places {
    pub(in crate::ext4) block_bitmap: Block,
    pub(in crate::ext4) inode_bitmap: Block,
    pub(in crate::ext4) inode_table: Block,
}

/// A structure at a fixed place.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Fixed {
    /// Its first block.
    pub(in crate::ext4) at: Block,
    /// How many.
    pub(in crate::ext4) blocks: u32,
    /// What it is.
    pub(in crate::ext4) what: Structure,
    /// The group it describes.
    pub(in crate::ext4) group: u32,
}

/// A kind of structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext4) enum Structure {
    /// A superblock, the group descriptors and the room for more.
    Superblock,
    BlockBitmap,
    InodeBitmap,
    InodeTable,
}

impl Geometry {
    /// The geometry of a disk of `size` bytes with room for `inodes` inodes, the reserved ones
    /// counted in; `None` where it is too small for its own structures.
    pub(in crate::ext4) fn new(size: u64, inodes: u64) -> Option<Self> {
        let blocks = size / BLOCK_BYTES;
        let usual = u32::try_from(blocks).unwrap_or(u32::MAX).next_multiple_of(INODES_PER_BLOCK);
        let choices = [usual.min(INODES_PER_GROUP), 2 * INODES_PER_GROUP, MAX_INODES_PER_GROUP];
        let frames = choices.map(|inodes_per_group| Frame::new(blocks, inodes_per_group));
        let roomy = frames.iter().flatten().find(|frame| frame.inodes() >= inodes + inodes / 16);
        let tight = || frames.iter().flatten().find(|frame| frame.inodes() >= inodes);
        roomy.or_else(tight).and_then(Frame::place)
    }

    /// Blocks in a group.
    pub(in crate::ext4) fn blocks_in(&self, group: u32) -> u32 {
        let rest = self.blocks - u64::from(group) * u64::from(BLOCKS_PER_GROUP);
        rest.min(u64::from(BLOCKS_PER_GROUP)) as u32
    }

    /// Inodes in the file system.
    pub(in crate::ext4) fn inodes(&self) -> u32 {
        self.groups * self.inodes_per_group
    }

    /// The groups with copies of the superblock, the first one left out.
    pub(in crate::ext4) fn backups(&self) -> impl Iterator<Item = u32> {
        (1..self.groups).filter(|&group| superblock::in_group(group))
    }

    /// All blocks of structures at fixed places.
    pub(in crate::ext4) fn fixed_blocks(&self) -> u64 {
        self.fixed.iter().map(|fixed| u64::from(fixed.blocks)).sum()
    }
}

/// The sizes, before anything has a place.
#[derive(Clone, Copy, Debug)]
struct Frame {
    blocks: u64,
    groups: u32,
    inodes_per_group: u32,
    gdt_blocks: u32,
    reserved_gdt_blocks: u32,
}

impl Frame {
    /// `None` where a group's structures do not fit, or the numbers do not fit ext4.
    fn new(blocks: u64, inodes_per_group: u32) -> Option<Self> {
        let frame = Self::sized(blocks, inodes_per_group)?;
        let rest = (blocks % u64::from(BLOCKS_PER_GROUP)) as u32;
        if rest == 0 || rest >= frame.least_blocks(frame.groups - 1) {
            return Some(frame);
        }
        Self::sized(blocks - u64::from(rest), inodes_per_group)
    }

    fn sized(blocks: u64, inodes_per_group: u32) -> Option<Self> {
        let groups = u32::try_from(blocks.div_ceil(u64::from(BLOCKS_PER_GROUP))).ok()?;
        if groups == 0 || groups.checked_mul(inodes_per_group).is_none() {
            return None;
        }
        let gdt_blocks = groups.div_ceil((BLOCK_SIZE / group_desc::SIZE) as u32);
        let wanted = GROWN_GDT_BLOCKS.max(2 * gdt_blocks) - gdt_blocks;
        let reserved_gdt_blocks = wanted.min(MAX_RESERVED_GDT_BLOCKS);
        Some(Self { blocks, groups, inodes_per_group, gdt_blocks, reserved_gdt_blocks })
    }

    fn inodes(&self) -> u64 {
        u64::from(self.groups) * u64::from(self.inodes_per_group)
    }

    fn table_blocks(&self) -> u32 {
        self.inodes_per_group / INODES_PER_BLOCK
    }

    /// Blocks of the superblock and what follows it in a group.
    fn superblock_blocks(&self, group: u32) -> u32 {
        if superblock::in_group(group) { 1 + self.gdt_blocks + self.reserved_gdt_blocks } else { 0 }
    }

    /// The fewest blocks of a last group: with fewer it is left out.
    fn least_blocks(&self, group: u32) -> u32 {
        self.superblock_blocks(group) + 2 + self.table_blocks() + SHORT_GROUP_ROOM
    }

    /// Gathers bitmaps and tables of 16 groups at the start of the first of them.
    fn place(&self) -> Option<Geometry> {
        let mut fixed = Vec::new();
        let mut places = Vec::with_capacity(self.groups as usize);
        for group in (0..self.groups).filter(|&group| superblock::in_group(group)) {
            let blocks = self.superblock_blocks(group);
            fixed.push(Fixed { at: start(group), blocks, what: Structure::Superblock, group });
        }
        for first in (0..self.groups).step_by(GROUPS_PER_FLEX as usize) {
            let last = (first + GROUPS_PER_FLEX).min(self.groups);
            self.place_flex(first, last, &mut places, &mut fixed)?;
        }
        fixed.sort_by_key(|fixed| fixed.at);
        Some(Geometry {
            blocks: self.blocks,
            groups: self.groups,
            inodes_per_group: self.inodes_per_group,
            gdt_blocks: self.gdt_blocks,
            reserved_gdt_blocks: self.reserved_gdt_blocks,
            journal_blocks: journal_blocks(self.blocks),
            places,
            fixed,
        })
    }

    fn place_flex(
        &self,
        first: u32,
        last: u32,
        places: &mut Vec<Places>,
        fixed: &mut Vec<Fixed>,
    ) -> Option<()> {
        let mut next = start(first);
        let mut take = |blocks: u32, what, group| {
            let at = self.after_superblocks(next, blocks);
            next = at.plus(u64::from(blocks));
            fixed.push(Fixed { at, blocks, what, group });
            at
        };
        let block_bitmaps: Vec<Block> =
            (first..last).map(|group| take(1, Structure::BlockBitmap, group)).collect();
        let inode_bitmaps: Vec<Block> =
            (first..last).map(|group| take(1, Structure::InodeBitmap, group)).collect();
        let tables: Vec<Block> =
            (first..last).map(|group| take(self.table_blocks(), Structure::InodeTable, group)).collect();
        for ((block_bitmap, inode_bitmap), inode_table) in
            block_bitmaps.into_iter().zip(inode_bitmaps).zip(tables)
        {
            places.push(Places { block_bitmap, inode_bitmap, inode_table });
        }
        (next.0 <= self.blocks).then_some(())
    }

    /// The first place from `at` on where `blocks` blocks meet no copy of the superblock. Nothing
    /// placed here is longer than a group, so at most two copies are in the way.
    fn after_superblocks(&self, at: Block, blocks: u32) -> Block {
        let groups = |at: Block| {
            let group = |block: u64| (block / u64::from(BLOCKS_PER_GROUP)) as u32;
            group(at.0)..=group(at.0 + u64::from(blocks) - 1)
        };
        let mut at = at;
        while let Some(behind) = groups(at)
            .map(|group| start(group).plus(u64::from(self.superblock_blocks(group))))
            .find(|&behind| at < behind && overlaps(at, blocks, behind))
        {
            at = behind;
        }
        at
    }
}

/// Whether blocks from `at` reach into the superblock that ends at `behind`.
fn overlaps(at: Block, blocks: u32, behind: Block) -> bool {
    let group_start = behind.0 / u64::from(BLOCKS_PER_GROUP) * u64::from(BLOCKS_PER_GROUP);
    behind.0 > group_start && at.0 + u64::from(blocks) > group_start
}

/// A group's first block.
fn start(group: u32) -> Block {
    Block(u64::from(group) * u64::from(BLOCKS_PER_GROUP))
}

/// The journal's size for a disk, as mke2fs has it up to 64 MiB. Larger ones serve many writers; here
/// every block of it that was written once would stay in a machine's overlay.
fn journal_blocks(blocks: u64) -> u32 {
    match blocks {
        0..0x8000 => 1024,
        0x8000..0x4_0000 => 4096,
        0x4_0000..0x8_0000 => 8192,
        _ => 16384,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check_places(geometry: &Geometry) {
        let mut behind = 0;
        for fixed in &geometry.fixed {
            assert!(fixed.at.0 >= behind, "{fixed:?} overlaps what ends at {behind}");
            behind = fixed.at.0 + u64::from(fixed.blocks);
        }
        assert!(behind <= geometry.blocks);
        assert_eq!(geometry.places.len(), geometry.groups as usize);
    }

    #[test]
    fn structures_never_overlap() {
        for size in [16, 127, 128, 129, 1000, 1024, 2047, 2049, 10_240, 65_536, 1 << 20, 8 << 20] {
            for inodes in [20, 100_000, 1 << 20] {
                if let Some(geometry) = Geometry::new(size * MIB, inodes) {
                    check_places(&geometry);
                    assert!(u64::from(geometry.inodes()) >= inodes);
                }
            }
        }
    }

    #[test]
    fn a_short_last_group_is_left_out() {
        let full = 128 * MIB;
        assert_eq!(Geometry::new(full + 100 * BLOCK_BYTES, 20).unwrap().groups, 1);
        assert_eq!(Geometry::new(full + 1000 * BLOCK_BYTES, 20).unwrap().groups, 2);
    }

    #[test]
    fn many_inodes_get_larger_tables() {
        assert_eq!(Geometry::new(1024 * MIB, 1000).unwrap().inodes_per_group, 8192);
        assert_eq!(Geometry::new(1024 * MIB, 100_000).unwrap().inodes_per_group, 16384);
        assert!(Geometry::new(1024 * MIB, 1_000_000).is_none());
    }

    #[test]
    fn too_small_a_disk_has_no_geometry() {
        assert!(Geometry::new(0, 20).is_none());
        assert!(Geometry::new(256 * 1024, 20).is_none());
    }

    #[test]
    fn descriptors_have_room_for_a_tebibyte() {
        for size in [16, 1024, 65_536] {
            let geometry = Geometry::new(size * MIB, 20).unwrap();
            assert_eq!(geometry.gdt_blocks + geometry.reserved_gdt_blocks, 128);
        }
    }
}
