//! Layers on top of each other: entries go into a tree by the rules of the OCI image specification.
//!
//! Where the specification is silent this does what `umoci unpack` does. In short: whiteouts hide what
//! lower layers put there, never what the same layer did, whatever the order in its tar; symbolic links
//! on the way to an entry are followed, inside the root; folders merge, everything else replaces.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use super::error::show;
use super::limits::Limits;
use super::tar::{Entry, EntryKind, Stored};
use crate::tree::{Extent, Kind, Metadata, Node, NodeId, SourceId, Timestamp, Tree};

/// Symbolic links followed on the way to one entry.
const MAX_LINKS: usize = 255;
/// The longest name in a folder that Linux allows.
const MAX_NAME: usize = 255;
/// The longest target of a symbolic link.
const MAX_TARGET: usize = 4095;

const WHITEOUT: &[u8] = b".wh.";
/// Marks of the aufs driver, of no meaning in an image, but for [`OPAQUE`].
const AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Attributes that overlayfs keeps, of which one says that a folder is opaque.
const OVERLAY: &[u8] = b"trusted.overlay.";
const OPAQUE_FOLDER: &[u8] = b"trusted.overlay.opaque";
/// Files that lazy-pulling formats add to a layer's root.
const NOT_CONTENT: [&[u8]; 3] = [b"stargz.index.json", b".prefetch.landmark", b".no.prefetch.landmark"];

/// How to read an archive's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A layer: whiteouts and opaque marks mean something.
    Layer,
    /// A root file system: every name is itself.
    Root,
    /// The upper folder of an overlay: devices 0:0 hide, folders may be opaque. (Documentation/filesystems/
    /// overlayfs.rst, "whiteouts and opaque directories".)
    Upper,
}

/// Why an entry cannot be merged; the caller knows its layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MergeError {
    /// Entry, what is wrong.
    Corrupt(String, String),
    /// Entry, which bound.
    Limit(String, String),
}

/// Builds the tree, layer after layer.
pub(super) struct Merger {
    tree: Tree,
    limits: Limits,
    dialect: Dialect,
    layer: u32,
    entries: u64,
    source: SourceId,
    /// What this layer put there: whiteouts spare it. Folders by themselves, other names by folder.
    own_folders: HashSet<NodeId>,
    own_names: HashSet<(NodeId, Box<[u8]>)>,
}

/// The way to a folder: its ancestors from the root down, itself last.
type Way = Vec<NodeId>;

impl Merger {
    pub(super) fn new(limits: Limits, dialect: Dialect) -> Self {
        Self {
            tree: Tree::new(),
            limits,
            dialect,
            layer: 0,
            entries: 0,
            source: SourceId(0),
            own_folders: HashSet::new(),
            own_names: HashSet::new(),
        }
    }

    /// Goes on where a tree is whole: one more layer.
    pub(super) fn on(tree: Tree, limits: Limits, dialect: Dialect) -> Self {
        Self { layer: tree.top_layer() + 1, tree, ..Self::new(limits, dialect) }
    }

    /// The data of entries from now on lies in `source`.
    pub(super) fn set_source(&mut self, source: crate::tree::Source) {
        self.source = self.tree.add_source(source);
    }

    /// Makes the folders on the way to `path` that are missing, and it.
    pub(super) fn folder(&mut self, path: &[u8]) -> Result<(), MergeError> {
        match self.make(&clean(path)) {
            Ok(_) => Ok(()),
            Err(why) => Err(why.of(path)),
        }
    }

    /// Whether there is a folder at `path`, or a link to one.
    pub(super) fn is_folder(&mut self, path: &[u8]) -> bool {
        matches!(self.find(&clean(path), Missing::Stop), Ok(Some(_)))
    }

    /// Begins layer number `layer`, 0 the lowest, whose data lies in `source`.
    pub(super) fn begin(&mut self, layer: u32, source: crate::tree::Source) {
        self.layer = layer;
        self.set_source(source);
        self.own_folders.clear();
        self.own_names.clear();
    }

