//! What cannot be written is refused before a byte is, with the place in the error.

use crate::image::{MIB, options};
use crate::maker::{Maker, folder, meta};
use smolpack_builder::ext4::{self, Ext4Error, Options};
use smolpack_builder::sink::BlockSink;
use smolpack_builder::tree::{Extent, Kind, Metadata, Source, Tree};
use std::io;

/// Counts bytes, and fails after so many.
struct Counter {
    taken: u64,
    limit: u64,
}

impl BlockSink for Counter {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.zeros(bytes.len() as u64)
    }

    fn zeros(&mut self, len: u64) -> io::Result<()> {
        self.taken += len;
        if self.taken > self.limit { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

fn refused(tree: &Tree, options: &Options) -> String {
    let mut sink = Counter { taken: 0, limit: u64::MAX };
    let error = ext4::write(tree, options, &mut sink).unwrap_err();
    assert_eq!(sink.taken, 0, "nothing is written before the check");
    error.to_string()
}

fn refused_entry(name: &[u8], meta: Metadata, kind: Kind) -> String {
    let mut maker = Maker::new();
    let parent = maker.folder(Tree::ROOT, b"dir");
    maker.add(parent, name, meta, kind);
    refused(&maker.tree, &options(64 * MIB))
}

#[test]
fn entries_that_ext4_cannot_hold_are_named() {
    let mut no_acl = meta(0o644);
    no_acl.xattrs.insert(b"system.posix_acl_access".to_vec(), b"rubbish".to_vec());
    for (case, name, meta, kind) in [
        ("slash", &b"a/b"[..], meta(0), Kind::Fifo),
        ("dots", b"..", meta(0), Kind::Fifo),
        ("long", &[b'x'; 256], meta(0), Kind::Fifo),
        ("target", b"link", meta(0o777), Kind::Symlink([b'x'; 4096][..].into())),
        ("no target", b"link", meta(0o777), Kind::Symlink([][..].into())),
        ("device", b"dev", meta(0), Kind::CharDevice { major: 4096, minor: 0 }),
        ("size", b"file", meta(0), Kind::File { size: 1 << 44, extents: Vec::new() }),
        ("acl", b"file", no_acl, Kind::Fifo),
    ] {
        let error = refused_entry(name, meta, kind);
        assert!(error.starts_with(&format!("/dir/{}: ", String::from_utf8_lossy(name))), "{case}: {error}");
    }
}

#[test]
fn extents_out_of_order_or_bounds_are_refused() {
    let mut maker = Maker::new();
    let Kind::File { extents, .. } = maker.contents(8, &[(0, b"abcdefgh")]) else { unreachable!() };
    let extent = |at, len| Extent { at, len, ..extents[0] };
    for (case, size, extents) in [
        ("past the end", 7, vec![extent(0, 8)]),
        ("overlap", 100, vec![extent(0, 8), extent(7, 1)]),
        ("order", 100, vec![extent(50, 1), extent(0, 1)]),
        ("empty", 100, vec![extent(5, 0)]),
        ("overflow", 100, vec![extent(u64::MAX, 2)]),
    ] {
        let error = refused_entry(b"file", meta(0o644), Kind::File { size, extents });
        assert!(error.contains("extents"), "{case}: {error}");
    }
}

#[test]
fn folders_with_two_names_and_cycles_are_refused() {
    let mut maker = Maker::new();
    let outer = maker.folder(Tree::ROOT, b"outer");
    let inner = maker.add(outer, b"inner", meta(0o755), folder());
    maker.link(inner, b"loop", outer);
    let error = refused(&maker.tree, &options(64 * MIB));
    assert_eq!(error, "/outer/inner/loop: a folder cannot have two names");
}

#[test]
fn lost_found_that_is_no_folder_is_refused() {
    let mut maker = Maker::new();
    maker.file(Tree::ROOT, b"lost+found", b"");
    assert!(refused(&maker.tree, &options(64 * MIB)).starts_with("/lost+found: "));
}

#[test]
fn too_small_a_disk_says_what_is_needed() {
    let mut maker = Maker::new();
    maker.file(Tree::ROOT, b"data", &vec![1; 20 << 20]);
    let mut sink = Counter { taken: 0, limit: u64::MAX };
    for size in [0, 4096, MIB, 16 * MIB] {
        let Err(Ext4Error::TooSmall { needed, .. }) = ext4::write(&maker.tree, &options(size), &mut sink)
        else {
            panic!("{size} is too small");
        };
        assert!(needed > size && needed <= 32 * MIB, "{needed}");
        let mut sink = Counter { taken: 0, limit: u64::MAX };
        ext4::write(&maker.tree, &options(needed), &mut sink).unwrap();
        assert_eq!(sink.taken, needed);
    }
    assert_eq!(sink.taken, 0);
}

#[test]
fn odd_sizes_and_long_labels_are_refused() {
    let tree = Tree::new();
    assert!(refused(&tree, &options(16 * MIB + 1)).contains("multiple of 4096"));
    assert!(refused(&tree, &options(1 << 45)).contains("16 TiB"));
    let long = Options { label: Some("seventeen letters".to_owned()), ..options(16 * MIB) };
    assert!(refused(&tree, &long).contains("17 bytes"));
}

#[test]
fn a_source_that_ends_early_or_is_gone_names_the_file() {
    let mut maker = Maker::new();
    let kind = maker.contents(100, &[(0, &[1; 100])]);
    let Kind::File { extents, .. } = &kind else { unreachable!() };
    let long = Extent { len: 5000, ..extents[0] };
    let gone = maker.tree.add_source(Source::Path("/nonexistent/file".into()));
    for extent in [long, Extent { source: gone, len: 1, ..long }] {
        let tree = maker.tree.clone();
        let mut maker = Maker::new();
        maker.tree = tree;
        let dir = maker.folder(Tree::ROOT, b"dir");
        maker.add(dir, b"short", meta(0), Kind::File { size: 5000, extents: vec![extent] });
        let mut sink = Counter { taken: 0, limit: u64::MAX };
        let error = ext4::write(&maker.tree, &options(16 * MIB), &mut sink).unwrap_err();
        assert_eq!(error.to_string(), "/dir/short: cannot read its data");
    }
}

#[test]
fn a_sink_that_fails_ends_the_writing() {
    let mut maker = Maker::new();
    maker.file(Tree::ROOT, b"data", &vec![1; 20 << 20]);
    for limit in [0, 5 * MIB, 15 * MIB] {
        let mut sink = Counter { taken: 0, limit };
        let error = ext4::write(&maker.tree, &options(64 * MIB), &mut sink).unwrap_err();
        let Ext4Error::Write(source) = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    }
}
