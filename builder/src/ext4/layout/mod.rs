//! Pure arithmetic: what a tree needs ([`survey`]), what a disk has ([`geometry`], [`space`]), and which
//! block everything gets ([`Layout`]). Nothing here reads data or writes.

pub(super) mod attributes;
pub(super) mod folder;
pub(super) mod geometry;
pub(super) mod mapping;
pub(super) mod space;
pub(super) mod survey;

use super::spec::BLOCK_BYTES;
use crate::tree::Kind;
use geometry::Geometry;
use mapping::{Run, data_runs, extents, tree_blocks, whole};
use space::{Slot, Space};
use std::ops::Range;
use survey::Survey;

/// The smallest step of the room for folders and the like, blocks: 256 KiB.
const RESERVE_STEP: u64 = 64;

/// Which slots everything has. In their order:
///
/// 1. the journal and the map of the resize inode, places that only the disk's size decides;
/// 2. folders, long symlinks, attributes: the pieces that a change of the tree touches, rounded up with
///    room to spare, so that a few more of them move nothing behind them;
/// 3. files' data, layer by layer.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    /// What was laid out.
    pub(super) survey: &'a Survey<'a>,
    /// The disk.
    pub(super) geometry: Geometry,
    /// Its free blocks.
    pub(super) space: Space,
    /// The map of the resize inode.
    pub(super) resize_map: Slot,
    /// The contents of each member.
    pub(super) starts: Vec<Slot>,
    /// The attribute block of each member that has one, in the order of members.
    pub(super) attribute_blocks: Vec<(usize, Slot)>,
    /// Each value with an inode of its own.
    pub(super) values: Vec<Slot>,
    /// The spare room before files' data.
    pub(super) spare: Range<u64>,
    /// The first slot that nothing has.
    pub(super) end: Slot,
}

/// The journal takes the first slots.
pub(super) const JOURNAL: Slot = Slot(0);

/// Hands out slots.
struct Cursor<'s> {
    space: &'s Space,
    next: u64,
}

impl Cursor<'_> {
    fn take(&mut self, blocks: u64) -> Option<Slot> {
        let slot = Slot(self.next);
        self.next = self.next.checked_add(blocks).filter(|&next| next <= self.space.len())?;
        Some(slot)
    }

    /// Takes slots for contents and for the extent tree that their places make necessary.
    fn take_file(&mut self, blocks: u64, runs: impl Iterator<Item = Run>) -> Option<Slot> {
        let slot = self.take(blocks)?;
        let extents = extents(self.space, slot, runs).count();
        self.take(tree_blocks(extents as u64))?;
        Some(slot)
    }
}

impl<'a> Layout<'a> {
    /// Lays a tree out on a disk of `size` bytes; `None` where it does not fit.
    pub(super) fn new(survey: &'a Survey<'a>, size: u64) -> Option<Self> {
        let geometry = Geometry::new(size, survey.inodes())?;
        let space = Space::new(&geometry);
        let mut cursor = Cursor { space: &space, next: 0 };
        cursor.take(u64::from(geometry.journal_blocks))?;
        let resize_map = cursor.take(1)?;
        let mut starts = vec![Slot(0); survey.members.len()];
        let mut attribute_blocks = Vec::new();
        for (place, start) in starts.iter_mut().enumerate().filter(|(place, _)| !is_file(survey, *place)) {
            let blocks = survey.members[place].blocks;
            *start = cursor.take_file(blocks, whole(blocks))?;
        }
        for place in 0..survey.members.len() {
            if survey.attributes.get(&place).is_some_and(|attributes| !attributes.block.is_empty()) {
                attribute_blocks.push((place, cursor.take(1)?));
            }
        }
        let value_blocks = |bytes: &[u8]| (bytes.len() as u64).div_ceil(BLOCK_BYTES);
        let values = survey.values.iter().map(|value| cursor.take(value_blocks(value.bytes)));
        let values = values.collect::<Option<Vec<Slot>>>()?;
        let spare = cursor.next..round_up(cursor.next);
        cursor.take(spare.end - spare.start)?;
        for (place, start) in starts.iter_mut().enumerate() {
            if let Kind::File { extents, .. } = &survey.node(place).kind {
                *start = cursor.take_file(survey.members[place].blocks, data_runs(extents))?;
            }
        }
        let end = Slot(cursor.next);
        Some(Self { survey, geometry, space, resize_map, starts, attribute_blocks, values, spare, end })
    }

    /// The attribute block of a member.
    pub(super) fn attribute_block(&self, place: usize) -> Option<Slot> {
        let index = self.attribute_blocks.binary_search_by_key(&place, |&(place, _)| place).ok()?;
        Some(self.attribute_blocks[index].1)
    }
}

fn is_file(survey: &Survey<'_>, place: usize) -> bool {
    matches!(survey.node(place).kind, Kind::File { .. })
}

/// Rounds to a step between a sixteenth and an eighth of the number, so that what follows stays in
/// place when a little is added before it.
fn round_up(slots: u64) -> u64 {
    slots.next_multiple_of((slots.next_power_of_two() / 16).max(RESERVE_STEP))
}

/// The smallest size over `above` bytes, to a mebibyte, that a tree fits; `None` past 16 TiB.
pub(super) fn smallest_size(survey: &Survey<'_>, above: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    let fits = |steps: u64| Layout::new(survey, steps * STEP).is_some();
    let mut small = above / STEP;
    let mut large = (small + 1).next_power_of_two();
    while !fits(large) {
        (small, large) = (large, large * 2);
        if large > super::SIZE_MAX / STEP {
            return None;
        }
    }
    while large - small > 1 {
        let middle = small.midpoint(large);
        if fits(middle) {
            large = middle;
        } else {
            small = middle;
        }
    }
    Some(large * STEP)
}