    pub(super) fn into_tree(self) -> Tree {
        self.tree
    }

    /// Puts an entry of the current layer into the tree; offsets of its data count from `base` in the source.
    pub(super) fn apply(&mut self, entry: Entry, base: u64) -> Result<(), MergeError> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            let what = format!("more than {} entries", self.limits.entries);
            return Err(MergeError::Limit(show(&entry.path), what));
        }
        let Entry { path, meta, kind } = entry;
        self.place(&path, meta, kind, base).map_err(|why| why.of(&path))
    }

    fn place(&mut self, path: &[u8], mut meta: Metadata, kind: EntryKind, base: u64) -> Result<(), Why> {
        let parts = clean(path);
        if self.dialect == Dialect::Upper {
            if kind == (EntryKind::CharDevice { major: 0, minor: 0 }) {
                return self.remove(&parts);
            }
            // Its names in other layers must not show: the folder begins anew.
            if meta.xattrs.get(OPAQUE_FOLDER).is_some_and(|value| value == b"y") {
                self.remove(&parts)?;
            }
            meta.xattrs.retain(|name, _| !name.starts_with(OVERLAY));
        }
        let Some((name, parents)) = parts.split_last() else {
            return self.root(meta, &kind);
        };
        if self.dialect == Dialect::Layer {
            if name.starts_with(WHITEOUT) {
                return self.whiteout(parents, name);
            }
            if parents.is_empty() && NOT_CONTENT.contains(name) {
                return Ok(());
            }
        }
        if name.len() > MAX_NAME || name.contains(&0) {
            return Err(Why::Corrupt(format!("its name is not one of 1 to {MAX_NAME} bytes")));
        }
        match kind {
            EntryKind::HardLink(target) => self.hard_link(parents, name, &target),
            EntryKind::Directory => self.directory(parents, name, meta),
            other => self.leaf(parents, name, meta, other, base),
        }
    }

    /// An entry for the root itself.
    fn root(&mut self, meta: Metadata, kind: &EntryKind) -> Result<(), Why> {
        if *kind != EntryKind::Directory {
            return Err(Why::Corrupt("it would make the root something other than a folder".into()));
        }
        self.tree.node_mut(Tree::ROOT).meta = meta;
        Ok(())
    }

    fn hard_link(&mut self, parents: &[&[u8]], name: &[u8], target: &[u8]) -> Result<(), Why> {
        let missing =
            || Why::Corrupt(format!("the target of its hard link, {}, does not exist", show(target)));
        let way = self.make(parents)?;
        // What has the name goes first, as in every unpacker: a link to itself or into itself is none.
        if let Some(entries) = self.tree.entries_mut(last(&way)) {
            entries.remove(name);
        }
        let target_parts = clean(target);
        let (target_name, target_parents) = target_parts.split_last().ok_or_else(missing)?;
        let folder = self.find(target_parents, Missing::Stop)?.ok_or_else(missing)?;
        let node = self.child(last(&folder), target_name).ok_or_else(missing)?;
        if matches!(self.tree.node(node).kind, Kind::Directory(_)) {
            return Err(Why::Corrupt(format!("the target of its hard link, {}, is a folder", show(target))));
        }
        self.put(&way, name, node);
        Ok(())
    }

    fn directory(&mut self, parents: &[&[u8]], name: &[u8], meta: Metadata) -> Result<(), Why> {
        let mut way = self.make(parents)?;
        let old = self.child(last(&way), name).filter(|id| self.tree.entries(*id).is_some());
        let id = if let Some(id) = old {
            self.tree.node_mut(id).meta = meta;
            id
        } else {
            let id = self.tree.add(Node { meta, kind: Kind::Directory(BTreeMap::new()), layer: self.layer });
            self.insert(last(&way), name, id);
            id
        };
        way.push(id);
        self.check_depth(&way)?;
        self.own(&way);
        Ok(())
    }

    fn leaf(
        &mut self,
        parents: &[&[u8]],
        name: &[u8],
        mut meta: Metadata,
        kind: EntryKind,
        base: u64,
    ) -> Result<(), Why> {
        let kind = self.node_kind(kind, base)?;
        if matches!(kind, Kind::Symlink(_)) {
            // Linux gives every symbolic link this mode, whatever the tar says.
            meta.mode = 0o777;
        }
        let way = self.make(parents)?;
        let id = self.tree.add(Node { meta, kind, layer: self.layer });
        self.put(&way, name, id);
        Ok(())
    }

    fn node_kind(&self, kind: EntryKind, base: u64) -> Result<Kind, Why> {
        Ok(match kind {
            EntryKind::File { size, data } => {
                let extent = |Stored { at, len, offset }| Extent {
                    at,
                    len,
                    source: self.source,
                    offset: base + offset,
                };
                Kind::File { size, extents: data.into_iter().map(extent).collect() }
            }
            EntryKind::Symlink(target) if target.len() > MAX_TARGET || target.contains(&0) => {
                return Err(Why::Corrupt(format!(
                    "its target is longer than {MAX_TARGET} bytes, or holds a NUL"
                )));
            }
            EntryKind::Symlink(target) => Kind::Symlink(target.into()),
            EntryKind::CharDevice { major, minor } => Kind::CharDevice { major, minor },
            EntryKind::BlockDevice { major, minor } => Kind::BlockDevice { major, minor },
            EntryKind::Fifo => Kind::Fifo,
            EntryKind::Directory | EntryKind::HardLink(_) => Kind::Directory(BTreeMap::new()),
        })
    }

    /// Takes a name out, and all that is below it.
    fn remove(&mut self, parts: &[&[u8]]) -> Result<(), Why> {
        let Some((name, parents)) = parts.split_last() else { return Ok(()) };
        let Some(way) = self.find(parents, Missing::Stop)? else { return Ok(()) };
        if let Some(entries) = self.tree.entries_mut(last(&way)) {
            entries.remove(*name);
        }
        Ok(())
    }

    /// Hides what lower layers put under a name, or in a whole folder.
    fn whiteout(&mut self, parents: &[&[u8]], name: &[u8]) -> Result<(), Why> {
        if name != OPAQUE && name.starts_with(AUFS) {
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Why::Corrupt("a whiteout that names no file".into()));
        }
        let Some(way) = self.find(parents, Missing::Stop)? else { return Ok(()) };
        if name == OPAQUE {
            self.prune(last(&way));
            return Ok(());
        }
        if self.hide(last(&way), hidden)
            && let Some(entries) = self.tree.entries_mut(last(&way))
        {
            entries.remove(hidden);
        }
        Ok(())
    }

    /// Whether the whole of a child is of lower layers. If some is not, takes out what is.
    fn hide(&mut self, folder: NodeId, name: &[u8]) -> bool {
        let Some(id) = self.child(folder, name) else { return false };
        if self.tree.entries(id).is_none() {
            return !self.own_names.contains(&(folder, name.into()));
        }
        if !self.own_folders.contains(&id) {
            return true;
        }
        self.prune(id);
        false
    }

    /// Takes everything of lower layers out of a folder. Recursion is bounded by the depth limit.
    fn prune(&mut self, folder: NodeId) {
        let names: Vec<Box<[u8]>> =
            self.tree.entries(folder).into_iter().flat_map(|e| e.keys().cloned()).collect();
        let hidden: Vec<_> = names.into_iter().filter(|name| self.hide(folder, name)).collect();
        if let Some(entries) = self.tree.entries_mut(folder) {
            for name in hidden {
                entries.remove(&name);
            }
        }
    }

    /// Names `node`, which is no folder, in the folder at the end of `way`.
    fn put(&mut self, way: &Way, name: &[u8], node: NodeId) {
        let folder = last(way);
        self.insert(folder, name, node);
        self.own(way);
        // Nothing lies below the lowest layer for whiteouts to hide.
        if self.layer > 0 {
            self.own_names.insert((folder, name.into()));
        }
    }

    fn insert(&mut self, folder: NodeId, name: &[u8], node: NodeId) {
        if let Some(entries) = self.tree.entries_mut(folder) {
            entries.insert(name.into(), node);
        }
    }

    fn own(&mut self, way: &Way) {
        if self.layer > 0 {
            // If a folder is known, so are its ancestors.
            way.iter().rev().take_while(|id| self.own_folders.insert(**id)).for_each(drop);
        }
    }

    fn child(&self, folder: NodeId, name: &[u8]) -> Option<NodeId> {
        self.tree.entries(folder)?.get(name).copied()
    }

    fn make(&mut self, parts: &[&[u8]]) -> Result<Way, Why> {
        self.find(parts, Missing::Make).map(|way| way.unwrap_or_else(|| vec![Tree::ROOT]))
    }

    /// Walks from the root along `parts`, through symbolic links, never above the root.
    fn find<'p>(&mut self, parts: &[&'p [u8]], missing: Missing) -> Result<Option<Way>, Why> {
        let mut way = vec![Tree::ROOT];
        let mut ahead: Vec<Cow<'p, [u8]>> = parts.iter().rev().map(|part| Cow::Borrowed(*part)).collect();
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            match &*part {
                b"" | b"." => continue,
                b".." => {
                    way.truncate((way.len() - 1).max(1));
                    continue;
                }
                _ => {}
            }
            let child = match (self.child(last(&way), &part), missing) {
                (Some(child), _) => child,
                (None, Missing::Stop) => return Ok(None),
                (None, Missing::Make) => self.make_parent(last(&way), &part)?,
            };
            match &self.tree.node(child).kind {
                Kind::Directory(_) => {
                    way.push(child);
                    self.check_depth(&way)?;
                }
                Kind::Symlink(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Why::Corrupt("symbolic links on its way go in circles".into()));
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    ahead.extend(target.rsplit(|b| *b == b'/').map(|part| Cow::Owned(part.to_vec())));
                }
                _ if missing == Missing::Stop => return Ok(None),
                _ => {
                    return Err(Why::Corrupt(format!("{}, a folder on its way, is a file", show(&part))));
                }
            }
        }
        Ok(Some(way))
    }

    /// A folder that entries lie in but that no entry describes.
    fn make_parent(&mut self, folder: NodeId, name: &[u8]) -> Result<NodeId, Why> {
        if name.len() > MAX_NAME || name.contains(&0) {
            return Err(Why::Corrupt(format!("a name on its way is longer than {MAX_NAME} bytes")));
        }
        let meta = Metadata { mode: 0o755, mtime: Timestamp::default(), ..Metadata::default() };
        let id = self.tree.add(Node { meta, kind: Kind::Directory(BTreeMap::new()), layer: self.layer });
        self.insert(folder, name, id);
        Ok(id)
    }

    fn check_depth(&self, way: &Way) -> Result<(), Why> {
        if way.len() > self.limits.depth {
            return Err(Why::Limit(format!("folders more than {} deep", self.limits.depth)));
        }
        Ok(())
    }
}

/// What to do about a folder that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Stop,
}

enum Why {
    Corrupt(String),
    Limit(String),
}

impl Why {
    fn of(self, path: &[u8]) -> MergeError {
        match self {
            Self::Corrupt(what) => MergeError::Corrupt(show(path), what),
            Self::Limit(what) => MergeError::Limit(show(path), what),
        }
    }
}

fn last(way: &[NodeId]) -> NodeId {
    way.last().copied().unwrap_or(Tree::ROOT)
}

/// A name's parts, `.` and `..` resolved as text, as the specification's tools do; nothing leads out.
fn clean(path: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}
