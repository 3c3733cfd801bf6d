//! The structures at fixed places: superblocks, group descriptors, bitmaps, inode tables.

use super::inodes::Inodes;
use super::out::Out;
use super::{Ext4Error, Seeds};
use crate::ext4::Options;
use crate::ext4::layout::Layout;
use crate::ext4::layout::geometry::{Fixed, Structure};
use crate::ext4::spec::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, INODE_ZEROED};
use crate::ext4::spec::superblock::{OFFSET, Superblock};
use crate::ext4::spec::{BLOCK_BYTES, BLOCK_SIZE, BLOCKS_PER_GROUP, Block, INODE_SIZE, Ino, Put};
use std::ops::Range;

/// A block of bits, one for each block or inode of a group.
type Bitmap = [u8; BLOCK_SIZE];

/// All that the fixed structures say, and how to write each.
pub(super) struct FixedWriter<'l> {
    layout: &'l Layout<'l>,
    inodes: Inodes<'l>,
    superblock: Superblock,
    /// Group descriptors, encoded, in whole blocks.
    descriptors: Vec<u8>,
    /// Whether each group's block bitmap is written.
    bitmaps_written: Vec<bool>,
}

impl<'l> FixedWriter<'l> {
    pub(super) fn new(layout: &'l Layout<'l>, inodes: Inodes<'l>, seeds: Seeds, options: &Options) -> Self {
        let geometry = &layout.geometry;
        let journal = inodes.journal();
        let mut writer = Self {
            layout,
            inodes,
            superblock: Superblock {
                inodes: geometry.inodes(),
                blocks: geometry.blocks,
                free_blocks: 0,
                free_inodes: 0,
                inodes_per_group: geometry.inodes_per_group,
                reserved_gdt_blocks: geometry.reserved_gdt_blocks,
                overhead_blocks: (geometry.fixed_blocks() + u64::from(geometry.journal_blocks)) as u32,
                uuid: options.uuid,
                hash_seed: options.hash_seed,
                label: options.label.clone().unwrap_or_default().into_bytes(),
                created: options.created,
                journal: (journal.block, journal.size),
                large_xattrs: !layout.survey.values.is_empty(),
            },
            descriptors: Vec::with_capacity(geometry.gdt_blocks as usize * BLOCK_SIZE),
            bitmaps_written: Vec::with_capacity(geometry.groups as usize),
        };
        writer.describe_groups(seeds);
        writer
    }

    /// Free blocks and inodes of the whole file system.
    pub(super) fn free(&self) -> (u64, u32) {
        (self.superblock.free_blocks, self.superblock.free_inodes)
    }

    fn describe_groups(&mut self, seeds: Seeds) {
        for group in 0..self.layout.geometry.groups {
            let descriptor = self.describe(group, seeds);
            self.superblock.free_blocks += u64::from(descriptor.free_blocks);
            self.superblock.free_inodes += descriptor.free_inodes;
            self.bitmaps_written.push(descriptor.flags & BLOCK_UNINIT == 0);
            self.descriptors.extend_from_slice(&descriptor.encode(group, seeds.checksum));
        }
        self.descriptors.resize(self.layout.geometry.gdt_blocks as usize * BLOCK_SIZE, 0);
    }

    fn describe(&self, group: u32, seeds: Seeds) -> GroupDesc {
        let geometry = &self.layout.geometry;
        let places = geometry.places[group as usize];
        let (bitmap, in_use) = self.block_bitmap(group);
        // The kernel makes the bitmap of a group with nothing but a superblock itself. Not so the last
        // one's, whose end may need padding.
        let initialised = in_use.others || group + 1 == geometry.groups;
        let used_inodes = self.used_inodes(group);
        let free_inodes = geometry.inodes_per_group - used_inodes.len() as u32;
        let mut descriptor = GroupDesc {
            block_bitmap: places.block_bitmap,
            inode_bitmap: places.inode_bitmap,
            inode_table: places.inode_table,
            free_blocks: geometry.blocks_in(group) - in_use.blocks,
            free_inodes,
            used_dirs: used_inodes.clone().filter(|&ino| self.inodes.is_folder(Ino(ino))).count() as u32,
            flags: INODE_ZEROED,
            block_bitmap_csum: 0,
            inode_bitmap_csum: 0,
            itable_unused: free_inodes,
        };
        if initialised {
            descriptor.block_bitmap_csum = seeds.checksum.over(&bitmap).value();
        } else {
            descriptor.flags |= BLOCK_UNINIT;
        }
        if used_inodes.is_empty() {
            descriptor.flags |= INODE_UNINIT;
        } else {
            let bits = &self.inode_bitmap(group)[..geometry.inodes_per_group as usize / 8];
            descriptor.inode_bitmap_csum = seeds.checksum.over(bits).value();
        }
        descriptor
    }

    /// The inodes in use of a group: always its first ones.
    fn used_inodes(&self, group: u32) -> Range<u32> {
        let per_group = self.layout.geometry.inodes_per_group;
        let first = group * per_group + 1;
        let end = self.inodes.last().saturating_add(1).clamp(first, first + per_group);
        first..end
    }

    fn inode_bitmap(&self, group: u32) -> Bitmap {
        let mut bitmap = [0; BLOCK_SIZE];
        set(&mut bitmap, 0..self.used_inodes(group).len() as u64);
        set(&mut bitmap, u64::from(self.layout.geometry.inodes_per_group)..u64::from(BLOCKS_PER_GROUP));
        bitmap
    }

