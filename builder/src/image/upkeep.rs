//! Looking after the cache: what is in it, whether it is whole, and making room.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use super::cache::Shelf;
use super::error::ImageError;
use super::steps::read_record;
use smolpack_registry::{Digest, Hasher};

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// `blobs`, `layers`, `archives`, `steps` or `logs`.
    pub shelf: &'static str,
    /// What it is kept under.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
    /// When a build last used it.
    pub used: SystemTime,
    path: PathBuf,
    kind: Shelf,
}

/// Everything in the cache at `root`, the least recently used first.
///
/// # Errors
/// A folder of it cannot be read. A cache that is not there is empty.
pub fn cached_files(root: &Path) -> Result<Vec<CachedFile>, ImageError> {
    let mut files = Vec::new();
    for kind in Shelf::ALL {
        for algorithm in names(&root.join(kind.name()))? {
            for name in names(&root.join(kind.name()).join(&algorithm))? {
                let Ok(digest) = Digest::parse(&format!("{algorithm}:{name}")) else { continue };
                let path = root.join(kind.name()).join(&algorithm).join(&name);
                // Another process may have removed it meanwhile.
                let Ok(stat) = fs::symlink_metadata(&path) else { continue };
                let used = stat.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(CachedFile { shelf: kind.name(), digest, bytes: stat.len(), used, path, kind });
            }
        }
    }
    files.sort_by(|a, b| a.used.cmp(&b.used).then_with(|| a.path.cmp(&b.path)));
    Ok(files)
}

fn names(folder: &Path) -> Result<Vec<String>, ImageError> {
    let list = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.and_then(Iterator::collect::<Result<Vec<_>, _>>),
    };
    let list = list.map_err(|e| ImageError::io(folder, "cannot list the cache", e))?;
    Ok(list.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

impl CachedFile {
    /// Whether its contents are what its name says; `read` is told of bytes as they are read. A decompressed
    /// archive is named by the digest of its compressed bytes, so there is nothing to hold it against; nor is
    /// there for a log. The record of a set-up command has to be one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_whole(&self, read: &mut dyn FnMut(u64)) -> Result<bool, ImageError> {
        let failed = |e| ImageError::io(&self.path, "cannot read", e);
        let mut file = File::open(&self.path).map_err(failed)?;
        match self.kind {
            Shelf::Archives | Shelf::Logs => return Ok(true),
            Shelf::Steps => return Ok(read_record(&file).map_err(failed)?.is_some()),
            Shelf::Blobs | Shelf::Layers => {}
        }
        let mut hasher = Hasher::like(&self.digest);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => return Ok(hasher.finish() == self.digest),
                n => {
                    hasher.update(&buffer[..n]);
                    read(n as u64);
                }
            }
        }
    }

    /// Removes it, unless a build is using it; says whether it is gone.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> Result<bool, ImageError> {
        let Ok(file) = File::open(&self.path) else { return Ok(true) };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        fs::remove_file(&self.path).map_err(|e| ImageError::io(&self.path, "cannot remove", e))?;
        Ok(true)
    }
}

/// Removes the least recently used files until at most `keep` bytes are left, and gives what was removed. Files
/// that builds are using stay, and count.
///
/// # Errors
/// The cache cannot be read, or a file of it not be removed.
pub fn prune_cache(root: &Path, keep: u64) -> Result<Vec<CachedFile>, ImageError> {
    let files = cached_files(root)?;
    let mut left: u64 = files.iter().map(|file| file.bytes).sum();
    let mut removed = Vec::new();
    for file in files {
        if left <= keep {
            break;
        }
        if file.remove()? {
            left -= file.bytes;
            removed.push(file);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::super::cache::Cache;
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    fn put(cache: &Cache, bytes: &[u8], age: u64) -> Digest {
        let digest = Digest::of(bytes);
        let mut draft = cache.draft().unwrap();
        draft.write_all(bytes).unwrap();
        drop(draft.publish(cache, Shelf::Layers, &digest).unwrap());
        let file = File::open(cache.path(Shelf::Layers, &digest)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        digest
    }

    #[test]
    fn the_least_recently_used_go_first_and_what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path());
        assert!(cached_files(folder.path()).unwrap().is_empty());
        let (oldest, middle, newest) =
            (put(&cache, &[1; 100], 300), put(&cache, &[2; 100], 200), put(&cache, &[3; 100], 100));
        let order: Vec<Digest> = cached_files(folder.path()).unwrap().into_iter().map(|f| f.digest).collect();
        assert_eq!(order, [oldest.clone(), middle.clone(), newest.clone()]);

        // Used again, and held by a build.
        let held = cache.find(Shelf::Layers, &oldest).unwrap().unwrap();
        assert_eq!(cached_files(folder.path()).unwrap().last().unwrap().digest, oldest);
        let removed = prune_cache(folder.path(), 250).unwrap();
        assert_eq!(removed.iter().map(|f| &f.digest).collect::<Vec<_>>(), [&middle]);
        assert_eq!(prune_cache(folder.path(), 0).unwrap().len(), 1);
        assert_eq!(cached_files(folder.path()).unwrap().len(), 1, "a build holds it");
        drop(held);
        assert_eq!(prune_cache(folder.path(), 0).unwrap().len(), 1);
    }

    #[test]
    fn a_damaged_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path());
        let digest = put(&cache, b"contents", 0);
        let file = &cached_files(folder.path()).unwrap()[0];
        let mut read = 0;
        assert!(file.is_whole(&mut |n| read += n).unwrap());
        assert_eq!(read, 8);
        fs::write(cache.path(Shelf::Layers, &digest), b"Contents").unwrap();
        assert!(!file.is_whole(&mut |_| {}).unwrap());
        assert!(file.remove().unwrap());
        assert!(file.remove().unwrap(), "already gone");
    }
}
