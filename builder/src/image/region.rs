//! A stretch of an open file, and a reader over it that never moves the file's own position.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes `start..start + len` of `file`: a blob, a layer, or a member of an archive.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) file: Arc<File>,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Region {
    /// All of a file.
    pub(super) fn whole(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), start: 0, len })
    }

    /// Fills as much of `buf` as there is from `at` on; less than all only at the region's end.
    ///
    /// # Errors
    /// What the file reports; `UnexpectedEof` where the file has become shorter than the region.
    pub(super) fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let want = left.min(buf.len());
        self.file.read_exact_at(&mut buf[..want], self.start + at)?;
        Ok(want)
    }

    /// A reader from the region's start.
    pub(super) fn reader(&self) -> RegionReader {
        RegionReader { region: self.clone(), at: 0 }
    }
}

/// Reads a [`Region`] forward.
#[derive(Debug)]
pub(super) struct RegionReader {
    region: Region,
    at: u64,
}

impl Read for RegionReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.region.read_at(buf, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}
