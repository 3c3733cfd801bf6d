//! A folder of this machine, written and mounted, is the same folder.

use crate::image::{Image, MIB, assert_same, options};
use crate::manifest::of_folder;
use smolpack_builder::ext4::minimum_size;
use smolpack_builder::image::{ImageSource, Limits, LoadOptions, Location, Platform, RegistryAccess, load};
use smolpack_builder::progress::Silent;
use smolpack_builder::tree::Tree;
use std::path::Path;
use std::time::Instant;

fn tree_of(folder: &Path) -> Tree {
    let source = ImageSource {
        reference: folder.display().to_string(),
        location: Location::Folder(folder.to_owned()),
    };
    let options = LoadOptions {
        platform: "linux/amd64".parse::<Platform>().unwrap(),
        cache: Path::new("/nonexistent"),
        registry: &RegistryAccess::default(),
        limits: Limits::default(),
    };
    load(&source, &options, &mut Silent).unwrap().tree
}

/// Another folder can be named in `SMOLPACK_TEST_FOLDER`, such as a whole root; times are printed.
#[test]
fn a_real_folder_comes_back() {
    let host = std::env::var("SMOLPACK_TEST_FOLDER").unwrap_or_else(|_| "/etc".to_owned());
    let start = Instant::now();
    let tree = tree_of(host.as_ref());
    let walked = start.elapsed();
    let size = minimum_size(&tree).unwrap() + 64 * MIB;
    let start = Instant::now();
    let image = Image::write(&tree, &options(size));
    println!("walked in {walked:?}, wrote {} MiB in {:?}", size / MIB, start.elapsed());
    image.check();
    assert_same(&of_folder(host.as_ref()), &image.manifest());
}
