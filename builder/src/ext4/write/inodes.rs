//! The inode of everything that has one, made when its table is written.

use super::Seeds;
use crate::ext4::layout::mapping::{ExtentTree, Run, data_runs, extents, tree_blocks, whole};
use crate::ext4::layout::space::Slot;
use crate::ext4::layout::survey::{Survey, stored_links};
use crate::ext4::layout::{JOURNAL, Layout};
use crate::ext4::spec::extent::IN_INODE;
use crate::ext4::spec::inode::{EA_INODE_FL, EXTENTS_FL, INDEX_FL, Inode, device_block, file_mode};
use crate::ext4::spec::{BLOCK_BYTES, Ino, Put, xattr};
use crate::tree::{Kind, Timestamp};

/// Units of `i_blocks` in a block.
const SECTORS: u64 = BLOCK_BYTES / 512;

/// Makes the inodes of a layout.
#[derive(Clone, Copy)]
pub(super) struct Inodes<'l> {
    layout: &'l Layout<'l>,
    seeds: Seeds,
    created: Timestamp,
}

impl<'l> Inodes<'l> {
    pub(super) fn new(layout: &'l Layout<'l>, seeds: Seeds, created: Timestamp) -> Self {
        Self { layout, seeds, created }
    }

    /// The number of the last inode in use.
    pub(super) fn last(&self) -> u32 {
        self.layout.survey.inodes() as u32
    }

    /// Whether an inode is a folder.
    pub(super) fn is_folder(&self, ino: Ino) -> bool {
        member_of(self.layout.survey, ino)
            .is_some_and(|place| matches!(self.layout.survey.node(place).kind, Kind::Directory(_)))
    }

    /// The inode's bytes, or `None` for the reserved ones that stay empty.
    pub(super) fn encode(&self, ino: Ino) -> Option<[u8; crate::ext4::spec::INODE_SIZE]> {
        let inode = match ino {
            Ino::RESIZE => self.resize(),
            Ino::JOURNAL => self.journal(),
            Ino(number) if number < Ino::FIRST.0 && ino != Ino::ROOT => return None,
            _ => match member_of(self.layout.survey, ino) {
                Some(place) => self.member(place),
                None => self.value((ino.0 - self.layout.survey.value_ino(0).0) as usize),
            },
        };
        Some(inode.encode(ino, self.seeds.checksum))
    }

    /// The journal's inode, which the superblock keeps a copy of.
    pub(super) fn journal(&self) -> Inode {
        let blocks = u64::from(self.layout.geometry.journal_blocks);
        let mut inode = Inode::new(file_mode::REGULAR | 0o600, self.created);
        inode.size = blocks * BLOCK_BYTES;
        self.map(&mut inode, Ino::JOURNAL, JOURNAL, blocks, whole(blocks));
        inode
    }

    /// The resize inode owns the blocks reserved for group descriptors, in every copy, through the
    /// old kind of block map: its double-indirect block points at the first copy's reserved blocks,
    /// which in turn point at the other copies'.
    fn resize(&self) -> Inode {
        const POINTERS: u64 = BLOCK_BYTES / 4;
        const DOUBLE_INDIRECT: usize = 13;
        let geometry = &self.layout.geometry;
        let copies = 1 + geometry.backups().count() as u64;
        let mut inode = Inode::new(file_mode::REGULAR | 0o600, self.created);
        inode.size = (12 + POINTERS + POINTERS * POINTERS) * BLOCK_BYTES;
        inode.sectors = (1 + u64::from(geometry.reserved_gdt_blocks) * copies) * SECTORS;
        inode.block.put32(4 * DOUBLE_INDIRECT, self.layout.space.block(self.layout.resize_map).low());
        inode
    }

    /// An attribute's value: it keeps the value's hash and its one user where others have times.
    fn value(&self, index: usize) -> Inode {
        let value = self.layout.survey.values[index];
        let blocks = (value.bytes.len() as u64).div_ceil(BLOCK_BYTES);
        let ino = self.layout.survey.value_ino(index);
        let mut inode = Inode::new(file_mode::REGULAR | 0o600, Timestamp::default());
        inode.uid = value.owner.uid;
        inode.gid = value.owner.gid;
        inode.size = value.bytes.len() as u64;
        inode.atime.seconds = i64::from(xattr::value_hash(value.bytes, self.seeds.checksum));
        inode.version = 1;
        inode.flags = EA_INODE_FL;
        self.map(&mut inode, ino, self.layout.values[index], blocks, whole(blocks));
        inode
    }

