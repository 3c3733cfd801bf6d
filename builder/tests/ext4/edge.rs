//! One case at a time.

use crate::image::{GIB, MIB, judge};
use crate::maker::{Maker, folder, meta};
use smolpack_builder::tree::{Kind, Timestamp, Tree};

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
