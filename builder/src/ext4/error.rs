//! What can go wrong between a tree and its disk.

use crate::tree::{Kind, NodeId, Tree};
use std::io;

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Ext4Error {
    /// The disk's size is no multiple of 4096 bytes, or over 16 TiB.
    #[error("a disk of {size} bytes: ext4 here wants a multiple of 4096 bytes, under 16 TiB")]
    BadSize {
        /// The size asked for, bytes.
        size: u64,
    },
    /// The tree does not fit.
    #[error("the files do not fit a disk of {size} bytes: it must have at least {needed} bytes")]
    TooSmall {
        /// The size asked for, bytes.
        size: u64,
        /// A size over it that fits, bytes.
        needed: u64,
    },
    /// The tree does not fit the largest disk.
    #[error("the files do not fit a disk of 16 TiB, the largest")]
    TooLarge,
    /// The label is too long.
    #[error("the label has {len} bytes: ext4 holds 16")]
    Label {
        /// Its length, bytes.
        len: usize,
    },
    /// An entry that ext4 cannot hold.
    #[error("/{path}: {problem}")]
    Entry {
        /// Its path; bytes that are no UTF-8 are replaced.
        path: String,
        /// What is wrong with it.
        problem: EntryProblem,
    },
    /// A file's data could not be read.
    #[error("/{path}: cannot read its data")]
    Read {
        /// The file's path in the image.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The destination failed.
    #[error("cannot write the disk")]
    Write(#[source] io::Error),
    /// The host gives no thread to read files with.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Why an entry cannot be in ext4.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// A name that is empty, over 255 bytes, `.`, `..`, or has a slash or a zero byte.
    #[error("a name must have 1 to 255 bytes, none of them a slash or zero, and not be a dot or two")]
    Name,
    /// A folder with two names.
    #[error("a folder cannot have two names")]
    DirectoryLink,
    /// More hard links than an inode counts.
    #[error("{0} hard links: ext4 holds 65000")]
    Links(u32),
    /// More entries than the hash tree of a folder holds.
    #[error("too many entries in one folder")]
    FullDirectory,
    /// The name is needed for what fsck finds.
    #[error("ext4 keeps this name for a folder: rename or remove it")]
    LostFound,
    /// A symlink's target is empty or over 4095 bytes.
    #[error("a symlink's target of {0} bytes: it must have 1 to 4095")]
    Target(usize),
    /// A file over what 32 bits of blocks address.
    #[error("{0} bytes: ext4 holds files up to 17592186040320")]
    Size(u64),
    /// Extents that overlap, are out of order, empty, or past the file's end.
    #[error("its data extents are out of order or past its end, at byte {0}")]
    Extents(u64),
    /// A device's number is too large.
    #[error("device {0}:{1}: ext4 holds numbers up to 4095:1048575")]
    Device(u32, u32),
    /// An ACL that is not in the form of `getxattr`.
    #[error("the value of {0} is no POSIX ACL")]
    Acl(String),
    /// An attribute's name or value is too long.
    #[error("the attribute {0} is too long: names have at most 255 bytes, values 65536")]
    LongXattr(String),
    /// The entries of all attributes take more than a block.
    #[error("too many extended attributes: their names take more than a block")]
    ManyXattrs,
}

impl Ext4Error {
    /// An error at a node, with the first path that leads to it.
    pub(super) fn entry(tree: &Tree, id: NodeId, problem: EntryProblem) -> Self {
        Self::Entry { path: path_of(tree, id), problem }
    }

    /// An error at a name in a folder.
    pub(super) fn name(tree: &Tree, folder: NodeId, name: &[u8], problem: EntryProblem) -> Self {
        let folder = path_of(tree, folder);
        let separator = if folder.is_empty() { "" } else { "/" };
        Self::Entry { path: format!("{folder}{separator}{}", String::from_utf8_lossy(name)), problem }
    }
}

/// A node's first path, without the leading slash. Searched for: paths are wanted for errors only.
pub(super) fn path_of(tree: &Tree, wanted: NodeId) -> String {
    let mut folders = vec![(Tree::ROOT, String::new())];
    let mut seen = vec![false; tree.len()];
    while let Some((folder, path)) = folders.pop() {
        let Kind::Directory(entries) = &tree.node(folder).kind else { continue };
        for (name, &id) in entries {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            if id == wanted {
                return path;
            }
            if !std::mem::replace(&mut seen[id.0 as usize], true) {
                folders.push((id, path + "/"));
            }
        }
    }
    String::new()
}
