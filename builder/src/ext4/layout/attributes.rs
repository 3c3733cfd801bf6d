//! Where a node's extended attributes go: its inode's body, one block, or inodes of their own.

use crate::ext4::error::EntryProblem;
use crate::ext4::spec::xattr::{Attribute, BLOCK_ROOM, BODY_ROOM, is_acl, sort_key, split_name};
use crate::ext4::spec::{BLOCK_BYTES, Ino, acl};
use crate::tree::Metadata;
use std::borrow::Cow;

/// The longest name after its namespace, bytes.
const NAME_MAX: usize = 255;
/// The longest value that Linux reads, bytes (`XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 65536;
/// Stands for a value's inode until it has a number.
const UNNUMBERED: Ino = Ino(0);

/// The attributes of one node.
#[derive(Clone, Debug, Default)]
pub(in crate::ext4) struct Attributes<'a> {
    /// In the inode.
    pub(in crate::ext4) body: Vec<Attribute<'a>>,
    /// In a block, in the order it wants.
    pub(in crate::ext4) block: Vec<Attribute<'a>>,
    /// Names in no namespace that Linux has; they are left out, as `setxattr` would refuse them.
    pub(in crate::ext4) foreign: Vec<&'a [u8]>,
}

impl<'a> Attributes<'a> {
    /// Places all attributes: the smallest in the body, the next in the block, what is over in inodes.
    pub(in crate::ext4) fn place(meta: &'a Metadata) -> Result<Self, EntryProblem> {
        let mut placed = Self::default();
        let mut attributes = Vec::new();
        for (name, value) in &meta.xattrs {
            match convert(name, value)? {
                Some(attribute) => attributes.push(attribute),
                None => placed.foreign.push(name),
            }
        }
        attributes.sort_by(|a, b| (a.value.len(), sort_key(a)).cmp(&(b.value.len(), sort_key(b))));
        let mut room = BODY_ROOM;
        for attribute in attributes {
            let len = attribute.entry_len() + attribute.value_len();
            if len <= room {
                room -= len;
                placed.body.push(attribute);
            } else {
                placed.block.push(attribute);
            }
        }
        move_to_inodes(&mut placed.block)?;
        placed.body.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        placed.block.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        Ok(placed)
    }

    /// The attributes whose values have inodes, to number.
    pub(in crate::ext4) fn values_mut(&mut self) -> impl Iterator<Item = &mut Attribute<'a>> {
        self.block.iter_mut().filter(|attribute| attribute.value_inode.is_some())
    }

    /// The blocks that quotas charge to the node for them, in units of 512 bytes.
    pub(in crate::ext4) fn sectors(&self) -> u64 {
        let values = self.block.iter().filter(|attribute| attribute.value_inode.is_some());
        let values: u64 = values.map(|value| (value.value.len() as u64).div_ceil(BLOCK_BYTES)).sum();
        (values + u64::from(!self.block.is_empty())) * (BLOCK_BYTES / 512)
    }
}

/// An attribute in the form of the disk; `None` where Linux has no such namespace.
fn convert<'a>(full: &'a [u8], value: &'a [u8]) -> Result<Option<Attribute<'a>>, EntryProblem> {
    let printable = || String::from_utf8_lossy(full).into_owned();
    let Some((index, name)) = split_name(full) else { return Ok(None) };
    if name.len() > NAME_MAX || value.len() > VALUE_MAX {
        return Err(EntryProblem::LongXattr(printable()));
    }
    let value = if is_acl(index) {
        Cow::Owned(acl::to_disk(value).ok_or_else(|| EntryProblem::Acl(printable()))?)
    } else {
        Cow::Borrowed(value)
    };
    Ok(Some(Attribute { index, name, value, value_inode: None }))
}

/// Gives values inodes of their own, from the largest down (the list is sorted by size), until the
/// rest fits a block.
fn move_to_inodes(block: &mut [Attribute<'_>]) -> Result<(), EntryProblem> {
    let len = |attribute: &Attribute<'_>| attribute.entry_len() + attribute.value_len();
    let mut total: usize = block.iter().map(len).sum();
    for attribute in block.iter_mut().rev() {
        if total <= BLOCK_ROOM {
            return Ok(());
        }
        total -= attribute.value_len();
        attribute.value_inode = Some(UNNUMBERED);
    }
    if total <= BLOCK_ROOM { Ok(()) } else { Err(EntryProblem::ManyXattrs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(xattrs: &[(&str, usize)]) -> Metadata {
        let xattrs = xattrs.iter().map(|&(name, len)| (name.as_bytes().to_vec(), vec![1; len])).collect();
        Metadata { xattrs, ..Metadata::default() }
    }

    /// How many attributes go to the body, the block, and inodes.
    fn places(xattrs: &[(&str, usize)]) -> (usize, usize, usize) {
        let meta = meta(xattrs);
        let mut placed = Attributes::place(&meta).unwrap();
        let inodes = placed.values_mut().count();
        (placed.body.len(), placed.block.len() - inodes, inodes)
    }

    #[test]
    fn small_ones_stay_in_the_inode() {
        assert_eq!(places(&[("user.a", 10), ("security.capability", 20)]), (2, 0, 0));
        assert_eq!(places(&[("user.a", 68)]), (1, 0, 0));
        assert_eq!(places(&[("user.a", 69)]), (0, 1, 0));
    }

    #[test]
    fn values_over_a_block_get_inodes() {
        assert_eq!(places(&[("user.big", 40_000), ("user.small", 1), ("user.mid", 2000)]), (1, 1, 1));
        assert_eq!(places(&[("user.a", 3000), ("user.b", 3000)]), (0, 1, 1));
    }

    #[test]
    fn names_that_fill_a_block_are_refused() {
        let mut meta = meta(&[]);
        for i in 0..20u8 {
            meta.xattrs.insert([&b"user."[..], &[b'a' + i; 250]].concat(), vec![0; 8]);
        }
        assert_eq!(Attributes::place(&meta).unwrap_err(), EntryProblem::ManyXattrs);
    }

    #[test]
    fn bad_values_are_refused_and_foreign_names_left_out() {
        let long = meta(&[("user.a", 65_537)]);
        assert_eq!(Attributes::place(&long).unwrap_err(), EntryProblem::LongXattr("user.a".into()));
        let acl = meta(&[("system.posix_acl_access", 3)]);
        assert!(matches!(Attributes::place(&acl).unwrap_err(), EntryProblem::Acl(_)));
        let foreign = meta(&[("com.apple.provenance", 11)]);
        assert_eq!(Attributes::place(&foreign).unwrap().foreign, [b"com.apple.provenance"]);
    }
}
