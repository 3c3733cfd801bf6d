//! Room for the artifact, asked for before the work is done rather than after.

use std::collections::HashSet;
use std::path::Path;

use super::BuildError;
use crate::tree::{Kind, NodeId, Tree};

/// Fails where the file system of `folder` surely has no room for `copies` of the tree's data. Metadata, kernel
/// and memory come on top, so passing is no promise.
pub(super) fn check(folder: &Path, tree: &Tree, copies: u64) -> Result<(), BuildError> {
    let needed = data_bytes(tree).saturating_mul(copies);
    // A file system that does not say how full it is may have room.
    let Ok(space) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if needed <= free {
        return Ok(());
    }
    Err(BuildError::NoRoom { folder: folder.to_owned(), needed, free })
}

/// Bytes of all files, those of several names once, holes not at all.
fn data_bytes(tree: &Tree) -> u64 {
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut to_do = vec![Tree::ROOT];
    let mut bytes = 0_u64;
    while let Some(id) = to_do.pop() {
        match &tree.node(id).kind {
            _ if !seen.insert(id) => {}
            Kind::Directory(entries) => to_do.extend(entries.values()),
            Kind::File { extents, .. } => {
                bytes = extents.iter().fold(bytes, |sum, extent| sum.saturating_add(extent.len));
            }
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Extent, Metadata, Node, Source};

    #[test]
    fn data_counts_once_a_file_and_what_surely_does_not_fit_is_refused() {
        let mut tree = Tree::new();
        let source = tree.add_source(Source::Path("/none".into()));
        let extents = vec![Extent { at: 4096, len: 1 << 50, source, offset: 0 }];
        let file = Node { meta: Metadata::default(), kind: Kind::File { size: 1 << 60, extents }, layer: 0 };
        let id = tree.add(file);
        assert!(check(Path::new("/"), &tree, 2).is_ok(), "a file that no name reaches takes no room");
        for name in [b"a", b"b"] {
            tree.entries_mut(Tree::ROOT).unwrap().insert(name.as_slice().into(), id);
        }
        assert_eq!(data_bytes(&tree), 1 << 50);
        let error = check(Path::new("/"), &tree, 2).unwrap_err();
        assert!(matches!(error, BuildError::NoRoom { needed, .. } if needed == 1 << 51), "{error}");
        assert!(error.to_string().contains("MiB") && error.hint().is_some());
    }
}
