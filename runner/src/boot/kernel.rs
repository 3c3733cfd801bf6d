//! Kernel and initrd, read from the artifact straight into guest memory.

use super::BootError;
use crate::layout::{self, PAGE};
use crate::memory::GuestMemory;
use linux_loader::loader::KernelLoader;
use linux_loader::loader::elf::Elf;
use smolpack_format::{FormatError, Section};
use std::io::{self, Read, Seek, SeekFrom};
use vm_memory::bitmap::BitmapSlice;
use vm_memory::{GuestAddress, GuestMemoryBackend, ReadVolatile, VolatileMemoryError, VolatileSlice};

/// The boot page tables map no more than this.
const MAPPED: u64 = 1 << 30;

/// A kernel in guest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    /// Guest physical address of its first instruction.
    pub(super) entry: u64,
    /// First byte after it.
    pub(super) end: u64,
}

/// Where the initrd lies: guest physical address and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Initrd {
    pub(super) address: u32,
    pub(super) len: u32,
}

/// Loads an ELF kernel where its program headers say.
pub(super) fn load(guest: &GuestMemory, section: &Section) -> Result<Kernel, BootError> {
    let mut reader = SectionReader::new(section);
    // An offset of 0 also keeps the loader from looking for PVH notes, which are not used.
    let lowest = GuestAddress(layout::HIGH_MEMORY_START);
    let loaded = Elf::load(guest, Some(GuestAddress(0)), &mut reader, Some(lowest))
        .map_err(|e| reader.failure.take().map_or(BootError::Kernel(e.to_string()), BootError::Artifact))?;
    let kernel = Kernel { entry: loaded.kernel_load.0, end: loaded.kernel_end };
    if !(layout::HIGH_MEMORY_START..MAPPED).contains(&kernel.entry) {
        return Err(BootError::Kernel(format!(
            "its entry {:#x} does not lie between 1 MiB and 1 GiB",
            kernel.entry
        )));
    }
    Ok(kernel)
}

/// Loads the initrd as high as it goes below the hole for devices.
pub(super) fn load_initrd(
    guest: &GuestMemory,
    section: &Section,
    kernel_end: u64,
    memory: u64,
) -> Result<Initrd, BootError> {
    let low = memory.min(layout::HOLE_START);
    let too_large = || BootError::Initrd { initrd: section.len(), memory: low };
    let address = low.checked_sub(section.len()).ok_or_else(too_large)? & !(PAGE - 1);
    if address < kernel_end.max(layout::HIGH_MEMORY_START) {
        return Err(too_large());
    }
    let mut target = guest
        .get_slice(GuestAddress(address), section.len() as usize)
        .map_err(|_| BootError::Write("the initrd"))?;
    let mut reader = SectionReader::new(section);
    reader
        .read_exact_volatile(&mut target)
        .map_err(|_| reader.failure.take().map_or(BootError::Write("the initrd"), BootError::Artifact))?;
    Ok(Initrd { address: address as u32, len: section.len() as u32 })
}

/// A section as a file, its digests checked as it is read.
struct SectionReader<'a> {
    section: &'a Section,
    at: u64,
    /// What went wrong, which the loader does not pass on.
    failure: Option<FormatError>,
}

impl<'a> SectionReader<'a> {
    fn new(section: &'a Section) -> Self {
        Self { section, at: 0, failure: None }
    }
}

impl Read for SectionReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.section.len().saturating_sub(self.at);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if let Err(failure) = self.section.read_verified(&mut buf[..len], self.at) {
            self.failure = Some(failure);
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for SectionReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.section.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl ReadVolatile for SectionReader<'_> {
    fn read_volatile<B: BitmapSlice>(
        &mut self,
        buf: &mut VolatileSlice<'_, B>,
    ) -> Result<usize, VolatileMemoryError> {
        let guard = buf.ptr_guard_mut();
        // SAFETY: the slice is live guest memory, which nobody else touches before the machine runs.
        let target = unsafe { std::slice::from_raw_parts_mut(guard.as_ptr(), buf.len()) };
        self.read(target).map_err(VolatileMemoryError::IOError)
    }
}
