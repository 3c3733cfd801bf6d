//! A file tree in memory that points at its data: what layers merge into and what ext4 is made from.
//!
//! Names and targets are bytes. Hard links are several names of one [`Node`]. File contents stay
//! where they are: a node holds [`Extent`]s into [`Source`]s.

use smolpack_format::open_file;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A node's place in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A source's place in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// Something that file contents are read from.
#[derive(Clone, Debug)]
pub enum Source {
    /// An open file: an uncompressed layer tar, or one spooled to disk.
    File(Arc<File>),
    /// A file of a root folder, opened when its data is wanted.
    Path(PathBuf),
}

/// Seconds and nanoseconds since 1970; seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// 0 to 999,999,999, added to `seconds`.
    pub nanoseconds: u32,
}

/// A stretch of a file's contents; what no extent covers is zero (a hole).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file, bytes. Extents of a file are sorted and do not overlap.
    pub at: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// What holds the data.
    pub source: SourceId,
    /// Where in the source, bytes.
    pub offset: u64,
}

/// Owner, mode, times and extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub mode: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Whole names (`user.x`, `security.capability`) to values as `getxattr` returns them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A regular file of `size` bytes.
    File {
        /// Length in bytes.
        size: u64,
        /// Where the data is.
        extents: Vec<Extent>,
    },
    /// A folder: names to nodes, in byte order. `.` and `..` are not in it.
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    /// A symbolic link and its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
}

/// A file, folder, link or device.
#[derive(Clone, Debug)]
pub struct Node {
    /// Owner, mode, times, attributes.
    pub meta: Metadata,
    /// What it is.
    pub kind: Kind,
    /// Which layer it came from, 0 the lowest: data is laid down in this order.
    pub layer: u32,
}

/// The tree. The root folder is [`Tree::ROOT`]. Nodes that no name reaches any more stay in `nodes`
/// and are ignored by readers, who walk from the root.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    sources: Vec<Source>,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// The root folder.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree of one empty root folder, mode 0755, owned by root.
    #[must_use]
    pub fn new() -> Self {
        let meta = Metadata { mode: 0o755, ..Metadata::default() };
        Self {
            nodes: vec![Node { meta, kind: Kind::Directory(BTreeMap::new()), layer: 0 }],
            sources: Vec::new(),
        }
    }

    /// Adds a node that no folder names yet.
    ///
    /// # Panics
    /// Past 2^32 nodes; whoever feeds the tree bounds its entries far below.
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("tree of 2^32 nodes"));
        self.nodes.push(node);
        id
    }

    /// Adds a source of file data.
    ///
    /// # Panics
    /// Past 2^32 sources.
    pub fn add_source(&mut self, source: Source) -> SourceId {
        let id = SourceId(u32::try_from(self.sources.len()).expect("tree of 2^32 sources"));
        self.sources.push(source);
        id
    }

    /// The node of an identifier this tree gave out.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node of an identifier this tree gave out, to change.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// How many nodes there are, reachable or not: one more than the highest [`NodeId`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The highest layer that a node is of.
    #[must_use]
    pub fn top_layer(&self) -> u32 {
        self.nodes.iter().map(|node| node.layer).max().unwrap_or(0)
    }

    /// The same files, all in a folder of this name.
    #[must_use]
    pub fn below(&self, name: &[u8]) -> Self {
        let mut tree = self.clone();
        let root = tree.add(self.node(Self::ROOT).clone());
        let meta = Metadata { mode: 0o755, ..Metadata::default() };
        let kind = Kind::Directory(BTreeMap::from([(name.into(), root)]));
        *tree.node_mut(Self::ROOT) = Node { meta, kind, layer: 0 };
        tree
    }

    /// Never: a tree has its root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The entries of a folder, in byte order; `None` where `id` is no folder.
    #[must_use]
    pub fn entries(&self, id: NodeId) -> Option<&BTreeMap<Box<[u8]>, NodeId>> {
        match &self.node(id).kind {
            Kind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entries of a folder, to change.
    pub fn entries_mut(&mut self, id: NodeId) -> Option<&mut BTreeMap<Box<[u8]>, NodeId>> {
        match &mut self.node_mut(id).kind {
            Kind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// The contents of the file at `path`, no symbolic link followed; `None` where there is no such file, it
    /// is longer than `max` bytes, or it cannot be read.
    #[must_use]
    pub fn read(&self, path: &[&[u8]], max: u64) -> Option<Vec<u8>> {
        let id = path.iter().try_fold(Self::ROOT, |id, name| self.entries(id)?.get(*name).copied())?;
        let Kind::File { size, extents } = &self.node(id).kind else { return None };
        let mut bytes = vec![0; usize::try_from(*size).ok().filter(|_| *size <= max)?];
        for Extent { at, len, source, offset } in extents {
            let part = bytes.get_mut(*at as usize..(at + len) as usize)?;
            self.open(*source).ok()?.read_exact_at(part, *offset).ok()?;
        }
        Some(bytes)
    }

    /// Opens a source for positioned reads.
    ///
    /// # Errors
    /// Where the file of a [`Source::Path`] cannot be opened.
    pub fn open(&self, source: SourceId) -> io::Result<Arc<File>> {
        match &self.sources[source.0 as usize] {
            Source::File(file) => Ok(Arc::clone(file)),
            Source::Path(path) => Ok(Arc::new(open_file(path)?)),
        }
    }
}
