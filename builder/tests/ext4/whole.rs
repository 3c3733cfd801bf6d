//! The file system as a whole: its features, growth, use by the kernel, small changes.

use crate::image::{GIB, Image, MIB, Mounted, assert_same, judge, options, run};
use crate::maker::{Maker, meta};
use crate::manifest::of_tree;
use smolpack_builder::tree::Tree;
use std::fs::{self, OpenOptions};
use std::path::Path;

fn small_tree() -> Maker {
    let mut maker = Maker::new();
    for i in 0..200u8 {
        let folder = maker.folder(Tree::ROOT, format!("folder{i}").as_bytes());
        maker.file(folder, b"file", &vec![i; 10_000]);
    }
    maker
}

#[test]
fn the_features_are_there() {
    let image = judge(&small_tree().tree, GIB);
    let listed = run("dumpe2fs", &["-h".as_ref(), &image.path()]);
    let features = listed.lines().find(|line| line.starts_with("Filesystem features:")).unwrap();
    for feature in [
        "has_journal",
        "ext_attr",
        "resize_inode",
        "dir_index",
        "filetype",
        "extent",
        "64bit",
        "flex_bg",
        "sparse_super",
        "large_file",
        "huge_file",
        "dir_nlink",
        "extra_isize",
        "metadata_csum",
    ] {
        assert!(features.contains(feature), "{feature} in {features}");
    }
    for line in ["Filesystem volume name:   root", "Filesystem state:         clean", "ournal size:"] {
        assert!(listed.contains(line), "{line} in\n{listed}");
    }
}

#[test]
fn an_empty_large_disk_takes_little_room() {
    let image = judge(&small_tree().tree, 64 * GIB);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(image.path()).unwrap());
    assert!(blocks * 512 < 12 * MIB, "{} bytes", blocks * 512);
}

/// Grows the file under an image.
fn stretch(image: &Path, size: u64) {
    OpenOptions::new().write(true).open(image).unwrap().set_len(size).unwrap();
}

/// The line of dumpe2fs that says where the first group's inode table is.
fn first_inode_table(image: &Image) -> String {
    let listed = run("dumpe2fs", &[&image.path()]);
    listed.lines().find(|line| line.contains("Inode table at")).unwrap().to_owned()
}

#[test]
fn a_disk_grows_to_a_tebibyte_in_its_reserved_blocks() {
    let maker = small_tree();
    for size in [64 * MIB, 10 * GIB] {
        let image = Image::write(&maker.tree, &options(size));
        let before = first_inode_table(&image);
        stretch(&image.path(), 1 << 40);
        let said = run("resize2fs", &["-d".as_ref(), "2".as_ref(), &image.path()]);
        assert!(said.contains("268435456 (4k) blocks long"), "{said}");
        assert_eq!(first_inode_table(&image), before, "nothing has to move");
        image.check();
        assert_same(&of_tree(&maker.tree), &image.manifest());
        let mounted = Mounted::new(&image.path(), "rw");
        fs::write(mounted.0.path().join("new"), vec![5; 3 << 20]).unwrap();
        drop(mounted);
        image.check();
    }
}

#[test]
fn the_kernel_can_fill_it_and_it_stays_clean() {
    let maker = small_tree();
    let image = Image::write(&maker.tree, &options(64 * MIB));
    let mounted = Mounted::new(&image.path(), "rw");
    let root = mounted.0.path();
    for i in 0..3000 {
        fs::write(root.join("folder7").join(format!("a-rather-long-name-{i}")), b"x").unwrap();
    }
    for i in 0..50u8 {
        fs::remove_file(root.join(format!("folder{i}/file"))).unwrap();
    }
    while fs::write(
        root.join(format!("fill{}", rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec)),
        vec![1; 1 << 20],
    )
    .is_ok()
    {}
    drop(mounted);
    image.check();
}

#[test]
fn room_counts_as_the_kernel_counts_it() {
    let image = Image::write(&small_tree().tree, &options(GIB));
    let mounted = Mounted::new(&image.path(), "ro");
    let found = rustix::fs::statvfs(mounted.0.path()).unwrap();
    let summary = &image.summary;
    assert_eq!(
        (found.f_bfree, found.f_files, found.f_ffree),
        (summary.free_blocks, summary.inodes, summary.free_inodes)
    );
    // A second mount beside the first would be the first, with its options.
    drop(mounted);
    let minix = Mounted::new(&image.path(), "ro,minixdf");
    assert_eq!(rustix::fs::statvfs(minix.0.path()).unwrap().f_blocks, summary.blocks);
}

/// The 4 KiB blocks of `new` that `old` has nowhere.
fn new_blocks(old: &Image, new: &Image) -> usize {
    let old = old.bytes();
    let old: std::collections::HashSet<&[u8]> = old.chunks(4096).collect();
    new.bytes().chunks(4096).filter(|block| !old.contains(block)).count()
}

#[test]
fn an_added_layer_leaves_the_blocks_of_lower_ones() {
    let mut maker = small_tree();
    let before = Image::write(&maker.tree, &options(64 * MIB));
    let kind = maker.contents(100_000, &[(0, &vec![0x77; 100_000])]);
    let folder = maker.tree.entries(Tree::ROOT).unwrap()[&b"folder3"[..]];
    maker.add_in_layer(folder, b"added", meta(0o644), kind, 1);
    let after = judge(&maker.tree, 64 * MIB);
    let new = new_blocks(&before, &after);
    // Data (all its full blocks are equal), its folder, its inode, bitmaps, descriptors, superblock.
    assert!(new <= 8, "{new} blocks are new");
}

#[test]
fn another_reader_agrees() {
    let maker = small_tree();
    let image = Image::write(&maker.tree, &options(64 * MIB));
    let reader = ext4_view::Ext4::load_from_path(image.path()).unwrap();
    assert_eq!(reader.label().to_str(), Ok("root"));
    for i in 0..200u8 {
        assert_eq!(reader.read(format!("/folder{i}/file").as_str()).unwrap(), vec![i; 10_000]);
    }
    assert_eq!(reader.read_dir("/").unwrap().count(), 2 + 1 + 200);
}
