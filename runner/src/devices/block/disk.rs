//! The root disk: what the artifact holds, with the machine's own writes laid over it.
//!
//! A block of 4 KiB comes from the first of these that has it: the scratch file, which takes all writes;
//! the overlay of the snapshot that was restored; the artifact's disk, beyond whose end all is zero.

use smolpack_format::{ChunkData, Section};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

use super::bitmap::Bitmap;
use crate::devices::chain::{Buffers, Segment};
use crate::devices::transfer::{Direction, transfer};
use crate::devices::{DeviceError, GuestMemory};

/// The unit in which a disk is read, written and kept, in bytes.
pub const BLOCK: u64 = 4096;

/// The largest disk, in bytes: 64 TiB. It bounds the memory that tracks what was written.
const MAX_BYTES: u64 = 64 << 40;

/// A section, and the file it lies in.
pub struct Backing {
    /// Where its raw chunks are read from.
    pub file: Arc<File>,
    /// What it holds.
    pub section: Section,
}

/// What a disk is made of.
pub struct DiskConfig {
    /// The artifact's disk.
    pub base: Backing,
    /// The blocks that had changed when the snapshot to be restored was taken; its parent chunks are
    /// as in `base`. None for a cold boot.
    pub overlay: Option<Backing>,
    /// Takes what the machine writes: an empty file, open for reading and writing.
    pub scratch: File,
    /// Size of the disk in bytes, at least that of `base`, a multiple of 4,096.
    pub bytes: u64,
    /// Whether a flush makes the scratch file durable. Not for a machine that is dropped when it ends.
    pub durable: bool,
}

/// The root disk.
pub struct Disk {
    base: Backing,
    overlay: Option<Backing>,
    scratch: File,
    written: Bitmap,
    bytes: u64,
    durable: bool,
}

/// Where a run of the disk's bytes is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Zero,
    /// In the scratch file, at the same place.
    Scratch,
    /// As they are, in the artifact or in the snapshot's file from this offset on.
    Raw {
        overlay: bool,
        offset: u64,
    },
    /// Compressed, in a chunk of that section.
    Section {
        overlay: bool,
    },
}

