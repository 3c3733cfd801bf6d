//! Guest RAM: one private mapping of this process, with the artifact's pages mapped over it.
//!
//! The whole of RAM, the hole for devices left out, is one anonymous mapping, so that the offset of a
//! byte in it is the offset the artifact's memory section uses. Pages the artifact holds raw are mapped
//! `MAP_PRIVATE | MAP_FIXED` over it: nothing is copied until the guest writes. Zero chunks stay
//! anonymous, compressed ones are decoded into place.

use crate::layout::{self, PAGE, RamRange};
use smolpack_format::{Artifact, ChunkData, FormatError, Section};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vm_memory::mmap::MmapRegion;
use vm_memory::{GuestAddress, GuestRegionMmap};

mod pagemap;
mod scan;
#[cfg(test)]
mod tests;

pub use scan::{Run, Scan};

/// Guest memory as the devices see it: by guest physical address.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// Alignment of the mapping, so that the host can use huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// More file mappings than this and the rest is copied instead: the kernel allows 65,530 in all.
const MAX_FILE_MAPPINGS: usize = 30_000;

/// What can go wrong with guest memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A size the layout cannot hold.
    #[error(
        "guest memory of {0} bytes: it must be a multiple of 4096 between {min} and {max}",
        min = layout::MIN_MEMORY,
        max = layout::MAX_MEMORY
    )]
    Size(u64),
    /// The host refused to map it.
    #[error("cannot map {what} ({len} bytes)")]
    Map {
        /// What was to be mapped.
        what: &'static str,
        /// Bytes.
        len: u64,
        /// The host's reason.
        source: io::Error,
    },
    /// The regions do not form an address space.
    #[error("cannot lay out guest memory: {0}")]
    Layout(String),
    /// The memory section depends on a parent that was not given.
    #[error("section memory, offset {at}: the chunk is \"as in the parent\", but no parent was given")]
    Parent {
        /// Offset in RAM.
        at: u64,
    },
    /// The artifact is shorter than its index says.
    #[error("section memory: its data ends at byte {needed} of the file, which has only {actual}")]
    ShortFile {
        /// Where the data ends.
        needed: u64,
        /// Length of the file.
        actual: u64,
    },
    /// The artifact cannot be read.
    #[error("cannot read section memory")]
    Read(#[from] FormatError),
    /// Which pages are in use cannot be found out.
    #[error("cannot read which guest pages are in use from /proc/self/pagemap")]
    Pagemap(#[source] io::Error),
}

/// The host mapping; unmapped when the last user is gone.
#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    len: usize,
    reserved: (*mut u8, usize),
}

// SAFETY: `Mapping` is an address range, owned like memory; it gives no access by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; all accesses go through `Memory` and say how they are synchronised.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` anonymous bytes, aligned to [`HUGE_PAGE`].
    fn anonymous(len: usize) -> io::Result<Self> {
        let reserved = len + HUGE_PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let base = start.map_addr(|a| a.next_multiple_of(HUGE_PAGE));
        Ok(Self { base, len, reserved: (start, reserved) })
    }

    /// Maps `len` bytes of `file` from `offset` over this mapping at `at`.
    fn overlay(&self, at: u64, file: &impl AsRawFd, offset: u64, len: u64) -> io::Result<()> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len as u64), "checked by the caller");
        // SAFETY: the target lies inside this mapping, which nobody reads yet: the caller has `&mut Memory`.
        let mapped = unsafe {
            libc::mmap(
                self.base.add(at as usize).cast(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                offset.cast_signed(),
            )
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone; `Memory` and its KVM slots are gone when this runs.
        unsafe { libc::munmap(self.reserved.0.cast(), self.reserved.1) };
    }
}

/// All RAM of one guest.
///
/// Clones share it. Whoever holds a [`GuestMemory`] taken from it keeps a clone of this as well, since
/// the regions in there borrow the mapping without owning it.
#[derive(Clone, Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    guest: GuestMemory,
    ranges: Vec<RamRange>,
    /// Offsets in RAM where the artifact's file is mapped, sorted: there an untouched page is not zero.
    file_backed: Vec<(u64, u64)>,
}

