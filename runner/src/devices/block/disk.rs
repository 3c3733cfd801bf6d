//! The root disk: what the artifact holds, with the machine's own writes laid over it.
//!
//! A block of 4 KiB comes from the first of these that has it: the scratch file, which takes all writes;
//! the overlay of the snapshot that was restored; the artifact's disk, beyond whose end all is zero.

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use smolpack_format::{ChunkData, Section};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vm_memory::{Bytes, GuestAddress};

use super::bitmap::Bitmap;
use crate::devices::chain::{Buffers, Segment};
use crate::devices::transfer::{Direction, transfer};
use crate::devices::{DeviceError, GuestMemory};

/// The unit in which a disk is read, written and kept, in bytes.
pub const BLOCK: u64 = 4096;

/// The largest disk, in bytes: 64 TiB. It bounds the memory that tracks what was written.
const MAX_BYTES: u64 = 64 << 40;

/// How far ahead a scan for changes looks at once, in bytes.
const SCAN: u64 = 64 << 20;

/// A section, and the file it lies in. Each chunk is verified when it is first read from.
pub struct Backing {
    file: Arc<File>,
    section: Section,
    /// For each chunk whether it was verified.
    verified: Vec<AtomicBool>,
}

impl Backing {
    /// A section of the container in `file`, where its raw chunks are read from.
    #[must_use]
    pub fn new(file: Arc<File>, section: Section) -> Self {
        let verified = section.chunks().iter().map(|_| AtomicBool::new(false)).collect();
        Self { file, section, verified }
    }

    /// Verifies the chunks that hold `len` bytes at `at`, where that was not done before.
    fn verify(&self, at: u64, len: u64) -> io::Result<()> {
        let Some(first) = self.section.chunk_index(at) else { return Ok(()) };
        let chunks = self.section.chunks()[first..].iter().take_while(|chunk| chunk.at < at + len);
        let mut buf = Vec::new();
        for i in first..first + chunks.count() {
            if !self.verified[i].load(Ordering::Relaxed) {
                self.section.read_chunk(i, &mut buf).map_err(io::Error::other)?;
                self.verified[i].store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }
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
    /// Where that file is, for messages.
    pub scratch_folder: PathBuf,
    /// Whether a write that finds no room there waits until there is some, and does not fail.
    pub wait_for_room: bool,
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
    scratch_folder: PathBuf,
    wait_for_room: bool,
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
        let DiskConfig { base, overlay, scratch, scratch_folder, wait_for_room, bytes, durable } = config;
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
        let written = Bitmap::new(bytes / BLOCK);
        Ok(Self { base, overlay, scratch, scratch_folder, wait_for_room, written, bytes, durable })
    }

    /// Whether a write that finds no room is to wait for some.
    pub(super) fn waits_for_room(&self) -> bool {
        self.wait_for_room
    }

    /// Has writes that find no room fail from now on.
    pub(super) fn stop_waiting(&mut self) {
        self.wait_for_room = false;
    }

    /// Where what is written goes, and how many bytes are free there.
    pub(super) fn room(&self) -> (&Path, u64) {
        let free = fstatvfs(&self.scratch).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        (&self.scratch_folder, free)
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
            let start = self.skip(at, false);
            at = self.skip(start, true);
            (at > start).then_some(start..at)
        })
    }

    /// The end of the blocks from `at` on that are all changed, or all not.
    fn skip(&self, mut at: u64, changed: bool) -> u64 {
        while at < self.bytes {
            let (source, end) = self.changed_source(at, self.bytes.min(at + SCAN));
            if source.is_some() != changed {
                break;
            }
            at = end;
        }
        at
    }

    /// Fills `buf` with the disk's bytes from `at` on.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk, or what reading the artifact or the scratch file said.
    pub fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.check(at, buf.len() as u64)?;
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let (source, end) = self.source(at, at + rest.len() as u64);
            let take = end - at;
            let (now, later) = rest.split_at_mut(take as usize);
            match source {
                Source::Zero => now.fill(0),
                Source::Scratch => self.scratch.read_exact_at(now, at)?,
                Source::Raw { overlay, offset } => self.raw(overlay, at, take)?.read_exact_at(now, offset)?,
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
                    let file = self.raw(overlay, at + done, take)?;
                    transfer(file, mem, segments, offset, Direction::ToGuest)?;
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
        let end = at + len;
        let mut at = at;
        while at < end {
            let (source, next) = self.source(at, end);
            // What is zero anyway needs no mark, so that trimming free space does not count as a change.
            if source != Source::Zero {
                self.written.insert(at / BLOCK..next.div_ceil(BLOCK));
            }
            at = next;
        }
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

    /// The file to read `len` raw bytes at `at` from, once they are verified.
    fn raw(&self, overlay: bool, at: u64, len: u64) -> io::Result<&File> {
        let backing = self.backing(overlay);
        backing.verify(at, len)?;
        Ok(&backing.file)
    }

    fn backing(&self, overlay: bool) -> &Backing {
        match &self.overlay {
            Some(backing) if overlay => backing,
            _ => &self.base,
        }
    }

    /// As [`source`](Self::source), with what follows it in the same file taken in.
    fn run(&self, at: u64, limit: u64) -> (Source, u64) {
        let (source, mut end) = self.source(at, limit);
        while end < limit {
            let (next, next_end) = self.source(end, limit);
            if !source.continues(end - at, next) {
                break;
            }
            end = next_end;
        }
        (source, end)
    }

    /// Where the byte at `at` is to be found, and up to where, at most `limit`, what follows it is too.
    fn source(&self, at: u64, limit: u64) -> (Source, u64) {
        let (source, end) = self.changed_source(at, limit);
        match source {
            Some(source) => (source, end),
            None => match locate(&self.base.section, at, end, false) {
                Some((source, end)) => (source.unwrap_or(Source::Zero), end),
                None => (Source::Zero, end),
            },
        }
    }

    /// As `source`, where that is not in the artifact's disk.
    fn changed_source(&self, at: u64, limit: u64) -> (Option<Source>, u64) {
        let (written, end) = self.written.run(at / BLOCK, limit.div_ceil(BLOCK));
        let end = limit.min(end * BLOCK);
        if written {
            return (Some(Source::Scratch), end);
        }
        let overlay = self.overlay.as_ref().and_then(|overlay| locate(&overlay.section, at, end, true));
        overlay.unwrap_or((None, end))
    }

    fn decode(&self, overlay: bool, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.backing(overlay).section.read_at(buf, at).map_err(io::Error::other)
    }

    /// Decodes what is at `at` into `segments`.
    fn decode_to(
        &self,
        overlay: bool,
        mem: &GuestMemory,
        segments: impl Iterator<Item = Segment>,
        mut at: u64,
    ) -> io::Result<()> {
        let mut buf = [0; BLOCK as usize];
        for segment in segments {
            let mut done = 0;
            while done < segment.len {
                let take = (segment.len - done).min(buf.len());
                self.decode(overlay, &mut buf[..take], at)?;
                let addr = GuestAddress(segment.addr.0 + done as u64);
                mem.write_slice(&buf[..take], addr).map_err(io::Error::other)?;
                (done, at) = (done + take, at + take as u64);
            }
        }
        Ok(())
    }
}

