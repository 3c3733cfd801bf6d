//! One case at a time.

use crate::image::{GIB, Image, MIB, Mounted, judge, options, run};
use crate::maker::{Maker, folder, meta};
use smolpack_builder::ext4;
use smolpack_builder::tree::{Extent, Kind, Metadata, NodeId, Timestamp, Tree};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

#[test]
fn an_empty_tree_is_clean_at_every_size() {
    for size in [16 * MIB, 127 * MIB, 128 * MIB + 4096, 131 * MIB, GIB, 10 * GIB, 64 * GIB] {
        judge(&Tree::new(), size);
    }
}

#[test]
fn small_files_and_folders_come_back() {
    let mut maker = Maker::new();
    let etc = maker.folder(Tree::ROOT, b"etc");
    maker.file(etc, b"hostname", b"smol\n");
    maker.file(etc, b"empty", b"");
    maker.file(Tree::ROOT, b"large", &vec![7; 5_000_001]);
    judge(&maker.tree, 64 * MIB);
}

#[test]
fn every_kind_and_mode_comes_back() {
    let mut maker = Maker::new();
    let dev = maker.folder(Tree::ROOT, b"dev");
    for (name, kind) in [
        (&b"null"[..], Kind::CharDevice { major: 1, minor: 3 }),
        (b"old", Kind::BlockDevice { major: 255, minor: 255 }),
        (b"nvme", Kind::BlockDevice { major: 259, minor: 1_048_575 }),
        (b"largest", Kind::CharDevice { major: 4095, minor: 256 }),
        (b"fifo", Kind::Fifo),
        (b"socket", Kind::Socket),
    ] {
        maker.add(dev, name, meta(0o640), kind);
    }
    for mode in [0o4755, 0o2755, 0o1777, 0o7777, 0] {
        let kind = maker.contents(1, &[(0, b"x")]);
        maker.add(Tree::ROOT, format!("mode{mode}").as_bytes(), meta(mode), kind);
        maker.add(Tree::ROOT, format!("folder{mode}").as_bytes(), meta(mode), folder());
    }
    maker.tree.node_mut(Tree::ROOT).meta = Metadata { uid: 7, gid: 8, ..meta(0o1755) };
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn owners_up_to_the_last_come_back() {
    let mut maker = Maker::new();
    for (uid, gid) in [(0, 65_535), (65_536, 1000), (4_294_967_294, 4_294_967_294)] {
        let kind = maker.contents(3, &[(0, b"abc")]);
        maker.add(Tree::ROOT, format!("{uid}").as_bytes(), Metadata { uid, gid, ..meta(0o600) }, kind);
    }
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn times_from_1901_to_2446_come_back() {
    let mut maker = Maker::new();
    for (i, seconds) in
        [-0x8000_0000, -1, 0, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x1_8000_0000, 0x3_7FFF_FFFF]
            .into_iter()
            .enumerate()
    {
        // The kernel takes the nanoseconds off the first and last second that it knows.
        let nanoseconds = if i == 0 || i == 7 { 0 } else { 999_999_999 };
        let meta = Metadata { mtime: Timestamp { seconds, nanoseconds }, ..meta(0o644) };
        maker.add(Tree::ROOT, format!("{seconds}").as_bytes(), meta.clone(), Kind::Fifo);
        maker.add(Tree::ROOT, format!("folder{seconds}").as_bytes(), meta, folder());
    }
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn names_of_any_bytes_come_back() {
    let mut maker = Maker::new();
    maker.file(Tree::ROOT, &[b'n'; 255], b"long");
    maker.file(Tree::ROOT, b"\xff\xfe not utf-8 \x01\n", b"x");
    maker.file(Tree::ROOT, "…".as_bytes(), b"x");
    maker.file(Tree::ROOT, b"...", b"x");
    maker.folder(Tree::ROOT, &[0x80; 255]);
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn symlinks_of_every_length_come_back() {
    let mut maker = Maker::new();
    for len in [1, 58, 59, 60, 61, 4095] {
        maker.add(
            Tree::ROOT,
            format!("{len}").as_bytes(),
            meta(0o777),
            Kind::Symlink(vec![b't'; len].into()),
        );
    }
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn hard_links_of_files_symlinks_and_devices_come_back() {
    let mut maker = Maker::new();
    let below = maker.folder(Tree::ROOT, b"below");
    let file = maker.file(Tree::ROOT, b"z-file", b"shared");
    let link = maker.add(Tree::ROOT, b"link", meta(0o777), Kind::Symlink(b"target"[..].into()));
    let device = maker.add(Tree::ROOT, b"device", meta(0o600), Kind::CharDevice { major: 5, minor: 1 });
    for id in [file, link, device] {
        maker.link(below, format!("again{}", id.0).as_bytes(), id);
        maker.link(Tree::ROOT, format!("more{}", id.0).as_bytes(), id);
    }
    judge(&maker.tree, 16 * MIB);
}

/// A folder full of empty files under numbered names.
fn full_folder(maker: &mut Maker, count: u32, name: impl Fn(u32) -> Vec<u8>) -> NodeId {
    let full = maker.folder(Tree::ROOT, b"full");
    for i in 0..count {
        maker.file(full, &name(i), b"");
    }
    full
}

#[test]
fn a_folder_of_20000_entries_comes_back() {
    let mut maker = Maker::new();
    let full = full_folder(&mut maker, 20_000, |i| format!("entry-{i}").into_bytes());
    let image = judge(&maker.tree, 512 * MIB);
    let listed = run("debugfs", &["-R".as_ref(), "htree /full".as_ref(), &image.path()]);
    assert!(listed.contains("Hash Version: 1"), "{listed}");
    assert_eq!(maker.tree.entries(full).unwrap().len(), 20_000);
}

#[test]
fn a_folder_with_two_levels_of_index_comes_back() {
    let mut maker = Maker::new();
    full_folder(&mut maker, 12_000, |i| format!("{i:0255}").into_bytes());
    let image = judge(&maker.tree, 512 * MIB);
    let listed = run("debugfs", &["-R".as_ref(), "htree /full".as_ref(), &image.path()]);
    assert!(listed.contains("Indirect levels: 1"), "{listed}");
}

#[test]
fn a_folder_of_200000_entries_comes_back() {
    let mut maker = Maker::new();
    let full = maker.folder(Tree::ROOT, b"full");
    let kind = maker.contents(1, &[(0, b"x")]);
    let meta = meta(0o644);
    for i in 0..200_000 {
        maker.add(full, format!("{i:x}-entry-of-a-large-folder").as_bytes(), meta.clone(), kind.clone());
    }
    let image = Image::write(&maker.tree, &options(2 * GIB));
    image.check();
    let mounted = Mounted::new(&image.path(), "ro");
    let full = mounted.0.path().join("full");
    assert_eq!(fs::read_dir(&full).unwrap().count(), 200_000);
    for i in (0..200_000).step_by(997) {
        assert_eq!(fs::read(full.join(format!("{i:x}-entry-of-a-large-folder"))).unwrap(), b"x");
    }
}

#[test]
fn a_folder_of_70000_subfolders_is_clean() {
    let mut maker = Maker::new();
    let many = maker.folder(Tree::ROOT, b"many");
    for i in 0..70_000 {
        maker.folder(many, format!("{i}").as_bytes());
    }
    let image = Image::write(&maker.tree, &options(4 * GIB));
    image.check();
}

#[test]
fn a_sparse_file_of_10_gib_keeps_its_holes() {
    let mut maker = Maker::new();
    let size = 10 * GIB + 12345;
    let kind = maker.contents(size, &[(5000, b"start"), (6 * GIB, &[1; 10_000]), (size - 3, b"end")]);
    maker.add(Tree::ROOT, b"sparse", meta(0o644), kind);
    let kind = maker.contents(3 * GIB, &[]);
    maker.add(Tree::ROOT, b"hole", meta(0o644), kind);
    let image = judge(&maker.tree, 32 * MIB);
    let stat = run("debugfs", &["-R".as_ref(), "stat /sparse".as_ref(), &image.path()]);
    assert!(stat.contains("Blockcount: 40"), "five blocks of data:\n{stat}");
}

#[test]
fn files_of_many_extents_come_back() {
    let mut maker = Maker::new();
    for count in [4u64, 5, 340, 341, 1360, 1361, 2000] {
        let pieces: Vec<(u64, [u8; 8])> = (0..count).map(|i| (i * 8192, i.to_le_bytes())).collect();
        let pieces: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let kind = maker.contents(count * 8192, &pieces);
        maker.add(Tree::ROOT, format!("{count}").as_bytes(), meta(0o644), kind);
    }
    judge(&maker.tree, 128 * MIB);
}

#[test]
fn a_file_of_150000_extents_is_clean() {
    let mut maker = Maker::new();
    let Kind::File { extents, .. } = maker.contents(1, &[(0, b"\0")]) else { unreachable!() };
    let extents = (0..150_000).map(|i| Extent { at: i * 8192, ..extents[0] }).collect();
    let kind = Kind::File { size: 150_000 * 8192, extents };
    maker.add(Tree::ROOT, b"file", meta(0o644), kind);
    let image = Image::write_hollow(&maker.tree, &options(GIB));
    image.check();
    let stat = run("debugfs", &["-R".as_ref(), "stat /file".as_ref(), &image.path()]);
    assert!(stat.contains(&format!("Blockcount: {}", (150_000 + 442 + 2) * 8)), "{stat}");
}

#[test]
fn a_file_of_5_gib_comes_back() {
    let mut maker = Maker::new();
    let piece = 64 * MIB;
    let zeros = vec![0; usize::try_from(piece).unwrap()];
    let Kind::File { extents, .. } = maker.contents(piece, &[(0, &zeros)]) else { unreachable!() };
    let Kind::File { extents: end, .. } = maker.contents(3, &[(0, b"end")]) else { unreachable!() };
    let mut extents: Vec<Extent> = (0..80).map(|i| Extent { at: i * piece, ..extents[0] }).collect();
    extents.push(Extent { at: 5 * GIB, ..end[0] });
    maker.add(Tree::ROOT, b"large", meta(0o644), Kind::File { size: 5 * GIB + 3, extents });
    maker.file(Tree::ROOT, b"next", b"x");
    let image = Image::write_hollow(&maker.tree, &options(10 * GIB));
    image.check();
    let mounted = Mounted::new(&image.path(), "ro");
    let mut large = File::open(mounted.0.path().join("large")).unwrap();
    let mut tail = Vec::new();
    large.seek(SeekFrom::End(-10)).unwrap();
    large.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, b"\0\0\0\0\0\0\0end");
    assert_eq!(large.metadata().unwrap().len(), 5 * GIB + 3);
    assert_eq!(fs::read(mounted.0.path().join("next")).unwrap(), b"x");
}

#[test]
fn extents_that_share_blocks_come_back() {
    let mut maker = Maker::new();
    let pieces: [(u64, &[u8]); 5] =
        [(0, b"a"), (512, &[2; 512]), (4000, &[3; 200]), (8191, b"x"), (40_960, &[4; 4096])];
    let kind = maker.contents(50_000, &pieces);
    maker.add(Tree::ROOT, b"pieces", meta(0o644), kind);
    judge(&maker.tree, 16 * MIB);
}

fn with_xattrs(xattrs: &[(&str, Vec<u8>)]) -> Metadata {
    let xattrs = xattrs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.clone())).collect();
    Metadata { xattrs, ..meta(0o644) }
}

#[test]
fn attributes_in_body_block_and_inodes_come_back() {
    let mut maker = Maker::new();
    let many: Vec<_> =
        (0..30u8).map(|i| (format!("user.attribute{i}"), vec![i; usize::from(i) * 4])).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    for (name, xattrs) in [
        ("one", &[("user.a", b"value".to_vec())][..]),
        ("empty", &[("user.empty", vec![])]),
        (
            "capability",
            &[("security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec())],
        ),
        (
            "namespaces",
            &[("trusted.t", b"1".to_vec()), ("security.s", b"2".to_vec()), ("user.\u{e9}", b"3".to_vec())],
        ),
        ("block", &[("user.block", vec![1; 3000])]),
        ("large", &[("user.large", (0..40_960u32).map(|i| i as u8).collect())]),
        (
            "largest",
            &[("user.largest", vec![9; 65_536]), ("user.other", vec![8; 5000]), ("user.small", vec![1])],
        ),
        ("many", &many),
    ] {
        let kind = maker.contents(4, &[(0, b"data")]);
        maker.add(Tree::ROOT, name.as_bytes(), with_xattrs(xattrs), kind);
        maker.add(Tree::ROOT, format!("{name}.folder").as_bytes(), with_xattrs(xattrs), folder());
    }
    let large = with_xattrs(&[("trusted.large", vec![5; 10_000])]);
    maker.add(Tree::ROOT, b"short link", large.clone(), Kind::Symlink(b"here"[..].into()));
    maker.add(Tree::ROOT, b"long link", large.clone(), Kind::Symlink([b'x'; 100][..].into()));
    maker.add(Tree::ROOT, b"fifo", large, Kind::Fifo);
    judge(&maker.tree, 32 * MIB);
}

/// An ACL as `getxattr` returns it: tags, permissions, identifiers.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for &(tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_and_default_acls_come_back() {
    const NONE: u32 = u32::MAX;
    let mut maker = Maker::new();
    let entries = [
        (1, 6, NONE),
        (2, 4, 1000),
        (2, 7, 4_000_000_000),
        (4, 4, NONE),
        (8, 5, 50),
        (16, 7, NONE),
        (32, 4, NONE),
    ];
    let access = ("system.posix_acl_access", acl(&entries));
    let default = ("system.posix_acl_default", acl(&entries));
    let meta = |xattrs: &[_]| Metadata { mode: 0o674, ..with_xattrs(xattrs) };
    let kind = maker.contents(1, &[(0, b"x")]);
    maker.add(Tree::ROOT, b"file", meta(std::slice::from_ref(&access)), kind);
    maker.add(Tree::ROOT, b"folder", meta(&[access, default]), folder());
    judge(&maker.tree, 16 * MIB);
}

#[test]
fn attributes_of_no_namespace_are_left_out_and_counted() {
    let mut maker = Maker::new();
    let xattrs = with_xattrs(&[("com.apple.provenance", vec![1; 11])]);
    maker.add(Tree::ROOT, b"a", xattrs.clone(), Kind::Fifo);
    maker.add(Tree::ROOT, b"b", xattrs, Kind::Fifo);
    let image = Image::write(&maker.tree, &options(16 * MIB));
    image.check();
    assert_eq!(image.summary.foreign_xattrs.get(&b"com.apple.provenance"[..]), Some(&2));
}

#[test]
fn a_file_over_metadata_of_several_groups_comes_back() {
    let mut maker = Maker::new();
    maker.file(Tree::ROOT, b"huge", &b"0123456789abcdef".repeat(300 << 16));
    maker.file(Tree::ROOT, b"next", b"x");
    let size = ext4::minimum_size(&maker.tree).unwrap();
    assert!(size < 330 * MIB, "{size}");
    judge(&maker.tree, size);
}

#[test]
fn lost_found_of_the_tree_is_kept() {
    let mut maker = Maker::new();
    let found = maker.folder(Tree::ROOT, b"lost+found");
    maker.file(found, b"#12", b"found");
    let image = Image::write(&maker.tree, &options(16 * MIB));
    image.check();
    let listed = run("debugfs", &["-R".as_ref(), "cat /lost+found/#12".as_ref(), &image.path()]);
    assert!(listed.contains("found"), "{listed}");
}
