//! What a tree needs, whatever the disk: which inodes there are, in which order, and their sizes.
//!
//! Inodes are numbered layer by layer, so that what an upper layer adds comes last; within a layer a
//! folder's own entries follow each other, then those of its subfolders, all in byte order.

use super::attributes::Attributes;
use super::folder;
use crate::ext4::Ext4Error;
use crate::ext4::error::EntryProblem;
use crate::ext4::spec::dir::{FileType, NAME_MAX};
use crate::ext4::spec::hash::HashSeed;
use crate::ext4::spec::inode::device_block;
use crate::ext4::spec::{BLOCK_BYTES, Ino};
use crate::tree::{Extent, Kind, Metadata, Node, NodeId, Timestamp, Tree};
use std::collections::{BTreeMap, HashMap};

/// The most hard links of a file; a folder with more subfolders counts 1.
const LINK_MAX: u32 = 65_000;
/// The largest file, bytes: 32 bits of blocks, the last number kept for "none".
const FILE_MAX: u64 = (u32::MAX as u64) * BLOCK_BYTES;
/// Targets up to this many bytes lie in the inode.
const INLINE_TARGET_MAX: usize = 59;
/// The longest target that Linux follows, bytes.
const TARGET_MAX: usize = 4095;
/// Not reached from the root, or not yet.
const NONE: u32 = u32::MAX;

/// The folder for what fsck finds.
pub(in crate::ext4) const LOST_FOUND: &[u8] = b"lost+found";

/// An inode that a name leads to.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Member {
    /// Its node; `None` for a lost+found that the tree does not have.
    pub(in crate::ext4) node: Option<NodeId>,
    /// For a folder, the one it is in.
    pub(in crate::ext4) parent: NodeId,
    /// Links, as the inode counts them.
    pub(in crate::ext4) links: u32,
    /// Blocks of contents, without those of the extent tree and attributes.
    pub(in crate::ext4) blocks: u64,
}

/// A value that has an inode of its own.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Value<'a> {
    /// The bytes.
    pub(in crate::ext4) bytes: &'a [u8],
    /// The owners of the file it is for.
    pub(in crate::ext4) owner: &'a Metadata,
}

/// All inodes, in the order of their numbers: the root, [`Ino::FIRST`] and on, then the values.
#[derive(Debug)]
pub(in crate::ext4) struct Survey<'a> {
    /// What was surveyed.
    pub(in crate::ext4) tree: &'a Tree,
    /// Inodes with names.
    pub(in crate::ext4) members: Vec<Member>,
    /// Attributes of the members that have any, by place in `members`.
    pub(in crate::ext4) attributes: HashMap<usize, Attributes<'a>>,
    /// Inodes of values.
    pub(in crate::ext4) values: Vec<Value<'a>>,
    /// Attributes left out, by name, and from how many files.
    pub(in crate::ext4) foreign: BTreeMap<Vec<u8>, u64>,
    /// The place in `members` of each node.
    places: Vec<u32>,
    lost_found: Node,
}

impl<'a> Survey<'a> {
    /// Walks a tree and checks that ext4 can hold all of it.
    ///
    /// Without a hash seed, folders count with the most blocks that any seed leads to.
    pub(in crate::ext4) fn new(
        tree: &'a Tree,
        seed: Option<HashSeed>,
        created: Timestamp,
    ) -> Result<Self, Ext4Error> {
        let meta = Metadata { mode: 0o700, mtime: created, ..Metadata::default() };
        let lost_found = Node { meta, kind: Kind::Directory(BTreeMap::new()), layer: 0 };
        let (members, places) = walk(tree)?;
        let mut survey = Self {
            tree,
            members,
            attributes: HashMap::new(),
            values: Vec::new(),
            foreign: BTreeMap::new(),
            places,
            lost_found,
        };
        for place in 0..survey.members.len() {
            survey.measure(place, seed)?;
            survey.place_attributes(place)?;
        }
        Ok(survey)
    }

    /// The inodes needed, those reserved counted in.
    pub(in crate::ext4) fn inodes(&self) -> u64 {
        u64::from(Ino::FIRST.0) - 1 + (self.members.len() - 1 + self.values.len()) as u64
    }