impl Disk {
    /// Lays an empty scratch file over what the artifact holds.
    ///
    /// # Errors
    /// Where the sizes do not fit one another, the scratch file is not empty, or it cannot be made as
    /// long as the disk.
    pub fn new(config: DiskConfig) -> Result<Self, DeviceError> {
        let DiskConfig { base, overlay, scratch, bytes, durable } = config;
        let bad = |why: String| Err(DeviceError::state("block", why));
        if !bytes.is_multiple_of(BLOCK) || bytes == 0 || bytes > MAX_BYTES {
            return bad(format!("a disk of {bytes} bytes; it takes a multiple of {BLOCK} up to 64 TiB"));
        }
        if base.section.len() > bytes {
            let held = base.section.len();
            return bad(format!("the artifact's disk has {held} bytes, more than the {bytes} asked for"));
        }
        if let Some(section) = overlay.as_ref().map(|overlay| &overlay.section)
            && section.len() > bytes
        {
            return bad(format!("the snapshot's overlay has {} bytes, the disk {bytes}", section.len()));
        }
        let length = scratch.metadata().map_err(|e| DeviceError::io("looking at the scratch file", e))?;
        if length.len() != 0 {
            return bad(format!("the scratch file is not empty, it has {} bytes", length.len()));
        }
        scratch.set_len(bytes).map_err(|e| DeviceError::io("sizing the scratch file", e))?;
        Ok(Self { base, overlay, scratch, written: Bitmap::new(bytes / BLOCK), bytes, durable })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The runs of the disk that are not as in the artifact, in order, each a multiple of 4,096 bytes:
    /// what the machine has written since it was started, and what a restored one had before.
    pub fn changed(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < self.bytes && !self.change_at(at).0 {
                at = self.change_at(at).1;
            }
            let start = at;
            while at < self.bytes && self.change_at(at).0 {
                at = self.change_at(at).1;
            }
            (at > start).then_some(start..at)
        })
    }

    /// Whether the block at `at` is not as in the artifact, and where it may be otherwise.
    fn change_at(&self, at: u64) -> (bool, u64) {
        let (written, end) = self.written_at(at);
        if written {
            return (true, end);
        }
        match self.overlay_at(at) {
            Some((Source::Section { .. } | Source::Raw { .. } | Source::Zero, until)) => {
                (true, end.min(until))
            }
            Some((Source::Scratch, until)) => (false, end.min(until)),
            None => (false, end),
        }
    }

    /// Fills `buf` with the disk's bytes from `at` on.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk, or what reading the artifact or the scratch file said.
    pub fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.check(at, buf.len() as u64)?;
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let (source, end) = self.source(at);
            let take = (end - at).min(rest.len() as u64);
            let (now, later) = rest.split_at_mut(take as usize);
            match source {
                Source::Zero => now.fill(0),
                Source::Scratch => self.scratch.read_exact_at(now, at)?,
                Source::Raw { overlay, offset } => self.backing(overlay).file.read_exact_at(now, offset)?,
                Source::Section { overlay } => self.decode(overlay, now, at)?,
            }
            (at, rest) = (at + take, later);
        }
        Ok(())
    }

    /// Reads `len` bytes at `at` into `to`.
    pub(crate) fn read(&self, mem: &GuestMemory, to: &Buffers, at: u64, len: u64) -> io::Result<()> {
        self.check(at, len)?;
        let mut done = 0;
        while done < len {
            let (source, end) = self.run(at + done, at + len);
            let take = end - (at + done);
            let segments = to.slice(done as usize, take as usize);
            match source {
                Source::Zero => zero(mem, segments)?,
                Source::Scratch => {
                    transfer(&self.scratch, mem, segments, at + done, Direction::ToGuest)?;
                }
                Source::Raw { overlay, offset } => {
                    transfer(&self.backing(overlay).file, mem, segments, offset, Direction::ToGuest)?;
                }
                Source::Section { overlay } => self.decode_to(overlay, mem, segments, at + done)?,
            }
            done += take;
        }
        Ok(())
    }

    /// Writes `len` bytes at `at`, whole blocks, from byte `skip` of `from` on.
    pub(crate) fn write(
        &mut self,
        mem: &GuestMemory,
        from: &Buffers,
        skip: usize,
        at: u64,
        len: u64,
    ) -> io::Result<()> {
        self.check_blocks(at, len)?;
        let segments = from.slice(skip, len as usize);
        transfer(&self.scratch, mem, segments, at, Direction::FromGuest)?;
        // Only now: what a failed write has left behind is not to be seen.
        self.written.insert(at / BLOCK..(at + len) / BLOCK);
        Ok(())
    }

    /// Makes `len` bytes at `at`, whole blocks, zero, and gives back the room they took.
    ///
    /// A hole in the scratch file reads as zeros, so a block that is marked as written there and was
    /// not, or was punched out, is a zero one.
    pub(crate) fn zero(&mut self, at: u64, len: u64) -> io::Result<()> {
        self.check_blocks(at, len)?;
        if len == 0 {
            return Ok(());
        }
        punch(&self.scratch, at, len)?;
        self.written.insert(at / BLOCK..(at + len) / BLOCK);
        Ok(())
    }

    /// Makes all writes so far durable, where the machine is to be kept.
    pub(crate) fn flush(&self) -> io::Result<()> {
        if self.durable { self.scratch.sync_data() } else { Ok(()) }
    }

    fn check(&self, at: u64, len: u64) -> io::Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond the end of the disk")),
        }
    }

    fn check_blocks(&self, at: u64, len: u64) -> io::Result<()> {
        if !at.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a run of whole blocks"));
        }
        self.check(at, len)
    }

    fn backing(&self, overlay: bool) -> &Backing {
        match &self.overlay {
            Some(backing) if overlay => backing,
            _ => &self.base,
        }
    }

    /// As [`source`](Self::source), with what follows it in the same file taken in, up to `limit`.
    fn run(&self, at: u64, limit: u64) -> (Source, u64) {
        let (source, mut end) = self.source(at);
        while end < limit {
            let (next, next_end) = self.source(end);
            let follows = match (source, next) {
                (Source::Raw { overlay: a, offset }, Source::Raw { overlay: b, offset: then }) => {
                    a == b && offset + (end - at) == then
                }
                (Source::Section { .. }, _) => false,
                _ => source == next,
            };
            if !follows {
                break;
            }
            end = next_end;
        }
        (source, end.min(limit))
    }

    /// Where the byte at `at` is to be found, and up to where what follows it is to be found there too.
    fn source(&self, at: u64) -> (Source, u64) {
        let (written, end) = self.written_at(at);
        if written {
            return (Source::Scratch, end);
        }
        match self.overlay_at(at) {
            None => self.base_at(at, end),
            Some((Source::Scratch, until)) => self.base_at(at, end.min(until)),
            Some((source, until)) => (source, end.min(until)),
        }
    }

    /// Whether the block at `at` was written, and up to where those after it are the same.
    fn written_at(&self, at: u64) -> (bool, u64) {
        let (written, end) = self.written.run(at / BLOCK);
        (written, end * BLOCK)
    }

    /// As [`source`](Self::source), in the artifact alone; not beyond `end`.
    fn base_at(&self, at: u64, end: u64) -> (Source, u64) {
        match chunk_at(&self.base.section, at) {
            Some((data, until)) => (source_of(data, false), end.min(until)),
            None => (Source::Zero, end),
        }
    }

    /// As [`source`](Self::source), in the snapshot's overlay alone, where `Scratch` stands for "as in
    /// the artifact". None beyond its end, or where there is none.
    fn overlay_at(&self, at: u64) -> Option<(Source, u64)> {
        let (data, until) = chunk_at(&self.overlay.as_ref()?.section, at)?;
        Some((source_of(data, true), until))
    }

    /// Decodes the disk's bytes from `at` on, which a compressed chunk holds.
    fn decode(&self, overlay: bool, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.backing(overlay).section.read_at(buf, at).map_err(io::Error::other)
    }

    fn decode_to(
        &self,
        overlay: bool,
        mem: &GuestMemory,
        segments: impl Iterator<Item = Segment>,
        mut at: u64,
    ) -> io::Result<()> {
        let mut buf = Vec::new();
        for segment in segments {
            buf.resize(segment.len, 0);
            self.decode(overlay, &mut buf, at)?;
            mem.write_slice(&buf, segment.addr).map_err(io::Error::other)?;
            at += segment.len as u64;
        }
        Ok(())
    }
}