    /// A group's block bitmap: what is fixed, what files have, and padding past the end.
    fn block_bitmap(&self, group: u32) -> (Bitmap, InUse) {
        let geometry = &self.layout.geometry;
        let mut marks = Marks::new(group, geometry.blocks_in(group));
        let (start, end) = (marks.start, marks.end);
        let fixed = &geometry.fixed;
        let first = fixed.partition_point(|fixed| fixed.at.plus(u64::from(fixed.blocks)) <= start);
        for fixed in fixed[first..].iter().take_while(|fixed| fixed.at < end) {
            marks.mark(fixed.at, u64::from(fixed.blocks));
            marks.in_use.others |= fixed.what != Structure::Superblock;
        }
        let files = [0..self.layout.spare.start, self.layout.spare.end..self.layout.end.0];
        for range in self.layout.space.ranges_between(start, end) {
            for slots in &files {
                let from = slots.start.max(range.slot.0);
                let to = slots.end.min(range.slot.0 + range.len);
                if from < to {
                    marks.in_use.others |= marks.mark(range.at.plus(from - range.slot.0), to - from);
                }
            }
        }
        set(&mut marks.bitmap, u64::from(geometry.blocks_in(group))..u64::from(BLOCKS_PER_GROUP));
        (marks.bitmap, marks.in_use)
    }

    /// Writes a structure at the position of `out`.
    pub(super) fn write(&self, fixed: &Fixed, out: &mut Out<'_>) -> Result<(), Ext4Error> {
        match fixed.what {
            Structure::Superblock => self.write_superblock(fixed.group, out),
            Structure::BlockBitmap if self.bitmaps_written[fixed.group as usize] => {
                out.data(&self.block_bitmap(fixed.group).0)
            }
            Structure::InodeBitmap if !self.used_inodes(fixed.group).is_empty() => {
                out.data(&self.inode_bitmap(fixed.group))
            }
            Structure::InodeTable => self.write_table(fixed, out),
            Structure::BlockBitmap | Structure::InodeBitmap => {
                out.zeros(BLOCK_BYTES);
                Ok(())
            }
        }
    }

    fn write_superblock(&self, group: u32, out: &mut Out<'_>) -> Result<(), Ext4Error> {
        let mut block = [0; BLOCK_SIZE];
        block.put(if group == 0 { OFFSET } else { 0 }, &self.superblock.encode(group));
        out.data(&block)?;
        out.data(&self.descriptors)?;
        if group == 0 {
            return self.write_reserved(out);
        }
        out.zeros(u64::from(self.layout.geometry.reserved_gdt_blocks) * BLOCK_BYTES);
        Ok(())
    }

    /// The blocks reserved behind the first descriptors point at those behind the copies.
    fn write_reserved(&self, out: &mut Out<'_>) -> Result<(), Ext4Error> {
        let geometry = &self.layout.geometry;
        for reserved in 1 + geometry.gdt_blocks..1 + geometry.gdt_blocks + geometry.reserved_gdt_blocks {
            let mut block = [0; BLOCK_SIZE];
            for (pointer, group) in geometry.backups().enumerate() {
                block.put32(4 * pointer, group * BLOCKS_PER_GROUP + reserved);
            }
            out.data(&block)?;
        }
        Ok(())
    }

    fn write_table(&self, fixed: &Fixed, out: &mut Out<'_>) -> Result<(), Ext4Error> {
        let end = out.at() + u64::from(fixed.blocks) * BLOCK_BYTES;
        for ino in self.used_inodes(fixed.group) {
            match self.inodes.encode(Ino(ino)) {
                Some(bytes) => out.data(&bytes)?,
                None => out.data(&[0; INODE_SIZE])?,
            }
        }
        out.zeros(end - out.at());
        Ok(())
    }
}

/// What a group's blocks are used for.
struct InUse {
    /// How many are.
    blocks: u32,
    /// Whether any has more than a copy of the superblock and descriptors.
    others: bool,
}

/// A group's bitmap in the making.
struct Marks {
    start: Block,
    end: Block,
    bitmap: Bitmap,
    in_use: InUse,
}

impl Marks {
    fn new(group: u32, blocks: u32) -> Self {
        let start = Block(u64::from(group) * u64::from(BLOCKS_PER_GROUP));
        let in_use = InUse { blocks: 0, others: false };
        Self { start, end: start.plus(u64::from(blocks)), bitmap: [0; BLOCK_SIZE], in_use }
    }

    /// Marks what lies in the group of `len` blocks from `at`; says whether anything does.
    fn mark(&mut self, at: Block, len: u64) -> bool {
        let from = at.max(self.start);
        let to = at.plus(len).min(self.end);
        if from >= to {
            return false;
        }
        set(&mut self.bitmap, from.0 - self.start.0..to.0 - self.start.0);
        self.in_use.blocks += (to.0 - from.0) as u32;
        true
    }
}

/// Sets a range of bits, whole bytes at once.
fn set(bitmap: &mut Bitmap, bits: Range<u64>) {
    let mut bit = bits.start;
    while bit < bits.end {
        let byte = &mut bitmap[(bit / 8) as usize];
        if bit.is_multiple_of(8) && bits.end - bit >= 8 {
            *byte = 0xFF;
            bit += 8;
        } else {
            *byte |= 1 << (bit % 8);
            bit += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bits_are_set_exactly() {
        let mut bitmap = [0; BLOCK_SIZE];
        set(&mut bitmap, 3..21);
        set(&mut bitmap, 24..24);
        assert_eq!(bitmap[..4], [0xF8, 0xFF, 0x1F, 0]);
    }
}
