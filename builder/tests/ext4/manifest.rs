//! What must survive of every entry, from a tree and from a mounted folder.

use rustix::fs::{SeekFrom, lgetxattr, llistxattr, seek};
use sha2::{Digest, Sha256};
use smolpack_builder::tree::{Kind, Node, NodeId, Tree};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const BLOCK: u64 = 4096;

/// Paths, as bytes, to entries.
pub(crate) type Manifest = BTreeMap<Vec<u8>, Entry>;

/// All that must be the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u32),
    /// How many names, and the first of them.
    links: (u64, Vec<u8>),
    rdev: (u32, u32),
    size: u64,
    /// Of the contents' blocks that are not zero and their places, or of a target.
    digest: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Hashes blocks that are not zero, with their places.
#[derive(Default)]
struct BlockHasher(Sha256);

impl BlockHasher {
    fn block(&mut self, at: u64, bytes: &[u8]) {
        if bytes != [0; 4096] {
            self.0.update(at.to_le_bytes());
            self.0.update(bytes);
        }
    }

    fn finish(self) -> Vec<u8> {
        self.0.finalize().to_vec()
    }
}

/// The manifest of a tree, with the lost+found that it lacks left out.
pub(crate) fn of_tree(tree: &Tree) -> Manifest {
    let mut named: Vec<(Vec<u8>, NodeId)> = vec![(b"/".to_vec(), Tree::ROOT)];
    let mut next = 0;
    while let Some((path, id)) = named.get(next).cloned() {
        for (name, &id) in tree.entries(id).into_iter().flatten() {
            named.push(([&path[..], name, if is_folder(tree, id) { b"/" } else { b"" }].concat(), id));
        }
        next += 1;
    }
    named.sort();
    let mut names: HashMap<NodeId, Vec<Vec<u8>>> = HashMap::new();
    for (path, id) in &named {
        names.entry(*id).or_default().push(path.clone());
    }
    named.into_iter().map(|(path, id)| (path, of_node(tree, tree.node(id), &names[&id]))).collect()
}

fn is_folder(tree: &Tree, id: NodeId) -> bool {
    matches!(tree.node(id).kind, Kind::Directory(_))
}

fn of_node(tree: &Tree, node: &Node, names: &[Vec<u8>]) -> Entry {
    let meta = &node.meta;
    let (file_type, rdev) = match node.kind {
        Kind::File { .. } => (0o100_000, (0, 0)),
        Kind::Directory(_) => (0o040_000, (0, 0)),
        Kind::Symlink(_) => (0o120_000, (0, 0)),
        Kind::CharDevice { major, minor } => (0o020_000, (major, minor)),
        Kind::BlockDevice { major, minor } => (0o060_000, (major, minor)),
        Kind::Fifo => (0o010_000, (0, 0)),
        Kind::Socket => (0o140_000, (0, 0)),
    };
    let (size, digest) = match &node.kind {
        Kind::File { size, .. } => (*size, digest_of_node(tree, node)),
        Kind::Symlink(target) => (target.len() as u64, target.to_vec()),
        _ => (0, Vec::new()),
    };
    // Folders are told apart by their subfolders alone: their count is checked by e2fsck.
    let links = if file_type == 0o040_000 { 0 } else { names.len() as u64 };
    Entry {
        mode: file_type | u32::from(meta.mode),
        owner: (meta.uid, meta.gid),
        mtime: (meta.mtime.seconds, meta.mtime.nanoseconds),
        links: (links, names[0].clone()),
        rdev,
        size,
        digest,
        xattrs: meta.xattrs.clone(),
    }
}

fn digest_of_node(tree: &Tree, node: &Node) -> Vec<u8> {
    let Kind::File { extents, .. } = &node.kind else { unreachable!() };
    let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut hasher = BlockHasher::default();
    for extent in extents {
        let mut data = vec![0; usize::try_from(extent.len).unwrap()];
        tree.open(extent.source).unwrap().read_exact_at(&mut data, extent.offset).unwrap();
        let mut at = extent.at;
        let mut rest = &data[..];
        while !rest.is_empty() {
            let from = usize::try_from(at % BLOCK).unwrap();
            let (now, later) = rest.split_at(rest.len().min(4096 - from));
            let block = blocks.entry(at / BLOCK).or_insert_with(|| vec![0; 4096]);
            block[from..from + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        while blocks.len() > 1 {
            let (block, bytes) = blocks.pop_first().unwrap();
            hasher.block(block, &bytes);
        }
    }
    for (block, bytes) in blocks {
        hasher.block(block, &bytes);
    }
    hasher.finish()
}

/// The manifest of a mounted image.
pub(crate) fn of_folder(root: &Path) -> Manifest {
    let mut manifest = Manifest::new();
    let mut first_names = HashMap::new();
    add_folder(root, b"/".to_vec(), &mut first_names, &mut manifest);
    for entry in manifest.values_mut() {
        if let Some(first) = first_names.get(&entry.links.1) {
            entry.links.1.clone_from(first);
        }
    }
    manifest
}

/// `first_names` has the first name of each inode, under the inode's number as bytes.
fn add_folder(
    host: &Path,
    path: Vec<u8>,
    first_names: &mut HashMap<Vec<u8>, Vec<u8>>,
    manifest: &mut Manifest,
) {
    for entry in fs::read_dir(host).unwrap() {
        let entry = entry.unwrap();
        let child = [&path[..], entry.file_name().as_bytes()].concat();
        if entry.file_type().unwrap().is_dir() {
            if child != b"/lost+found" {
                add_folder(&entry.path(), [&child[..], b"/"].concat(), first_names, manifest);
            }
        } else {
            add(&entry.path(), child, first_names, manifest);
        }
    }
    add(host, path, first_names, manifest);
}

fn add(host: &Path, path: Vec<u8>, first_names: &mut HashMap<Vec<u8>, Vec<u8>>, manifest: &mut Manifest) {
    let meta = fs::symlink_metadata(host).unwrap();
    let inode = meta.ino().to_le_bytes().to_vec();
    let first = first_names.entry(inode.clone()).or_insert_with(|| path.clone());
    if path < *first {
        first.clone_from(&path);
    }
    let (size, digest) = if meta.is_file() {
        (meta.size(), digest_of_file(host, meta.size()))
    } else if meta.is_symlink() {
        (meta.size(), fs::read_link(host).unwrap().as_os_str().as_bytes().to_vec())
    } else {
        (0, Vec::new())
    };
    let entry = Entry {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap()),
        links: (if meta.is_dir() { 0 } else { meta.nlink() }, inode),
        rdev: (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())),
        size,
        digest,
        xattrs: xattrs(host),
    };
    manifest.insert(path, entry);
}

fn digest_of_file(host: &Path, size: u64) -> Vec<u8> {
    let file = File::open(host).unwrap();
    let mut hasher = BlockHasher::default();
    let mut at = 0;
    while at < size {
        let Ok(data) = seek(&file, SeekFrom::Data(at)) else { break };
        let hole = seek(&file, SeekFrom::Hole(data)).unwrap();
        at = data / BLOCK * BLOCK;
        while at < hole {
            let mut block = [0; 4096];
            let len = usize::try_from((size - at).min(BLOCK)).unwrap();
            file.read_exact_at(&mut block[..len], at).unwrap();
            hasher.block(at / BLOCK, &block);
            at += BLOCK;
        }
    }
    hasher.finish()
}

fn xattrs(host: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = llistxattr(host, &mut names).unwrap();
    names.truncate(len);
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = lgetxattr(host, name, &mut value).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}