/// What the chunk that holds `at` is, its raw data taken from there on, and where it ends.
fn chunk_at(section: &Section, at: u64) -> Option<(ChunkData, u64)> {
    let chunk = &section.chunks()[section.chunk_index(at)?];
    let data = match chunk.data {
        ChunkData::Raw { offset } => ChunkData::Raw { offset: offset + (at - chunk.at) },
        other => other,
    };
    Some((data, chunk.at + chunk.len))
}

fn source_of(data: ChunkData, overlay: bool) -> Source {
    match data {
        ChunkData::Zero => Source::Zero,
        ChunkData::Parent => Source::Scratch,
        ChunkData::Raw { offset } => Source::Raw { overlay, offset },
        ChunkData::Zstd { .. } => Source::Section { overlay },
    }
}

fn zero(mem: &GuestMemory, segments: impl Iterator<Item = Segment>) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    for segment in segments {
        let mut done = 0;
        while done < segment.len {
            let some = (segment.len - done).min(ZEROS.len());
            let at = GuestAddress(segment.addr.0 + done as u64);
            mem.write_slice(&ZEROS[..some], at).map_err(io::Error::other)?;
            done += some;
        }
    }
    Ok(())
}

/// Frees a run of a file; it reads as zeros then. A file system without holes gets zeros written.
fn punch(file: &File, at: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let zeros = vec![0; (1 << 20).min(len as usize)];
            let mut done = 0;
            while done < len {
                let some = (len - done).min(zeros.len() as u64);
                file.write_all_at(&zeros[..some as usize], at + done)?;
                done += some;
            }
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}
