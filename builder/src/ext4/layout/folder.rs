//! The blocks of a folder: one of linear entries, or a hash tree over leaves in the order of hashes.

use crate::ext4::spec::BLOCK_SIZE;
use crate::ext4::spec::Ino;
use crate::ext4::spec::checksum::Checksum;
use crate::ext4::spec::dir::{
    Entry, IndexEntry, LEAF_ROOM, NODE_LIMIT, ROOT_LIMIT, dots, entry_len, put_leaf, put_node, put_root,
};
use crate::ext4::spec::hash::{HashSeed, NameHash};
use std::ops::Range;

/// The room of the entries `.` and `..`, bytes.
const DOTS_LEN: usize = 24;

/// The most leaves under a root and one level of nodes; more would take the feature `largedir`.
const MAX_LEAVES: usize = ROOT_LIMIT * NODE_LIMIT;

/// How many blocks a folder of these names has; `None` where they are too many.
///
/// Without a seed it is the most blocks that any seed leads to.
pub(in crate::ext4) fn blocks<'a>(
    names: impl Iterator<Item = &'a [u8]> + Clone,
    seed: Option<HashSeed>,
) -> Option<u64> {
    let total: usize = names.clone().map(entry_len).sum();
    if DOTS_LEN + total <= LEAF_ROOM {
        return Some(1);
    }
    let leaves = match seed {
        Some(seed) => {
            let mut hashed: Vec<_> = names.map(|name| (seed.hash(name), name)).collect();
            hashed.sort_unstable();
            pack(hashed.iter().map(|(_, name)| *name)).len()
        }
        // A leaf but the last has less room left than the longest name takes.
        None => total / (LEAF_ROOM - names.map(entry_len).max().unwrap_or(0)) + 1,
    };
    (leaves <= MAX_LEAVES).then(|| (1 + node_count(leaves) + leaves) as u64)
}

/// How many inner nodes stand between the root and the leaves.
fn node_count(leaves: usize) -> usize {
    if leaves <= ROOT_LIMIT { 0 } else { leaves.div_ceil(NODE_LIMIT) }
}

/// Fills leaves with names in order, each as full as it goes.
fn pack<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<Range<usize>> {
    let mut leaves = Vec::new();
    let (mut start, mut end, mut used) = (0, 0, 0);
    for name in names {
        let len = entry_len(name);
        if used + len > LEAF_ROOM {
            leaves.push(start..end);
            (start, used) = (end, 0);
        }
        used += len;
        end += 1;
    }
    leaves.push(start..end);
    leaves
}

/// A folder about to be encoded.
#[derive(Debug)]
pub(in crate::ext4) struct Folder<'a> {
    /// Its own inode.
    pub(in crate::ext4) ino: Ino,
    /// What `..` names.
    pub(in crate::ext4) parent: Ino,
    /// What is in it.
    pub(in crate::ext4) entries: Vec<Entry<'a>>,
}

impl Folder<'_> {
    /// Its blocks, as many as [`blocks`] says; `checksum` is that of its inode.
    pub(in crate::ext4) fn encode(self, seed: HashSeed, checksum: Checksum) -> Vec<u8> {
        let total: usize = self.entries.iter().map(|entry| entry_len(entry.name)).sum();
        let dots = dots(self.ino, self.parent);
        if DOTS_LEN + total <= LEAF_ROOM {
            let mut block = vec![0; BLOCK_SIZE];
            put_leaf(&mut block, &[&dots[..], &self.entries].concat(), checksum);
            return block;
        }
        HashTree::new(self.entries, seed).encode(&dots, checksum)
    }
}

/// Entries in the order of their hashes, cut into leaves.
struct HashTree<'a> {
    hashes: Vec<NameHash>,
    entries: Vec<Entry<'a>>,
    leaves: Vec<Range<usize>>,
}