    fn member(&self, place: usize) -> Inode {
        let survey = self.layout.survey;
        let node = survey.node(place);
        let ino = Survey::ino(place);
        let mut inode = Inode::new(type_mode(&node.kind) | node.meta.mode & 0o7777, node.meta.mtime);
        inode.uid = node.meta.uid;
        inode.gid = node.meta.gid;
        inode.links = stored_links(survey.members[place].links);
        self.put_contents(&mut inode, ino, place);
        self.put_attributes(&mut inode, place);
        inode
    }

    fn put_contents(&self, inode: &mut Inode, ino: Ino, place: usize) {
        let blocks = self.layout.survey.members[place].blocks;
        let slot = self.layout.starts[place];
        match &self.layout.survey.node(place).kind {
            Kind::File { size, extents } => {
                inode.size = *size;
                self.map(inode, ino, slot, blocks, data_runs(extents));
            }
            Kind::Directory(_) => {
                inode.size = blocks * BLOCK_BYTES;
                inode.flags |= if blocks > 1 { INDEX_FL } else { 0 };
                self.map(inode, ino, slot, blocks, whole(blocks));
            }
            Kind::Symlink(target) => {
                inode.size = target.len() as u64;
                if blocks == 0 {
                    inode.block.put(0, target);
                } else {
                    self.map(inode, ino, slot, blocks, whole(blocks));
                }
            }
            &(Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor }) => {
                inode.block = device_block(major, minor).unwrap_or([0; 60]); // checked by the survey
            }
            Kind::Fifo | Kind::Socket => {}
        }
    }

    fn put_attributes(&self, inode: &mut Inode, place: usize) {
        let Some(attributes) = self.layout.survey.attributes.get(&place) else { return };
        inode.body = xattr::encode_body(&attributes.body, self.seeds.checksum);
        inode.sectors += attributes.sectors();
        if let Some(slot) = self.layout.attribute_block(place) {
            inode.file_acl = self.layout.space.block(slot);
        }
    }

    /// Points the inode at its contents.
    fn map(&self, inode: &mut Inode, ino: Ino, slot: Slot, blocks: u64, runs: impl Iterator<Item = Run>) {
        let extents: Vec<_> = extents(&self.layout.space, slot, runs).collect();
        let checksum = self.seeds.checksum.of_inode(ino);
        let tree = ExtentTree::new(&self.layout.space, slot.plus(blocks), &extents, checksum);
        inode.block = tree.root;
        inode.flags |= EXTENTS_FL;
        inode.sectors += (blocks + tree_blocks(extents.len() as u64)) * SECTORS;
    }

    /// The blocks of an extent tree, which follow the contents; none for up to four extents.
    pub(super) fn extent_blocks(
        &self,
        ino: Ino,
        slot: Slot,
        blocks: u64,
        runs: impl Iterator<Item = Run>,
    ) -> Vec<u8> {
        let mut extents = extents(&self.layout.space, slot, runs).peekable();
        let first: Vec<_> = extents.by_ref().take(IN_INODE).collect();
        if extents.peek().is_none() {
            return Vec::new();
        }
        let all: Vec<_> = first.into_iter().chain(extents).collect();
        let checksum = self.seeds.checksum.of_inode(ino);
        ExtentTree::new(&self.layout.space, slot.plus(blocks), &all, checksum).blocks
    }
}

/// The place among the members of an inode that has a name.
fn member_of(survey: &Survey<'_>, ino: Ino) -> Option<usize> {
    let place = match ino {
        Ino::ROOT => 0,
        Ino(number) => number.checked_sub(Ino::FIRST.0 - 1).filter(|&place| place > 0)? as usize,
    };
    (place < survey.members.len()).then_some(place)
}

fn type_mode(kind: &Kind) -> u16 {
    match kind {
        Kind::File { .. } => file_mode::REGULAR,
        Kind::Directory(_) => file_mode::DIRECTORY,
        Kind::Symlink(_) => file_mode::SYMLINK,
        Kind::CharDevice { .. } => file_mode::CHAR_DEVICE,
        Kind::BlockDevice { .. } => file_mode::BLOCK_DEVICE,
        Kind::Fifo => file_mode::FIFO,
        Kind::Socket => file_mode::SOCKET,
    }
}