    /// The node of a member.
    pub(in crate::ext4) fn node(&self, place: usize) -> &Node {
        self.members[place].node.map_or(&self.lost_found, |id| self.tree.node(id))
    }

    /// The inode of a member.
    pub(in crate::ext4) fn ino(place: usize) -> Ino {
        if place == 0 { Ino::ROOT } else { Ino(Ino::FIRST.0 - 1 + place as u32) }
    }

    /// The inode of a value.
    pub(in crate::ext4) fn value_ino(&self, index: usize) -> Ino {
        Self::ino(self.members.len() + index)
    }

    /// The inode of a node that the root leads to.
    pub(in crate::ext4) fn ino_of(&self, id: NodeId) -> Ino {
        Self::ino(self.places[id.0 as usize] as usize)
    }

    /// What is in a folder: names, inodes and types.
    pub(in crate::ext4) fn entries(&self, place: usize) -> impl Iterator<Item = (&[u8], Ino, FileType)> {
        let own = match &self.node(place).kind {
            Kind::Directory(entries) => Some(entries),
            _ => None,
        };
        let added =
            (place == 0 && self.adds_lost_found()).then_some((LOST_FOUND, Ino::FIRST, FileType::Directory));
        let named = own.into_iter().flatten();
        named.map(|(name, &id)| (&**name, self.ino_of(id), file_type(&self.tree.node(id).kind))).chain(added)
    }

    fn adds_lost_found(&self) -> bool {
        self.members.get(1).is_some_and(|member| member.node.is_none())
    }

    /// Counts a member's blocks and checks its contents and links.
    fn measure(&mut self, place: usize, seed: Option<HashSeed>) -> Result<(), Ext4Error> {
        let blocks = self.count_blocks(place, seed);
        let member = &mut self.members[place];
        let problem = match blocks {
            Ok(blocks) => {
                member.blocks = blocks;
                return Ok(());
            }
            Err(problem) => problem,
        };
        Err(Ext4Error::entry(self.tree, member.node.unwrap_or(Tree::ROOT), problem))
    }

    fn count_blocks(&self, place: usize, seed: Option<HashSeed>) -> Result<u64, EntryProblem> {
        let links = self.members[place].links;
        let kind = &self.node(place).kind;
        if links > LINK_MAX && !matches!(kind, Kind::Directory(_)) {
            return Err(EntryProblem::Links(links));
        }
        match kind {
            Kind::File { size, extents } => count_data(*size, extents),
            Kind::Directory(_) => {
                let names: Vec<&[u8]> = self.entries(place).map(|(name, _, _)| name).collect();
                folder::blocks(names.iter().copied(), seed).ok_or(EntryProblem::FullDirectory)
            }
            Kind::Symlink(target) if target.is_empty() || target.len() > TARGET_MAX => {
                Err(EntryProblem::Target(target.len()))
            }
            Kind::Symlink(target) => Ok(u64::from(target.len() > INLINE_TARGET_MAX)),
            &(Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor }) => {
                device_block(major, minor).map(|_| 0).ok_or(EntryProblem::Device(major, minor))
            }
            Kind::Fifo | Kind::Socket => Ok(0),
        }
    }

    fn place_attributes(&mut self, place: usize) -> Result<(), Ext4Error> {
        let Some(id) = self.members[place].node else { return Ok(()) };
        let meta = &self.tree.node(id).meta;
        if meta.xattrs.is_empty() {
            return Ok(());
        }
        let mut attributes =
            Attributes::place(meta).map_err(|problem| Ext4Error::entry(self.tree, id, problem))?;
        for &name in &attributes.foreign {
            *self.foreign.entry(name.to_vec()).or_default() += 1;
        }
        for attribute in attributes.values_mut() {
            attribute.value_inode = Some(self.value_ino(self.values.len()));
            // Only ACLs are converted, and they are too short for this.
            if let std::borrow::Cow::Borrowed(bytes) = attribute.value {
                self.values.push(Value { bytes, owner: meta });
            }
        }
        self.attributes.insert(place, attributes);
        Ok(())
    }
}

