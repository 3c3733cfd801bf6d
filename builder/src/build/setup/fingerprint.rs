//! A digest of a tree's files, equal where two trees are.

use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;

use crate::tree::{Extent, Kind, NodeId, Tree};
use smolpack_registry::hex;

/// Digests names, owners, modes, times, attributes and links of all files, and what is in those of a layer
/// above `known`: of all, where that is `None`.
///
/// # Errors
/// A file's contents cannot be read.
pub(super) fn fingerprint(tree: &Tree, known: Option<u32>) -> io::Result<String> {
    let mut hasher = Hasher { sha: Sha256::new(), seen: HashMap::new(), buffer: vec![0; 1 << 18] };
    let mut to_do = vec![(Vec::new(), Tree::ROOT)];
    while let Some((path, id)) = to_do.pop() {
        hasher.node(tree, &path, id, known)?;
        for (name, child) in tree.entries(id).into_iter().flatten() {
            to_do.push(([path.as_slice(), b"/", name].concat(), *child));
        }
    }
    Ok(hex(&hasher.sha.finalize()))
}

struct Hasher {
    sha: Sha256,
    /// Nodes met, by the order in which they were.
    seen: HashMap<NodeId, u64>,
    buffer: Vec<u8>,
}

impl Hasher {
    fn bytes(&mut self, bytes: &[u8]) {
        self.sha.update((bytes.len() as u64).to_le_bytes());
        self.sha.update(bytes);
    }

    fn node(&mut self, tree: &Tree, path: &[u8], id: NodeId, known: Option<u32>) -> io::Result<()> {
        let node = tree.node(id);
        let order = self.seen.len() as u64;
        let first = *self.seen.entry(id).or_insert(order);
        self.bytes(path);
        self.bytes(&first.to_le_bytes());
        if first != order {
            return Ok(()); // another name of a file
        }
        let meta = &node.meta;
        let numbers = format!(
            "{} {} {} {} {} {}",
            meta.mode,
            meta.uid,
            meta.gid,
            meta.mtime.seconds,
            meta.mtime.nanoseconds,
            meta.xattrs.len()
        );
        self.bytes(numbers.as_bytes());
        for (name, value) in &meta.xattrs {
            self.bytes(name);
            self.bytes(value);
        }
        match &node.kind {
            Kind::File { size, extents } => {
                self.bytes(format!("file {size}").as_bytes());
                if known.is_none_or(|known| node.layer > known) {
                    extents.iter().try_for_each(|extent| self.contents(tree, extent))?;
                }
            }
            Kind::Directory(entries) => self.bytes(format!("folder {}", entries.len()).as_bytes()),
            Kind::Symlink(target) => self.bytes(&[b"link ", &**target].concat()),
            other => self.bytes(format!("{other:?}").as_bytes()),
        }
        Ok(())
    }

    fn contents(&mut self, tree: &Tree, extent: &Extent) -> io::Result<()> {
        let Extent { at, len, source, offset } = *extent;
        self.bytes(format!("{at} {len}").as_bytes());
        let file = tree.open(source)?;
        let mut done = 0;
        while done < len {
            let some = usize::try_from(len - done).unwrap_or(usize::MAX).min(self.buffer.len());
            file.read_exact_at(&mut self.buffer[..some], offset + done)?;
            self.sha.update(&self.buffer[..some]);
            done += some as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Metadata, Node, Source};
    use std::fs::File;
    use std::io::Write;
    use std::sync::Arc;

    fn tree(text: &[u8], mode: u16) -> Tree {
        let mut tree = Tree::new();
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let source = tree.add_source(Source::File(Arc::new(file)));
        let extents = vec![Extent { at: 0, len: text.len() as u64, source, offset: 0 }];
        let meta = Metadata { mode, ..Metadata::default() };
        let id = tree.add(Node { meta, kind: Kind::File { size: text.len() as u64, extents }, layer: 1 });
        tree.entries_mut(Tree::ROOT).unwrap().insert(b"a".as_slice().into(), id);
        tree
    }

    #[test]
    fn equal_files_are_equal_and_a_changed_byte_or_mode_shows() {
        let of = |text: &[u8], mode, known| fingerprint(&tree(text, mode), known).unwrap();
        assert_eq!(of(b"one", 0o644, None), of(b"one", 0o644, None));
        assert_ne!(of(b"one", 0o644, None), of(b"two", 0o644, None));
        assert_ne!(of(b"one", 0o644, None), of(b"one", 0o755, None));
        assert_ne!(of(b"one", 0o644, Some(0)), of(b"two", 0o644, Some(0)), "above the known layer");
        assert_eq!(of(b"one", 0o644, Some(1)), of(b"two", 0o644, Some(1)), "of the known layer");
    }
}
