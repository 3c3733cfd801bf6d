//! Extended attributes: entries growing up, values growing down, in an inode's body or a block.

use super::checksum::Checksum;
use super::inode::BODY_SIZE;
use super::{BLOCK_SIZE, Block, Ino, Put};
use std::borrow::Cow;

const MAGIC: u32 = 0xEA02_0000;
/// Bytes before the entries in a body: the magic.
const BODY_HEADER: usize = 4;
/// Bytes before the entries in a block.
const BLOCK_HEADER: usize = 32;
/// Bytes of an entry before its name.
const ENTRY_HEADER: usize = 16;
/// A zero word ends the entries.
const TERMINATOR: usize = 4;

/// Bytes of entries and values that an inode's body holds.
pub(in crate::ext4) const BODY_ROOM: usize = BODY_SIZE - BODY_HEADER - TERMINATOR;
/// Bytes that a block holds.
pub(in crate::ext4) const BLOCK_ROOM: usize = BLOCK_SIZE - BLOCK_HEADER - TERMINATOR;

/// The namespaces the disk has numbers for: a prefix, or a whole name.
const NAMESPACES: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", ACL_ACCESS),
    (b"system.posix_acl_default", ACL_DEFAULT),
    (b"trusted.", 4),
    (b"security.", 6),
];

/// The number of `system.posix_acl_access`.
const ACL_ACCESS: u8 = 2;
/// The number of `system.posix_acl_default`.
const ACL_DEFAULT: u8 = 3;

/// Splits a name into its namespace's number and the rest; `None` where Linux has no such namespace.
pub(in crate::ext4) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    NAMESPACES.iter().find_map(|&(prefix, index)| {
        let rest = name.strip_prefix(prefix)?;
        (rest.is_empty() != prefix.ends_with(b".")).then_some((index, rest))
    })
}

/// Whether a namespace's number is that of an ACL, stored in another form than read.
pub(in crate::ext4) fn is_acl(index: u8) -> bool {
    matches!(index, ACL_ACCESS | ACL_DEFAULT)
}

/// An attribute as the disk has it.
#[derive(Clone, Debug)]
pub(in crate::ext4) struct Attribute<'a> {
    /// The namespace's number.
    pub(in crate::ext4) index: u8,
    /// The name without its namespace, at most 255 bytes.
    pub(in crate::ext4) name: &'a [u8],
    /// The value in the form on the disk.
    pub(in crate::ext4) value: Cow<'a, [u8]>,
    /// The inode that holds the value, if it is not beside the entry.
    pub(in crate::ext4) value_inode: Option<Ino>,
}

impl Attribute<'_> {
    /// The room its entry takes, bytes.
    pub(in crate::ext4) fn entry_len(&self) -> usize {
        ENTRY_HEADER + self.name.len().next_multiple_of(4)
    }

    /// The room its value takes beside the entries, bytes.
    pub(in crate::ext4) fn value_len(&self) -> usize {
        if self.value_inode.is_some() { 0 } else { self.value.len().next_multiple_of(4) }
    }

    /// The entry's hash: over the name and the value's words, or the hash of a value in an inode.
    fn hash(&self, checksum: Checksum) -> u32 {
        let name = self.name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
        let word = |hash: u32, word: u32| hash.rotate_left(16) ^ word;
        if self.value_inode.is_some() {
            return word(name, value_hash(&self.value, checksum));
        }
        self.value.chunks(4).fold(name, |hash, bytes| {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            word(hash, u32::from_le_bytes(padded))
        })
    }

    fn put(&self, entry: &mut [u8], value_offset: usize, hash: u32) {
        entry.put8(0, self.name.len() as u8);
        entry.put8(1, self.index);
        entry.put16(2, value_offset as u16);
        entry.put32(4, self.value_inode.map_or(0, |ino| ino.0));
        entry.put32(8, self.value.len() as u32);
        entry.put32(12, hash);
        entry.put(ENTRY_HEADER, self.name);
    }
}

/// The hash that an inode holding a value keeps in its access time.
pub(in crate::ext4) fn value_hash(value: &[u8], checksum: Checksum) -> u32 {
    checksum.over(value).value()
}

/// The inode body of attributes that fit [`BODY_ROOM`]; zeros where there are none.
pub(in crate::ext4) fn encode_body(attributes: &[Attribute<'_>], checksum: Checksum) -> [u8; BODY_SIZE] {
    let mut body = [0; BODY_SIZE];
    if attributes.is_empty() {
        return body;
    }
    body.put32(0, MAGIC);
    // Hashes of values beside the entry are left out, as the kernel does in a body.
    let hash = |attribute: &Attribute<'_>| attribute.value_inode.map_or(0, |_| attribute.hash(checksum));
    put_entries(&mut body[BODY_HEADER..], 0, attributes, hash);
    body
}

/// Fills a zeroed block with attributes that fit [`BLOCK_ROOM`], in the order of [`sort_key`].
///
/// `users` inodes share it.
pub(in crate::ext4) fn put_block(
    block: &mut [u8],
    attributes: &[Attribute<'_>],
    users: u32,
    at: Block,
    checksum: Checksum,
) {
    block.put32(0x00, MAGIC);
    block.put32(0x04, users);
    block.put32(0x08, 1); // blocks
    put_entries(&mut block[BLOCK_HEADER..], BLOCK_HEADER, attributes, |attribute| attribute.hash(checksum));
    block.put32(0x0C, block_hash(attributes, checksum));
    let sum = checksum.over(&at.0.to_le_bytes()).over(block);
    block.put32(0x10, sum.value());
}

/// The hash by which the kernel finds equal blocks to share; 0 keeps it from sharing this one.
fn block_hash(attributes: &[Attribute<'_>], checksum: Checksum) -> u32 {
    let hashes: Vec<u32> = attributes.iter().map(|attribute| attribute.hash(checksum)).collect();
    if hashes.contains(&0) {
        return 0;
    }
    hashes.iter().fold(0u32, |hash, entry| hash.rotate_left(16) ^ entry)
}

/// Entries from the front of `room`, values from its end; value offsets count from `origin` before it.
fn put_entries(
    room: &mut [u8],
    origin: usize,
    attributes: &[Attribute<'_>],
    hash: impl Fn(&Attribute<'_>) -> u32,
) {
    let mut entry = 0;
    let mut value = room.len();
    for attribute in attributes {
        value -= attribute.value_len();
        if attribute.value_len() > 0 {
            room.put(value, &attribute.value);
        }
        let offset = if attribute.value_len() > 0 { origin + value } else { 0 };
        attribute.put(&mut room[entry..], offset, hash(attribute));
        entry += attribute.entry_len();
    }
}

/// The order in which the kernel searches a block.
pub(in crate::ext4) fn sort_key<'a>(attribute: &Attribute<'a>) -> (u8, usize, &'a [u8]) {
    (attribute.index, attribute.name.len(), attribute.name)
}

#[cfg(test)]
mod tests {
    use super::split_name;

    #[test]
    fn names_split_by_namespace() {
        for (name, split) in [
            (&b"user.a"[..], Some((1, &b"a"[..]))),
            (b"security.capability", Some((6, b"capability"))),
            (b"system.posix_acl_access", Some((2, b""))),
            (b"system.posix_acl_default", Some((3, b""))),
            (b"system.posix_acl_accessory", None),
            (b"user.", None),
            (b"system.data", None),
            (b"com.apple.provenance", None),
        ] {
            assert_eq!(split_name(name), split, "{}", name.escape_ascii());
        }
    }
}
