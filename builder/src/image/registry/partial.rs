//! A blob on its way from a registry to the cache: what has come survives a break and a killed build.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::cache::{Cache, Shelf};
use super::super::digest::{Digest, Hasher};
use super::super::error::ImageError;

/// How often to look whether another build is done with the same blob.
const POLL: Duration = Duration::from_millis(100);

/// What has come so far. Locked: one build at a time fetches a blob.
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    digest: Digest,
    hasher: Hasher,
    pub(super) len: u64,
}

impl Partial {
    /// Takes up what an earlier fetch left; waits while another build fetches the same blob.
    pub(super) async fn take(cache: &Cache, digest: &Digest) -> Result<Self, ImageError> {
        let path = cache.partial_path(digest)?;
        let failed = |e| ImageError::io(&path, "cannot take up a download", e);
        let file = loop {
            match lock(&path).map_err(failed)? {
                Some(file) => break file,
                None => tokio::time::sleep(POLL).await,
            }
        };
        let mut partial =
            Self { file, path: path.clone(), digest: digest.clone(), hasher: Hasher::like(digest), len: 0 };
        partial.hash_present().map_err(failed)?;
        Ok(partial)
    }

    fn hash_present(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let got = self.file.read(&mut buffer)?;
            if got == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..got]);
            self.len += got as u64;
        }
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.file.write_all(bytes).map_err(|e| ImageError::io(&self.path, "cannot write to the cache", e))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what has come.
    pub(super) fn restart(&mut self) -> Result<(), ImageError> {
        self.hasher = Hasher::like(&self.digest);
        self.len = 0;
        let rewind = || {
            self.file.set_len(0)?;
            (&self.file).seek(SeekFrom::Start(0))
        };
        rewind().map(drop).map_err(|e| ImageError::io(&self.path, "cannot start a download again", e))
    }

    pub(super) fn is_verified(&self) -> bool {
        self.hasher.clone().finish() == self.digest
    }

    /// Keeps the blob. The caller has verified it.
    pub(super) fn publish(self, cache: &Cache) -> Result<(), ImageError> {
        cache.publish(&self.file, &self.path, Shelf::Blobs, &self.digest).map(drop)
    }

    /// Removes what cannot be used.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The file, locked; `None` while somebody else holds it, or where it was renamed meanwhile.
fn lock(path: &PathBuf) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let same = fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|held| held.ino() == now.ino()));
    Ok(same.then_some(file))
}
