//! Which pages of this process exist, from `/proc/self/pagemap`.
//!
//! `mincore` would not do: it calls a page that was swapped out absent, and a snapshot would lose it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bit 63: present in memory. Bit 62: swapped out. (Linux, Documentation/admin-guide/mm/pagemap.rst.)
const IN_USE: u64 = 0b11 << 62;

/// Pages whose entries are read in one go: 32 MiB of memory, a 64 KiB buffer.
const BATCH: usize = 8192;

/// Reads page after page, forward, buffered.
#[derive(Debug)]
pub(super) struct Pagemap {
    file: File,
    /// First page the buffer holds.
    start: u64,
    entries: Vec<u8>,
}

impl Pagemap {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/pagemap")?, start: 0, entries: Vec::new() })
    }

    /// Whether this process ever touched the page at `address`.
    pub(super) fn in_use(&mut self, address: u64) -> io::Result<bool> {
        let page = address / 4096;
        let index = match page.checked_sub(self.start) {
            Some(index) if (index as usize) < self.entries.len() / 8 => index as usize,
            _ => {
                self.fill(page)?;
                0
            }
        };
        let mut entry = [0; 8];
        entry.copy_from_slice(&self.entries[index * 8..index * 8 + 8]);
        Ok(u64::from_le_bytes(entry) & IN_USE != 0)
    }

    fn fill(&mut self, page: u64) -> io::Result<()> {
        self.entries.resize(BATCH * 8, 0);
        let read = self.file.read_at(&mut self.entries, page * 8)?;
        self.entries.truncate(read / 8 * 8);
        self.start = page;
        if self.entries.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}