impl<'a> HashTree<'a> {
    fn new(entries: Vec<Entry<'a>>, seed: HashSeed) -> Self {
        let mut hashed: Vec<_> = entries.into_iter().map(|entry| (seed.hash(entry.name), entry)).collect();
        hashed.sort_unstable_by_key(|(hash, entry)| (*hash, entry.name));
        let leaves = pack(hashed.iter().map(|(_, entry)| entry.name));
        let (hashes, entries) = hashed.into_iter().unzip();
        Self { hashes, entries, leaves }
    }

    /// The root, then the inner nodes, then the leaves.
    fn encode(&self, dots: &[Entry<'_>; 2], checksum: Checksum) -> Vec<u8> {
        let nodes = node_count(self.leaves.len());
        let mut bytes = vec![0; (1 + nodes + self.leaves.len()) * BLOCK_SIZE];
        let leaves: Vec<IndexEntry> = (0..self.leaves.len())
            .map(|leaf| IndexEntry { hash: self.first_hash(leaf), block: (1 + nodes + leaf) as u32 })
            .collect();
        let top: Vec<IndexEntry> = leaves
            .chunks(NODE_LIMIT)
            .zip(1..)
            .map(|(node, block)| IndexEntry { hash: node[0].hash, block })
            .collect();
        let mut blocks = bytes.chunks_exact_mut(BLOCK_SIZE);
        if let Some(root) = blocks.next() {
            let entries = if nodes == 0 { &leaves } else { &top };
            put_root(root, dots, u8::from(nodes > 0), entries, checksum);
        }
        for (node, block) in leaves.chunks(NODE_LIMIT).take(nodes).zip(&mut blocks) {
            put_node(block, node, checksum);
        }
        for (leaf, block) in self.leaves.iter().zip(&mut blocks) {
            put_leaf(block, &self.entries[leaf.clone()], checksum);
        }
        bytes
    }

    /// The hash that the index has for a leaf; odd where the leaf before it ends with the same one.
    fn first_hash(&self, leaf: usize) -> u32 {
        let start = self.leaves[leaf].start;
        let hash = self.hashes[start].major;
        let continued = start > 0 && self.hashes[start - 1].major == hash;
        hash | u32::from(continued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext4::spec::dir::FileType;

    fn names(count: usize, len: usize) -> Vec<Vec<u8>> {
        (0..count).map(|i| format!("{i:0len$}").into_bytes()).collect()
    }

    fn sizes(names: &[Vec<u8>]) -> (u64, u64, u64) {
        let seed = HashSeed::new(&[7; 16]);
        let slices = || names.iter().map(Vec::as_slice);
        let entries =
            slices().map(|name| Entry { name, ino: Ino(12), file_type: FileType::Regular }).collect();
        let folder = Folder { ino: Ino(11), parent: Ino::ROOT, entries };
        let encoded = folder.encode(seed, Checksum::START).len() / BLOCK_SIZE;
        (blocks(slices(), Some(seed)).unwrap(), blocks(slices(), None).unwrap(), encoded as u64)
    }

    #[test]
    fn counts_agree_with_what_is_encoded_and_the_bound_holds() {
        for (count, len) in [(0, 1), (10, 5), (254, 8), (255, 8), (3000, 20), (20_000, 200)] {
            let (exact, bound, encoded) = sizes(&names(count, len));
            assert_eq!(exact, encoded, "{count} names of {len}");
            assert!(bound >= exact, "{count} names of {len}");
        }
    }

    #[test]
    fn one_block_holds_what_fits_beside_the_tail() {
        let full = (LEAF_ROOM - DOTS_LEN) / 16;
        assert_eq!(sizes(&names(full, 8)).0, 1);
        assert_eq!(sizes(&names(full + 1, 8)).0, 2);
        assert_eq!(sizes(&names(full + 3, 8)).0, 3);
    }

    #[test]
    fn too_many_names_have_no_size() {
        let name = [b'x'; 255];
        let names = std::iter::repeat_n(&name[..], MAX_LEAVES * 16);
        assert_eq!(blocks(names, None), None);
    }
}