impl Source {
    /// Whether `next`, which comes `len` bytes later, can be read together with this.
    fn continues(self, len: u64, next: Self) -> bool {
        match (self, next) {
            (Self::Raw { overlay, offset }, Self::Raw { overlay: other, offset: then }) => {
                overlay == other && offset + len == then
            }
            _ => self == next,
        }
    }
}

/// Where `section` has the byte at `at`, and up to where, at most `limit`, what follows it; no source
/// where that is its parent's affair, nothing beyond its end.
fn locate(section: &Section, at: u64, limit: u64, overlay: bool) -> Option<(Option<Source>, u64)> {
    let chunk = &section.chunks()[section.chunk_index(at)?];
    let source = match chunk.data {
        ChunkData::Parent => None,
        ChunkData::Zero => Some(Source::Zero),
        ChunkData::Raw { offset } => Some(Source::Raw { overlay, offset: offset + (at - chunk.at) }),
        ChunkData::Zstd { .. } => Some(Source::Section { overlay }),
    };
    Some((source, limit.min(chunk.at + chunk.len)))
}

/// Fills `segments` with zeros.
fn zero(mem: &GuestMemory, segments: impl Iterator<Item = Segment>) -> io::Result<()> {
    const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    for segment in segments {
        for done in (0..segment.len).step_by(ZEROS.len()) {
            let take = (segment.len - done).min(ZEROS.len());
            let addr = GuestAddress(segment.addr.0 + done as u64);
            mem.write_slice(&ZEROS[..take], addr).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Punches a hole, or writes zeros where the file system knows no holes.
fn punch(file: &File, at: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len) {
        Err(Errno::OPNOTSUPP) => write_zeros(file, at, len),
        other => Ok(other?),
    }
}

fn write_zeros(file: &File, at: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; 64 * BLOCK as usize];
    let step = zeros.len() as u64;
    for done in (0..len).step_by(zeros.len()) {
        file.write_all_at(&zeros[..step.min(len - done) as usize], at + done)?;
    }
    Ok(())
}
