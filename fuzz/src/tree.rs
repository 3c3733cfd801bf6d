//! A tree of files out of bytes, written as a disk and read again.

use crate::Bytes;
use ext4_view::{Ext4, Ext4Error, PathBuf};
use smolpack_builder::ext4::{self, Options};
use smolpack_builder::tree::{Kind, Metadata, Node, NodeId, Timestamp, Tree};
use std::collections::BTreeMap;

/// The size of the disk, bytes.
const DISK: u64 = 8 << 20;
/// The most nodes.
const NODES: usize = 300;

/// Nodes, one an operation: kind, name, folder it lies in, owner, attributes.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut tree = Tree::new();
    let mut folders = vec![Tree::ROOT];
    let mut nodes = Vec::new();
    while !bytes.is_over() && tree.len() < NODES {
        let what = bytes.byte();
        let parent = folders[usize::from(bytes.byte()) % folders.len()];
        let name = name(&mut bytes);
        if what & 0xf0 == 0xf0 && !nodes.is_empty() {
            // A hard link, to a folder as well, which is refused.
            let again = nodes[usize::from(what) % nodes.len()];
            put(&mut tree, parent, &name, again);
            continue;
        }
        let node = Node { meta: meta(&mut bytes), kind: kind(what, &mut bytes), layer: 0 };
        let is_folder = matches!(node.kind, Kind::Directory(_));
        let id = tree.add(node);
        put(&mut tree, parent, &name, id);
        nodes.push(id);
        if is_folder {
            folders.push(id);
        }
    }
    let options =
        Options { size: DISK, uuid: [7; 16], hash_seed: [9; 16], label: None, created: Timestamp::default() };
    let mut disk = Vec::new();
    if ext4::write(&tree, &options, &mut disk).is_ok() {
        assert_eq!(disk.len() as u64, DISK, "a disk of another size");
        check(&tree, disk);
    }
}

/// Every folder has the names it was given.
fn check(tree: &Tree, disk: Vec<u8>) {
    // The library does not know values of attributes in inodes of their own.
    let ext4 = match Ext4::load(Box::new(disk)) {
        Err(Ext4Error::Incompatible(_)) => return,
        ext4 => ext4.expect("the disk cannot be read"),
    };
    let mut folders = vec![(PathBuf::new("/"), Tree::ROOT)];
    while let Some((path, folder)) = folders.pop() {
        let entries = tree.entries(folder).into_iter().flatten();
        let mut expected: BTreeMap<&[u8], NodeId> = entries.map(|(name, node)| (&**name, *node)).collect();
        for entry in ext4.read_dir(&path).expect("a folder cannot be read") {
            let entry = entry.expect("a folder's entry cannot be read");
            let name = entry.file_name();
            let node = expected.remove(name.as_ref());
            let is_own = matches!(name.as_ref(), b"." | b".." | b"lost+found");
            assert!(node.is_some() || is_own, "a name that was not given");
            if let Some(node) = node.filter(|node| tree.entries(*node).is_some()) {
                folders.push((entry.path(), node));
            }
        }
        assert!(expected.is_empty(), "names are lost");
    }
}

fn put(tree: &mut Tree, parent: NodeId, name: &[u8], node: NodeId) {
    if let Some(entries) = tree.entries_mut(parent) {
        entries.insert(name.into(), node);
    }
}

fn name(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let len = bytes.byte();
    let short = bytes.some(usize::from(len % 16)).to_vec();
    // Names as long as they get, and longer.
    if len >= 0xf8 { short.repeat(40) } else { short }
}

fn kind(what: u8, bytes: &mut Bytes<'_>) -> Kind {
    match what % 8 {
        0 | 1 => Kind::Directory(BTreeMap::new()),
        2 => Kind::Symlink(vec![b'x'; usize::from(bytes.half()) % 5000].into()),
        3 => Kind::CharDevice { major: bytes.word(), minor: bytes.word() },
        4 => Kind::BlockDevice { major: bytes.word(), minor: bytes.word() },
        5 => Kind::Fifo,
        6 => Kind::Socket,
        _ => Kind::File { size: u64::from(bytes.word()) << (what >> 4), extents: Vec::new() },
    }
}

fn meta(bytes: &mut Bytes<'_>) -> Metadata {
    let flags = bytes.byte();
    let mut meta = Metadata { mode: bytes.half() & 0o7777, ..Metadata::default() };
    if flags & 1 != 0 {
        (meta.uid, meta.gid) = (bytes.word(), bytes.word());
    }
    if flags & 2 != 0 {
        // The library that reads the disk again knows no others.
        let seconds = i64::from_le_bytes(bytes.array()).clamp(0, i64::from(i32::MAX));
        meta.mtime = Timestamp { seconds, nanoseconds: bytes.word() % 1_000_000_000 };
    }
    for _ in 0..flags >> 5 {
        let prefixes = ["user.", "trusted.", "security.", "system.posix_acl_access", ""];
        let prefix = prefixes[usize::from(bytes.byte()) % prefixes.len()];
        let name = [prefix.as_bytes(), &name(bytes)].concat();
        let len = usize::from(bytes.half() % 6000);
        meta.xattrs.insert(name, bytes.some(len).to_vec());
    }
    meta
}
