//! Makes trees for tests: data comes from one temporary file.

use smolpack_builder::tree::{Extent, Kind, Metadata, Node, NodeId, Source, SourceId, Timestamp, Tree};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

/// A tree in the making.
pub(crate) struct Maker {
    pub(crate) tree: Tree,
    file: File,
    source: SourceId,
    written: u64,
}

/// Metadata of mode `mode`, owned by root, of a fixed time.
pub(crate) fn meta(mode: u16) -> Metadata {
    let mtime = Timestamp { seconds: 1_700_000_000, nanoseconds: 123_456_789 };
    Metadata { mode, mtime, ..Metadata::default() }
}

/// An empty folder.
pub(crate) fn folder() -> Kind {
    Kind::Directory(BTreeMap::new())
}

impl Maker {
    pub(crate) fn new() -> Self {
        let file = tempfile::tempfile().unwrap();
        let mut tree = Tree::new();
        let source = tree.add_source(Source::File(Arc::new(file.try_clone().unwrap())));
        Self { tree, file, source, written: 0 }
    }

    /// Adds a node under a name in a folder.
    pub(crate) fn add(&mut self, parent: NodeId, name: &[u8], meta: Metadata, kind: Kind) -> NodeId {
        self.add_in_layer(parent, name, meta, kind, 0)
    }

    /// Adds a node of a layer.
    pub(crate) fn add_in_layer(
        &mut self,
        parent: NodeId,
        name: &[u8],
        meta: Metadata,
        kind: Kind,
        layer: u32,
    ) -> NodeId {
        let id = self.tree.add(Node { meta, kind, layer });
        self.link(parent, name, id);
        id
    }

    /// Gives a node one more name.
    pub(crate) fn link(&mut self, parent: NodeId, name: &[u8], id: NodeId) {
        self.tree.entries_mut(parent).unwrap().insert(name.into(), id);
    }

    /// Adds a folder of mode 0755.
    pub(crate) fn folder(&mut self, parent: NodeId, name: &[u8]) -> NodeId {
        self.add(parent, name, meta(0o755), folder())
    }

    /// Adds a file with these contents.
    pub(crate) fn file(&mut self, parent: NodeId, name: &[u8], contents: &[u8]) -> NodeId {
        let kind = self.contents(contents.len() as u64, &[(0, contents)]);
        self.add(parent, name, meta(0o644), kind)
    }

    /// A file of `size` bytes with data at some places.
    pub(crate) fn contents(&mut self, size: u64, pieces: &[(u64, &[u8])]) -> Kind {
        let pieces = pieces.iter().filter(|(_, bytes)| !bytes.is_empty());
        let extents = pieces
            .map(|&(at, bytes)| {
                self.file.write_all(bytes).unwrap();
                let offset = self.written;
                self.written += bytes.len() as u64;
                Extent { at, len: bytes.len() as u64, source: self.source, offset }
            })
            .collect();
        Kind::File { size, extents }
    }
}
