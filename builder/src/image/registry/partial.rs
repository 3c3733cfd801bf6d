//! A blob on its way from a registry to the cache: what has come survives a break and a killed build.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use smolpack_registry::{Digest, Hasher, RegistryError, Sink};

use super::super::cache::{Cache, Shelf};
use super::super::error::ImageError;
use super::super::progress::Reporter;

/// How often to look whether another build is done with the same blob.
const POLL: Duration = Duration::from_millis(100);

/// What has come so far. Locked: one build at a time fetches a blob.
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    digest: Digest,
    hasher: Hasher,
    len: u64,
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

    /// How much has come.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Puts the whole blob there, whatever has come. The caller has verified it.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.restart()?;
        Ok(self.append(bytes)?)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), RegistryError> {
        self.file
            .write_all(bytes)
            .map_err(|e| RegistryError::io(&self.path, "cannot write to the cache", e))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), RegistryError> {
        self.hasher = Hasher::like(&self.digest);
        self.len = 0;
        let rewind = || {
            self.file.set_len(0)?;
            (&self.file).seek(SeekFrom::Start(0))
        };
        let done = rewind().map(drop);
        done.map_err(|e| RegistryError::io(&self.path, "cannot start a download again", e))
    }

    /// The same, telling of what comes.
    pub(super) fn followed<'f>(self, reporter: &'f Reporter<'f>) -> Followed<'f> {
        Followed { partial: self, reporter }
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

/// A partial blob whose progress is told.
pub(super) struct Followed<'f> {
    pub(super) partial: Partial,
    reporter: &'f Reporter<'f>,
}

impl Sink for Followed<'_> {
    fn position(&self) -> u64 {
        self.partial.len
    }

    async fn take(&mut self, bytes: Bytes) -> Result<(), RegistryError> {
        self.reporter.advance(bytes.len() as u64);
        self.partial.append(&bytes)
    }

    fn restart(&mut self) -> Result<(), RegistryError> {
        self.partial.restart()
    }

    fn is_whole(&self) -> bool {
        self.partial.hasher.clone().finish() == self.partial.digest
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
