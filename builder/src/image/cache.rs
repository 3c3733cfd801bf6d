//! The user's cache folder: blobs as registries gave them, and uncompressed layers, by digest.
//!
//! ```text
//! blobs/sha256/HEX     a registry's blob (manifest, configuration, compressed layer)
//! layers/sha256/HEX    a layer's tar, named by its diff_id, or that of what a set-up command changed
//! archives/sha256/HEX  a compressed archive, decompressed, named by the digest of its compressed bytes
//! steps/sha256/HEX     the digest of what a set-up command changed, named by the digest of what it depends on
//! logs/sha256/HEX      the output of a set-up command, named likewise
//! tmp/                 what is being written
//! ```
//! A file appears under its name only whole, verified and synced, by rename; so several builds may
//! share the folder, and what a name finds can be used. A build holds what it uses open and locked, so removing
//! files never harms it, and `upkeep` does not. Everything is staged here, never in `/tmp`, which may be memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use tempfile::NamedTempFile;

use super::error::ImageError;
use super::region::Region;
use smolpack_registry::Digest;

/// A file in `tmp` that nobody holds and that is older than this was left by a build that died.
const STALE: Duration = Duration::from_hours(1);

/// What a cached file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shelf {
    Blobs,
    Layers,
    Archives,
    Steps,
    Logs,
}

impl Shelf {
    pub(super) const ALL: [Self; 5] = [Self::Blobs, Self::Layers, Self::Archives, Self::Steps, Self::Logs];

    /// The folder's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blobs => "blobs",
            Self::Layers => "layers",
            Self::Archives => "archives",
            Self::Steps => "steps",
            Self::Logs => "logs",
        }
    }
}

/// The cache folder.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the folder, which need not exist yet, and clears what dead builds left.
    pub(super) fn open(root: &Path) -> Self {
        let cache = Self { root: root.to_owned() };
        cache.clear_stale();
        cache
    }

    fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// The folder for what is being written, made where it is missing.
    fn make_tmp(&self) -> Result<PathBuf, ImageError> {
        let tmp = self.tmp();
        fs::create_dir_all(&tmp).map_err(|e| ImageError::io(&tmp, "cannot make the cache folder", e))?;
        Ok(tmp)
    }

    pub(super) fn path(&self, kind: Shelf, digest: &Digest) -> PathBuf {
        self.root.join(kind.name()).join(digest.algorithm()).join(digest.hex())
    }

    /// What is kept under a digest. It counts as used now, and stays for as long as it is open.
    pub(super) fn find(&self, kind: Shelf, digest: &Digest) -> Result<Option<Region>, ImageError> {
        let path = self.path(kind, digest);
        match File::open(&path).map(in_use).and_then(Region::whole) {
            Ok(region) => Ok(Some(region)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ImageError::io(&path, "cannot open a file of the cache", error)),
        }
    }

    /// A file to write, gone unless published.
    pub(super) fn draft(&self) -> Result<Draft, ImageError> {
        let tmp = self.make_tmp()?;
        let file = NamedTempFile::new_in(&tmp)
            .map_err(|e| ImageError::io(&tmp, "cannot make a file in the cache", e))?;
        // Held for as long as the file is written, so that no other build takes it for left behind.
        flock(file.as_file(), FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| ImageError::io(file.path(), "cannot lock a file of the cache", e.into()))?;
        Ok(Draft { file })
    }

    /// Where the part of a blob that has come so far lies, to go on from after a break.
    pub(super) fn partial_path(&self, digest: &Digest) -> Result<PathBuf, ImageError> {
        Ok(self.make_tmp()?.join(format!("partial-{}-{}", digest.algorithm(), digest.hex())))
    }

    /// Syncs `file`, which lies at `from` in this cache, and gives it its name.
    pub(super) fn publish(
        &self,
        file: &File,
        from: &Path,
        kind: Shelf,
        digest: &Digest,
    ) -> Result<PathBuf, ImageError> {
        let path = self.path(kind, digest);
        let publish = || {
            file.sync_data()?;
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(from, &path)
        };
        publish().map_err(|e| ImageError::io(&path, "cannot put a file into the cache", e))?;
        Ok(path)
    }

    /// Removes from `tmp` what no build holds. Failing to is no reason to stop.
    fn clear_stale(&self) {
        let entries = fs::read_dir(self.tmp()).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let partial =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"partial-"));
            let old = if partial { STALE * 24 * 7 } else { STALE };
            if is_stale(&path, old) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Marks a file as used now. Where that fails, as on somebody else's cache, it is as good.
fn in_use(file: File) -> File {
    let _ = flock(&file, FlockOperation::NonBlockingLockShared);
    let _ = file.set_modified(SystemTime::now());
    file
}

fn is_stale(path: &Path, old: Duration) -> bool {
    let Ok(file) = OpenOptions::new().read(true).open(path) else { return false };
    let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > old) && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// A file being written in the cache.
#[derive(Debug)]
pub(super) struct Draft {
    file: NamedTempFile,
}

impl Draft {
    /// Keeps the file under its digest. The caller has verified it.
    pub(super) fn publish(self, cache: &Cache, kind: Shelf, digest: &Digest) -> Result<Region, ImageError> {
        let path = cache.publish(self.file.as_file(), self.file.path(), kind, digest)?;
        let (file, temporary) = self.file.into_parts();
        // The name it had is gone already; without this, dropping would look for it.
        let _ = temporary.keep();
        Region::whole(file).map_err(|e| ImageError::io(&path, "cannot read", e))
    }

    /// Gives the file up as a name, keeping its contents for as long as it is open.
    pub(super) fn into_unnamed(self) -> Result<Region, ImageError> {
        let path = self.file.path().to_owned();
        Region::whole(self.file.into_file()).map_err(|e| ImageError::io(&path, "cannot read", e))
    }

    pub(super) fn place(&self) -> PathBuf {
        self.file.path().to_owned()
    }
}

impl Write for Draft {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_gone_unless_published() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path());
        let digest = Digest::of(b"hello");
        cache.draft().unwrap().write_all(b"hel").unwrap();
        assert!(cache.find(Shelf::Blobs, &digest).unwrap().is_none());
        assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);

        let mut draft = cache.draft().unwrap();
        draft.write_all(b"hello").unwrap();
        assert_eq!(draft.publish(&cache, Shelf::Blobs, &digest).unwrap().len, 5);
        assert_eq!(cache.find(Shelf::Blobs, &digest).unwrap().unwrap().len, 5);
        assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_dead_build_left_is_cleared_and_what_is_held_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path());
        let old = std::time::SystemTime::now() - STALE * 2;
        let held = cache.draft().unwrap();
        let left = folder.path().join("tmp/left");
        File::create(&left).unwrap().set_modified(old).unwrap();
        held.file.as_file().set_modified(old).unwrap();
        let _ = Cache::open(folder.path());
        assert!(!left.exists());
        assert!(held.place().exists());
    }
}
