//! Where a disk image goes: strictly forward, zeros without bytes.

use std::io;

/// Takes a disk image from its first byte to its last.
pub trait BlockSink {
    /// The next bytes.
    ///
    /// # Errors
    /// What the destination reports.
    fn data(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The next `len` bytes are zero.
    ///
    /// # Errors
    /// What the destination reports.
    fn zeros(&mut self, len: u64) -> io::Result<()>;
}

/// A disk in memory, zeros and all.
impl BlockSink for Vec<u8> {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn zeros(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.resize(self.len() + len, 0);
        Ok(())
    }
}

/// A plain file; runs of zeros become holes. The caller sets the file's final length.
#[derive(Debug)]
pub struct FileSink {
    file: std::fs::File,
}

impl FileSink {
    /// Writes from the file's current position.
    #[must_use]
    pub fn new(file: std::fs::File) -> Self {
        Self { file }
    }
}

impl BlockSink for FileSink {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.file, bytes)
    }

    fn zeros(&mut self, len: u64) -> io::Result<()> {
        let len = i64::try_from(len).map_err(|_| io::Error::other("zero run over 8 EiB"))?;
        io::Seek::seek(&mut self.file, io::SeekFrom::Current(len)).map(|_| ())
    }
}
