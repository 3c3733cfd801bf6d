//! What is read from files: artifacts, images.

use rustix::fs::{MemfdFlags, memfd_create};
use smolpack_builder::ext4;
use smolpack_builder::image::{self, ImageSource, Limits, LoadOptions, Location, RegistryAccess};
use smolpack_builder::progress::Silent;
use smolpack_format::fuzz::{mend, read_everything};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The most that an image may hold here: what is tried is how it is read, not how much of it.
const MOST: u64 = 1 << 20;

/// A file in memory with these bytes.
fn file(bytes: &[u8]) -> Option<File> {
    let mut file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(bytes).ok()?;
    Some(file)
}

pub(crate) fn artifact(bytes: &[u8]) {
    if let Some(file) = file(bytes) {
        read_everything(file);
    }
}

pub(crate) fn artifact_mended(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    mend(&mut bytes);
    artifact(&bytes);
}

/// An archive of any kind, and the disk that its files would make.
pub(crate) fn image(bytes: &[u8]) {
    static CACHE: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let cache = CACHE.get_or_init(|| tempfile::tempdir().ok());
    let (Some(file), Some(cache), Ok(platform)) = (file(bytes), cache, "linux/amd64".parse()) else { return };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let source = ImageSource { reference: "fuzz".into(), location: Location::Archive { path, tag: None } };
    let registry = RegistryAccess::default();
    let limits = Limits { entries: 1000, inflated_bytes: MOST, ..Limits::default() };
    let options = LoadOptions { platform, cache: cache.path(), registry: &registry, limits };
    if let Ok(image) = image::load(&source, &options, &mut Silent) {
        let _ = ext4::minimum_size(&image.tree);
    }
    // What was decompressed is not wanted again.
    let _ = std::fs::remove_dir_all(cache.path().join("layers"));
}
