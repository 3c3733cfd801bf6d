//! Tells what a snapshot must read of guest memory.
//!
//! A page of the anonymous mapping that this process never touched is zero, without looking. Of all
//! others the bytes count; that includes untouched pages over the artifact's file, which still show it.

use super::pagemap::Pagemap;
use crate::layout::PAGE;
use std::io;

/// The most bytes of one run of data, so that the writer's work comes in bounded pieces.
const MAX_DATA: u64 = 4 << 20;

/// A piece of RAM; runs follow each other without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run<'a> {
    /// This many zero bytes.
    Zeros(u64),
    /// These bytes, which may well be zero.
    Data(&'a [u8]),
}

/// Walks RAM from its first byte to its last.
#[derive(Debug)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    file_backed: &'a [(u64, u64)],
    pagemap: Pagemap,
    at: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn new(bytes: &'a [u8], file_backed: &'a [(u64, u64)]) -> io::Result<Self> {
        Ok(Self { bytes, file_backed, pagemap: Pagemap::open()?, at: 0 })
    }

    /// The next run, or `None` at the end of RAM.
    ///
    /// # Errors
    /// `/proc/self/pagemap` cannot be read.
    pub fn next_run(&mut self) -> io::Result<Option<Run<'a>>> {
        let (start, end) = (self.at, self.bytes.len() as u64);
        if start == end {
            return Ok(None);
        }
        let untouched = self.untouched(start)?;
        let limit = if untouched { end } else { end.min(start + MAX_DATA) };
        let mut at = start + PAGE;
        while at < limit && self.untouched(at)? == untouched {
            at += PAGE;
        }
        self.at = at;
        let run = if untouched {
            Run::Zeros(at - start)
        } else {
            Run::Data(&self.bytes[start as usize..at as usize])
        };
        Ok(Some(run))
    }

    fn untouched(&mut self, at: u64) -> io::Result<bool> {
        let address = self.bytes[at as usize..].as_ptr().addr() as u64;
        Ok(!self.shows_file(at) && !self.pagemap.in_use(address)?)
    }

    fn shows_file(&self, at: u64) -> bool {
        let after = self.file_backed.partition_point(|(start, _)| *start <= at);
        after > 0 && at < self.file_backed[after - 1].1
    }
}
