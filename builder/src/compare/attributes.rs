//! Extended attributes of an ext4 disk, which the library for the rest does not read
//! (kernel: Documentation/filesystems/ext4).
//!
//! Disks are hostile: every place is bounded by the section, every count by what it is in.

use smolpack_format::Section;
use std::collections::BTreeMap;
use std::sync::Arc;

/// `EXT4_FEATURE_INCOMPAT_META_BG`: descriptors lie elsewhere.
const META_BG: u32 = 0x10;
/// `EXT4_EXT_MAGIC`.
const EXTENTS: u16 = 0xf30a;
/// `EXT4_XATTR_MAGIC`.
const ATTRIBUTES: u32 = 0xea02_0000;
/// The inode of the root folder.
pub(super) const ROOT: u32 = 2;
/// Levels of an extent tree.
const DEPTH: u16 = 5;
/// The longest value, bytes, and the longest folder that is read.
const LONGEST: u64 = 64 << 20;

/// What is wrong with a disk.
type Wrong = String;

/// Names, in the disk's form, and values.
pub(super) type Attributes = BTreeMap<String, Vec<u8>>;

/// A file system, read inode by inode.
pub(super) struct Inodes {
    section: Arc<Section>,
    block: u64,
    inode: u64,
    per_group: u32,
    descriptors: u64,
    descriptor: u64,
}

impl Inodes {
    /// Reads the superblock.
    pub(super) fn open(section: Arc<Section>) -> Result<Self, Wrong> {
        let mut superblock = [0; 1024];
        read(&section, &mut superblock, 1024)?;
        let incompat = word(&superblock, 96);
        let (log_block, per_group) = (word(&superblock, 24), word(&superblock, 40));
        let (inode, descriptor) = (u64::from(half(&superblock, 88)), u64::from(half(&superblock, 254)));
        if log_block > 6 || per_group == 0 || !(128..=4096).contains(&inode) || incompat & META_BG != 0 {
            return Err("its superblock says what is not understood".into());
        }
        let block = 1024 << log_block;
        Ok(Self {
            section,
            block,
            inode,
            per_group,
            descriptors: (u64::from(word(&superblock, 20)) + 1) * block,
            descriptor: descriptor.max(32),
        })
    }

    /// The names in a folder, and their inodes.
    pub(super) fn entries(&self, folder: u32) -> Result<BTreeMap<Vec<u8>, u32>, Wrong> {
        let data = self.data(&self.inode(folder)?)?;
        let mut entries = BTreeMap::new();
        for block in data.chunks(self.block as usize) {
            let mut at = 0;
            while at + 8 <= block.len() {
                let (inode, length) = (word(block, at), usize::from(half(block, at + 4)));
                let name = block.get(at + 8..at + 8 + usize::from(block[at + 6]));
                if length < 8 {
                    return Err(format!("the folder of inode {folder} has an entry of {length} bytes"));
                }
                if let (1.., Some(name)) = (inode, name) {
                    entries.insert(name.to_vec(), inode);
                }
                at += length;
            }
        }
        Ok(entries)
    }

    /// The attributes of an inode.
    pub(super) fn attributes(&self, number: u32) -> Result<Attributes, Wrong> {
        let inode = self.inode(number)?;
        let mut found = BTreeMap::new();
        let body = 128 + usize::from(if inode.len() > 130 { half(&inode, 128) } else { 0 });
        if inode.len() > 132
            && let Some(body) =
                inode.get(body..).filter(|body| body.len() >= 4 && word(body, 0) == ATTRIBUTES)
        {
            self.collect(&body[4..], &body[4..], &mut found)?;
        }
        let block = u64::from(half(&inode, 118)) << 32 | u64::from(word(&inode, 104));
        if block != 0 {
            let mut data = vec![0; self.block as usize];
            self.read(&mut data, block)?;
            if word(&data, 0) != ATTRIBUTES {
                return Err(format!("inode {number} has no attributes where it says"));
            }
            self.collect(&data[32..], &data, &mut found)?;
        }
        Ok(found)
    }

