//! Folder blocks: linear entries, the nodes of the hash index, and the tails that hold their checksums.

use super::checksum::Checksum;
use super::{BLOCK_SIZE, Ino, Put};

/// Bytes of a leaf's tail.
const TAIL: usize = 12;

/// Bytes of entries that a leaf holds.
pub(in crate::ext4) const LEAF_ROOM: usize = BLOCK_SIZE - TAIL;

/// The longest name, bytes.
pub(in crate::ext4) const NAME_MAX: usize = 255;

/// How many index entries the root of a hash tree holds: the two dot entries and the tree's
/// description come first, the checksum last.
pub(in crate::ext4) const ROOT_LIMIT: usize = (BLOCK_SIZE - ROOT_HEADER - DX_TAIL) / DX_ENTRY;

/// How many an inner node holds.
pub(in crate::ext4) const NODE_LIMIT: usize = (BLOCK_SIZE - NODE_HEADER - DX_TAIL) / DX_ENTRY;

const ROOT_HEADER: usize = 32;
const NODE_HEADER: usize = 8;
const DX_ENTRY: usize = 8;
const DX_TAIL: usize = 8;

/// `DX_HASH_HALF_MD4`; the superblock's flag makes it the unsigned variant.
const HASH_VERSION: u8 = 1;

/// What an entry says its inode is, so that listing a folder need not read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::ext4) enum FileType {
    Regular = 1,
    Directory = 2,
    CharDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
}

/// A name in a folder.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Entry<'a> {
    /// 1 to 255 bytes.
    pub(in crate::ext4) name: &'a [u8],
    /// What it names.
    pub(in crate::ext4) ino: Ino,
    /// What that is.
    pub(in crate::ext4) file_type: FileType,
}

/// The room an entry takes, bytes: its header and name, rounded up to four.
pub(in crate::ext4) fn entry_len(name: &[u8]) -> usize {
    (8 + name.len()).next_multiple_of(4)
}

fn put_entry(block: &mut [u8], at: usize, entry: &Entry<'_>, rec_len: usize) {
    block.put32(at, entry.ino.0);
    block.put16(at + 4, rec_len as u16);
    block.put8(at + 6, entry.name.len() as u8);
    block.put8(at + 7, entry.file_type as u8);
    block.put(at + 8, entry.name);
}

/// Fills a zeroed block with entries that fit [`LEAF_ROOM`]; the last takes all room left.
pub(in crate::ext4) fn put_leaf(block: &mut [u8], entries: &[Entry<'_>], checksum: Checksum) {
    let mut at = 0;
    for (i, entry) in entries.iter().enumerate() {
        let last = i + 1 == entries.len();
        let rec_len = if last { LEAF_ROOM - at } else { entry_len(entry.name) };
        put_entry(block, at, entry, rec_len);
        at += rec_len;
    }
    block.put16(LEAF_ROOM + 4, TAIL as u16);
    block.put8(LEAF_ROOM + 7, 0xDE);
    let sum = checksum.over(&block[..LEAF_ROOM]);
    block.put32(LEAF_ROOM + 8, sum.value());
}

/// The entries `.` and `..`.
pub(in crate::ext4) fn dots(own: Ino, parent: Ino) -> [Entry<'static>; 2] {
    let dot = |name, ino| Entry { name, ino, file_type: FileType::Directory };
    [dot(b".", own), dot(b"..", parent)]
}

/// An index entry: names from `hash` on are in (or under) block `block` of the folder.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct IndexEntry {
    /// The first hash there, with the lowest bit set where the block before ends with the same one.
    /// A node's first entry has no hash of its own.
    pub(in crate::ext4) hash: u32,
    /// A block of the folder, from 0.
    pub(in crate::ext4) block: u32,
}

/// Fills a zeroed block with the root of a hash tree over `indirect_levels` levels of nodes.
pub(in crate::ext4) fn put_root(
    block: &mut [u8],
    dots: &[Entry<'_>; 2],
    indirect_levels: u8,
    entries: &[IndexEntry],
    checksum: Checksum,
) {
    put_entry(block, 0, &dots[0], 12);
    put_entry(block, 12, &dots[1], BLOCK_SIZE - 12);
    block.put8(28, HASH_VERSION);
    block.put8(29, 8); // the length of this description
    block.put8(30, indirect_levels);
    put_index(block, ROOT_HEADER, ROOT_LIMIT, entries, checksum);
}

/// Fills a zeroed block with an inner node of a hash tree.
pub(in crate::ext4) fn put_node(block: &mut [u8], entries: &[IndexEntry], checksum: Checksum) {
    block.put16(4, BLOCK_SIZE as u16); // one empty entry over the whole block, for those who know no index
    put_index(block, NODE_HEADER, NODE_LIMIT, entries, checksum);
}

/// The index entries and the checksum, which covers what is used of the block and half of its tail.
fn put_index(block: &mut [u8], start: usize, limit: usize, entries: &[IndexEntry], checksum: Checksum) {
    for (i, entry) in entries.iter().enumerate() {
        block.put32(start + i * DX_ENTRY, entry.hash);
        block.put32(start + i * DX_ENTRY + 4, entry.block);
    }
    block.put16(start, limit as u16);
    block.put16(start + 2, entries.len() as u16);
    let sum = checksum.over(&block[..start + entries.len() * DX_ENTRY]).over(&[0; DX_TAIL]);
    block.put32(start + limit * DX_ENTRY + 4, sum.value());
}