/// The type that a folder says an entry has.
fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File { .. } => FileType::Regular,
        Kind::Directory(_) => FileType::Directory,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::CharDevice { .. } => FileType::CharDevice,
        Kind::BlockDevice { .. } => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

/// The blocks of a file's data, once its extents are sound.
fn count_data(size: u64, extents: &[Extent]) -> Result<u64, EntryProblem> {
    if size > FILE_MAX {
        return Err(EntryProblem::Size(size));
    }
    let mut end = 0;
    for extent in extents {
        let next = extent.at.checked_add(extent.len).filter(|&next| next <= size);
        match next {
            Some(next) if extent.at >= end && extent.len > 0 => end = next,
            _ => return Err(EntryProblem::Extents(extent.at)),
        }
    }
    Ok(super::mapping::data_runs(extents).map(|run| run.len).sum())
}

/// Finds all inodes and numbers them; links are counted, sizes are not.
fn walk(tree: &Tree) -> Result<(Vec<Member>, Vec<u32>), Ext4Error> {
    let mut members = vec![Member { node: Some(Tree::ROOT), parent: Tree::ROOT, links: 2, blocks: 0 }];
    let mut places = vec![NONE; tree.len()];
    places[0] = 0;
    let mut folders = vec![Tree::ROOT];
    while let Some(folder) = folders.pop() {
        let first = folders.len();
        for (name, &id) in tree.entries(folder).into_iter().flatten() {
            if !is_name(name) {
                return Err(Ext4Error::name(tree, folder, name, EntryProblem::Name));
            }
            let is_folder = matches!(tree.node(id).kind, Kind::Directory(_));
            let place = &mut places[id.0 as usize];
            if *place != NONE {
                if is_folder {
                    return Err(Ext4Error::name(tree, folder, name, EntryProblem::DirectoryLink));
                }
                members[*place as usize].links += 1;
                continue;
            }
            *place = members.len() as u32;
            members.push(Member { node: Some(id), parent: folder, links: 1, blocks: 0 });
            if is_folder {
                folders.push(id);
            }
        }
        folders[first..].reverse();
    }
    count_subfolders(tree, &mut members, &places);
    add_lost_found(tree, &mut members)?;
    members[1..].sort_by_key(|member| member.node.map(|id| tree.node(id).layer));
    for (place, member) in members.iter().enumerate() {
        if let Some(id) = member.node {
            places[id.0 as usize] = place as u32;
        }
    }
    Ok((members, places))
}

/// A folder has a link from its own dot, and one from each subfolder's two dots.
fn count_subfolders(tree: &Tree, members: &mut [Member], places: &[u32]) {
    for place in 1..members.len() {
        let Member { node: Some(id), parent, .. } = members[place] else { continue };
        if matches!(tree.node(id).kind, Kind::Directory(_)) {
            members[place].links += 1;
            members[places[parent.0 as usize] as usize].links += 1;
        }
    }
}

/// Adds the folder where fsck puts what it finds, unless the tree has one.
fn add_lost_found(tree: &Tree, members: &mut Vec<Member>) -> Result<(), Ext4Error> {
    match tree.entries(Tree::ROOT).and_then(|root| root.get(LOST_FOUND)) {
        None => {
            members[0].links += 1;
            members.insert(1, Member { node: None, parent: Tree::ROOT, links: 2, blocks: 0 });
            Ok(())
        }
        Some(&id) if matches!(tree.node(id).kind, Kind::Directory(_)) => Ok(()),
        Some(&id) => Err(Ext4Error::entry(tree, id, EntryProblem::LostFound)),
    }
}

fn is_name(name: &[u8]) -> bool {
    let forbidden = name.iter().any(|&byte| byte == b'/' || byte == 0);
    (1..=NAME_MAX).contains(&name.len()) && !forbidden && name != b"." && name != b".."
}

/// What an inode's link count says; folders past the limit say 1 (`dir_nlink`).
pub(in crate::ext4) fn stored_links(links: u32) -> u16 {
    if links > LINK_MAX { 1 } else { links as u16 }
}