impl Memory {
    /// RAM of `bytes` zero bytes.
    ///
    /// # Errors
    /// A size outside the layout's limits; the host refuses to map it.
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        let fits = (layout::MIN_MEMORY..=layout::MAX_MEMORY).contains(&bytes);
        if !fits || !bytes.is_multiple_of(PAGE) {
            return Err(MemoryError::Size(bytes));
        }
        let mapping = Mapping::anonymous(bytes as usize).map_err(|source| MemoryError::Map {
            what: "guest memory",
            len: bytes,
            source,
        })?;
        let ranges = layout::ram(bytes);
        let guest = guest_memory(&mapping, &ranges)?;
        Ok(Self { mapping: Arc::new(mapping), guest, ranges, file_backed: Vec::new() })
    }

    /// RAM with the contents of an artifact's memory section; nothing raw is read here.
    ///
    /// # Errors
    /// As [`Memory::new`]; a chunk that needs a parent; a file shorter than its index says, which would
    /// otherwise kill the process (SIGBUS) when the guest touches the missing part.
    pub fn from_section(artifact: &Artifact, section: &Section) -> Result<Self, MemoryError> {
        let mut memory = Self::new(section.len())?;
        let file = artifact.file();
        let map_error = |len, source| MemoryError::Map { what: "the artifact's memory section", len, source };
        let actual = file.metadata().map_err(|e| map_error(section.len(), e))?.len();
        for run in FileRuns::of(section) {
            let run = run?;
            match run.data {
                RunData::Mapped { offset, .. } if offset + run.len > actual => {
                    return Err(MemoryError::ShortFile { needed: offset + run.len, actual });
                }
                RunData::Mapped { offset } if memory.file_backed.len() < MAX_FILE_MAPPINGS => {
                    let mapped = memory.mapping.overlay(run.at, &**file, offset, run.len);
                    mapped.map_err(|e| map_error(run.len, e))?;
                    memory.file_backed.push((run.at, run.at + run.len));
                }
                _ => section.read_at(memory.bytes_mut(run.at, run.len), run.at)?,
            }
        }
        Ok(memory)
    }

    /// Bytes of RAM.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.mapping.len as u64
    }

    /// Never: there is always some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The view by guest physical address, for devices.
    #[must_use]
    pub fn guest(&self) -> &GuestMemory {
        &self.guest
    }

    /// The pieces with their host addresses, for KVM's memory slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (RamRange, u64)> + '_ {
        let base = self.mapping.base.addr() as u64;
        self.ranges.iter().map(move |range| (*range, base + range.offset))
    }

    /// What is in use, for a snapshot.
    ///
    /// # Safety
    /// Nothing may write to guest memory while the scan lives: the vCPUs are paused and the devices
    /// have completed what was in flight.
    ///
    /// # Errors
    /// `/proc/self/pagemap` cannot be read.
    pub unsafe fn scan(&self) -> Result<Scan<'_>, MemoryError> {
        // SAFETY: the mapping is alive and readable as long as `self`; nobody writes, says the caller.
        let bytes = unsafe { std::slice::from_raw_parts(self.mapping.base, self.mapping.len) };
        Scan::new(bytes, &self.file_backed).map_err(MemoryError::Pagemap)
    }

    /// RAM as bytes, while nothing else can see it.
    fn bytes_mut(&mut self, at: u64, len: u64) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()), "checked by the caller");
        // SAFETY: in range; `&mut self` before the first clone means no guest and no device runs yet.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.add(at as usize), len as usize) }
    }
}

fn guest_memory(mapping: &Mapping, ranges: &[RamRange]) -> Result<GuestMemory, MemoryError> {
    let layout_error = |e: &dyn std::fmt::Display| MemoryError::Layout(e.to_string());
    let mut regions = Vec::with_capacity(ranges.len());
    for range in ranges {
        // SAFETY: the ranges partition the mapping, which `Memory` keeps alive beside the regions.
        let region = unsafe {
            MmapRegion::build_raw(
                mapping.base.add(range.offset as usize),
                range.len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            )
        }
        .map_err(|e| layout_error(&e))?;
        let region = GuestRegionMmap::new(region, GuestAddress(range.address))
            .ok_or_else(|| layout_error(&"address overflow"))?;
        regions.push(region);
    }
    GuestMemory::from_regions(regions).map_err(|e| layout_error(&e))
}

/// Neighbouring chunks that one call can place.
#[derive(Debug, PartialEq, Eq)]
struct FileRun {
    at: u64,
    len: u64,
    data: RunData,
}

#[derive(Debug, PartialEq, Eq)]
enum RunData {
    /// Raw and page-aligned in the file: can be mapped.
    Mapped { offset: u64 },
    /// Must be read.
    Read,
}

/// Joins a memory section's chunks into as few runs as possible; zero chunks are left out.
struct FileRuns<'a> {
    section: &'a Section,
    next: usize,
}

impl<'a> FileRuns<'a> {
    fn of(section: &'a Section) -> Self {
        Self { section, next: 0 }
    }

    /// The next chunk that is not zero, and whether it can be mapped.
    fn chunk(&mut self) -> Option<Result<FileRun, MemoryError>> {
        loop {
            let chunk = self.section.chunks().get(self.next)?;
            self.next += 1;
            let data = match chunk.data {
                ChunkData::Zero => continue,
                ChunkData::Parent => return Some(Err(MemoryError::Parent { at: chunk.at })),
                ChunkData::Raw { offset }
                    if [offset, chunk.at, chunk.len].iter().all(|n| n.is_multiple_of(PAGE)) =>
                {
                    RunData::Mapped { offset }
                }
                ChunkData::Raw { .. } | ChunkData::Zstd { .. } => RunData::Read,
            };
            return Some(Ok(FileRun { at: chunk.at, len: chunk.len, data }));
        }
    }
}

impl Iterator for FileRuns<'_> {
    type Item = Result<FileRun, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut run = match self.chunk()? {
            Ok(run) => run,
            Err(e) => return Some(Err(e)),
        };
        while let RunData::Mapped { offset } = run.data {
            let before = self.next;
            match self.chunk() {
                Some(Ok(FileRun { at, len, data: RunData::Mapped { offset: next } }))
                    if at == run.at + run.len && next == offset + run.len =>
                {
                    run.len += len;
                }
                _ => {
                    self.next = before;
                    break;
                }
            }
        }
        Some(Ok(run))
    }
}
