//! The blocks that files can have, numbered without the fixed structures between them.
//!
//! Files take these numbers one after another, so that a place is one number, and the writer streams
//! them in order. Where on the disk a number is follows from the geometry alone.

use super::geometry::Geometry;
use crate::ext4::spec::Block;

/// A block's number among those that files can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::ext4) struct Slot(pub(in crate::ext4) u64);

impl Slot {
    /// The slot `n` further on.
    pub(in crate::ext4) fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

/// Slots that lie together on the disk.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Range {
    /// The first slot.
    pub(in crate::ext4) slot: Slot,
    /// Where it is.
    pub(in crate::ext4) at: Block,
    /// How many.
    pub(in crate::ext4) len: u64,
}

/// All slots: ranges without gaps between their slots, none empty.
#[derive(Clone, Debug)]
pub(in crate::ext4) struct Space {
    ranges: Vec<Range>,
    len: u64,
}

impl Space {
    /// What a geometry leaves free.
    pub(in crate::ext4) fn new(geometry: &Geometry) -> Self {
        let mut space = Self { ranges: Vec::new(), len: 0 };
        let mut free = Block(0);
        for fixed in &geometry.fixed {
            space.add(free, fixed.at.0 - free.0);
            free = fixed.at.plus(u64::from(fixed.blocks));
        }
        space.add(free, geometry.blocks - free.0);
        space
    }

    fn add(&mut self, at: Block, len: u64) {
        if len > 0 {
            self.ranges.push(Range { slot: Slot(self.len), at, len });
            self.len += len;
        }
    }

    /// How many slots there are.
    pub(in crate::ext4) fn len(&self) -> u64 {
        self.len
    }

    /// Where a slot is; it must be one of these.
    pub(in crate::ext4) fn block(&self, slot: Slot) -> Block {
        let range = self.ranges[self.range_of(slot)];
        range.at.plus(slot.0 - range.slot.0)
    }

    /// The runs on the disk of `len` slots from `slot`, which must be among these.
    pub(in crate::ext4) fn runs(&self, slot: Slot, len: u64) -> impl Iterator<Item = (Block, u64)> {
        let first = if len == 0 { self.ranges.len() } else { self.range_of(slot) };
        let end = slot.0 + len;
        self.ranges[first..].iter().take_while(move |range| range.slot.0 < end).map(move |range| {
            let from = slot.0.max(range.slot.0);
            let to = end.min(range.slot.0 + range.len);
            (range.at.plus(from - range.slot.0), to - from)
        })
    }

    /// The ranges that have blocks from `from` to before `to`.
    pub(in crate::ext4) fn ranges_between(&self, from: Block, to: Block) -> impl Iterator<Item = &Range> {
        let first = self.ranges.partition_point(|range| range.at.plus(range.len) <= from);
        self.ranges[first..].iter().take_while(move |range| range.at < to)
    }

    fn range_of(&self, slot: Slot) -> usize {
        self.ranges.partition_point(|range| range.slot <= slot) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space { ranges: Vec::new(), len: 0 };
        space.add(Block(10), 5);
        space.add(Block(20), 0);
        space.add(Block(30), 5);
        space
    }

    #[test]
    fn slots_skip_what_is_fixed() {
        let blocks: Vec<u64> = (0..10).map(|slot| space().block(Slot(slot)).0).collect();
        assert_eq!(blocks, [10, 11, 12, 13, 14, 30, 31, 32, 33, 34]);
    }

    #[test]
    fn runs_split_where_the_disk_does() {
        let runs = |slot, len| space().runs(Slot(slot), len).collect::<Vec<_>>();
        assert_eq!(runs(3, 4), [(Block(13), 2), (Block(30), 2)]);
        assert_eq!(runs(5, 5), [(Block(30), 5)]);
        assert_eq!(runs(10, 0), []);
    }

    #[test]
    fn ranges_between_are_those_that_touch() {
        let between = |from, to| space().ranges_between(Block(from), Block(to)).count();
        assert_eq!((between(0, 10), between(0, 11), between(14, 31), between(15, 30)), (0, 1, 2, 0));
    }
}
