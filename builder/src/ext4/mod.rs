//! Writes a [`Tree`] as an ext4 file system: any size, one pass forward, without root, loop devices or
//! mkfs.
//!
//! - `spec` has the bytes of each structure, under the names of the kernel's documentation.
//! - `layout` decides where everything goes: pure arithmetic over the tree and the disk's size.
//! - `write` streams the disk in block order, reading files' data ahead on a second thread.
//!
//! The same tree and options give the same bytes. Places follow from the size first and from the layers
//! next, so that a change of an upper layer leaves most of the disk as it was: see `layout::Layout`.
//! The features are those of `mkfs.ext4`, journal and checksums included, with room reserved to grow to
//! 1 TiB while mounted; unused inode tables and bitmaps are marked and never written.

mod error;
mod layout;
mod spec;
mod write;

use crate::sink::BlockSink;
use crate::tree::{Timestamp, Tree};
pub use error::{EntryProblem, Ext4Error};
use layout::survey::Survey;
use layout::{Layout, smallest_size};
use spec::hash::HashSeed;
use spec::superblock::{self, LABEL_MAX};
use std::collections::BTreeMap;

/// Bytes of a superblock.
pub(crate) const SUPERBLOCK_SIZE: usize = superblock::SIZE;

/// Takes out of a superblock that values of attributes have inodes of their own: for readers that refuse such
/// disks and do not look at attributes, whose inodes no folder names.
pub(crate) fn hide_large_xattrs(bytes: &mut [u8; SUPERBLOCK_SIZE]) {
    superblock::hide_large_xattrs(bytes);
}

/// The largest disk, bytes: block numbers in the resize inode's map have 32 bits.
const SIZE_MAX: u64 = (u32::MAX as u64) * spec::BLOCK_BYTES;

/// What a file system is made with, beside its tree.
#[derive(Clone, Debug)]
pub struct Options {
    /// The disk's size in bytes, a multiple of 4096. Up to a few MiB at the end may stay unused where
    /// they would make too short a block group.
    pub size: u64,
    /// The file system's UUID; all checksums start from it.
    pub uuid: [u8; 16],
    /// What the hashes of names in large folders start from.
    pub hash_seed: [u8; 16],
    /// The volume's label, at most 16 bytes.
    pub label: Option<String>,
    /// When the file system says it was made. Files have their own times.
    pub created: Timestamp,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Blocks of 4096 bytes in the file system.
    pub blocks: u64,
    /// Of these, free for files.
    pub free_blocks: u64,
    /// Inodes in the file system.
    pub inodes: u64,
    /// Of these, free.
    pub free_inodes: u64,
    /// Attributes left out because Linux has no namespace for them (`com.apple.…`), by name, and from
    /// how many files.
    pub foreign_xattrs: BTreeMap<Vec<u8>, u64>,
}

/// Writes `tree` to `sink`: exactly `options.size` bytes.
///
/// # Errors
/// Before anything is written: a bad size or label, an entry that ext4 cannot hold, or a tree that does
/// not fit, with the size it needs. Later: a source that cannot be read or is shorter than the tree
/// says, or what the sink reports.
pub fn write(tree: &Tree, options: &Options, sink: &mut dyn BlockSink) -> Result<Summary, Ext4Error> {
    let size = options.size;
    if !size.is_multiple_of(spec::BLOCK_BYTES) || size > SIZE_MAX {
        return Err(Ext4Error::BadSize { size });
    }
    let label_len = options.label.as_ref().map_or(0, String::len);
    if label_len > LABEL_MAX {
        return Err(Ext4Error::Label { len: label_len });
    }
    let survey = Survey::new(tree, Some(HashSeed::new(&options.hash_seed)), options.created)?;
    let Some(layout) = Layout::new(&survey, size) else {
        let needed = smallest_size(&survey, size).ok_or(Ext4Error::TooLarge)?;
        return Err(Ext4Error::TooSmall { size, needed });
    };
    let (free_blocks, free_inodes) = write::write(&layout, options, sink)?;
    Ok(Summary {
        blocks: layout.geometry.blocks,
        free_blocks,
        inodes: u64::from(layout.geometry.inodes()),
        free_inodes: u64::from(free_inodes),
        foreign_xattrs: survey.foreign,
    })
}

/// The smallest disk, in bytes and to a mebibyte, that `tree` fits whatever the hash seed. It leaves
/// no room worth counting on.
///
/// # Errors
/// An entry that ext4 cannot hold, or more data than the largest disk has room for.
pub fn minimum_size(tree: &Tree) -> Result<u64, Ext4Error> {
    let survey = Survey::new(tree, None, Timestamp::default())?;
    smallest_size(&survey, 0).ok_or(Ext4Error::TooLarge)
}