    /// Adds the attributes of a list; their values lie in `values`.
    fn collect(&self, list: &[u8], values: &[u8], found: &mut Attributes) -> Result<(), Wrong> {
        let mut at = 0;
        while at + 16 <= list.len() && word(list, at) != 0 {
            let (name, size) = (usize::from(list[at]), word(list, at + 8));
            let offset = usize::from(half(list, at + 2));
            let cut = || "an attribute leads beyond its list".to_owned();
            let text = String::from_utf8_lossy(list.get(at + 16..at + 16 + name).ok_or_else(cut)?);
            let value = match word(list, at + 4) {
                0 => values.get(offset..offset + size as usize).ok_or_else(cut)?.to_vec(),
                inode => self.data(&self.inode(inode)?)?,
            };
            found.insert(format!("{}{text}", namespace(list[at + 1])), value);
            at += (16 + name).next_multiple_of(4);
        }
        Ok(())
    }

    fn inode(&self, number: u32) -> Result<Vec<u8>, Wrong> {
        let index = number.checked_sub(1).ok_or("an entry leads to inode 0")?;
        let (group, within) = (u64::from(index / self.per_group), u64::from(index % self.per_group));
        let mut descriptor = [0; 64];
        let some = self.descriptor.min(64) as usize;
        read(&self.section, &mut descriptor[..some], self.descriptors + group * self.descriptor)?;
        let table = u64::from(word(&descriptor, 40)) << 32 | u64::from(word(&descriptor, 8));
        let mut inode = vec![0; self.inode as usize];
        let at = table.checked_mul(self.block).and_then(|table| table.checked_add(within * self.inode));
        read(&self.section, &mut inode, at.ok_or("an inode table lies nowhere")?)?;
        Ok(inode)
    }

    /// The contents of a folder or of a value.
    fn data(&self, inode: &[u8]) -> Result<Vec<u8>, Wrong> {
        let size = u64::from(word(inode, 4));
        if size > LONGEST {
            return Err(format!("a folder or a value of {size} bytes"));
        }
        let mut data = vec![0; size as usize];
        // A tree that leads back to itself must end.
        let mut nodes = 16 + size / self.block;
        self.extents(&inode[40..100], DEPTH, &mut data, &mut nodes)?;
        Ok(data)
    }

    fn extents(&self, node: &[u8], depth: u16, data: &mut [u8], nodes: &mut u64) -> Result<(), Wrong> {
        let (count, level) = (usize::from(half(node, 2)), half(node, 6));
        if half(node, 0) != EXTENTS || level > depth {
            return Err("an extent tree that is none".into());
        }
        for entry in node[12..].chunks_exact(12).take(count) {
            let first = u64::from(word(entry, 0)) * self.block;
            if level > 0 {
                let block = u64::from(half(entry, 8)) << 32 | u64::from(word(entry, 4));
                *nodes = nodes.checked_sub(1).ok_or("an extent tree without end")?;
                let mut below = vec![0; self.block as usize];
                self.read(&mut below, block)?;
                self.extents(&below, level - 1, data, nodes)?;
                continue;
            }
            let block = u64::from(half(entry, 6)) << 32 | u64::from(word(entry, 8));
            // A longer one is not written yet, which reads as zeros.
            let blocks = Some(half(entry, 4)).filter(|blocks| *blocks <= 0x8000).unwrap_or(0);
            let length = u64::from(blocks) * self.block;
            let end = (data.len() as u64).min(first.saturating_add(length));
            if first < end {
                self.read(&mut data[first as usize..end as usize], block)?;
            }
        }
        Ok(())
    }

    fn read(&self, into: &mut [u8], block: u64) -> Result<(), Wrong> {
        read(&self.section, into, block.checked_mul(self.block).ok_or("a block lies nowhere")?)
    }
}

fn read(section: &Section, into: &mut [u8], at: u64) -> Result<(), Wrong> {
    section.read_at(into, at).map_err(|e| e.to_string())
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at + 2)) << 16 | u32::from(half(bytes, at))
}

/// What a namespace's number stands for in front of a name.
fn namespace(index: u8) -> &'static str {
    match index {
        0 => "",
        1 => "user.",
        2 => "system.posix_acl_access",
        3 => "system.posix_acl_default",
        4 => "trusted.",
        6 => "security.",
        7 => "system.",
        _ => "unknown.",
    }
}
