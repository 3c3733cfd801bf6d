//! Copying sections from another container.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::{Done, Writer};
use crate::section::{ChunkData, Section, Tables};
use crate::spec::header::Extent;
use crate::{Artifact, BLOCK, Code, FormatError, Part, SectionKind};

/// Bytes moved at once where the kernel cannot copy.
const STEP: u64 = 1 << 20;

impl Writer {
    /// Copies the section of a kind, as it is stored; its data is neither decoded nor verified. On a
    /// file system that shares extents it takes no space.
    ///
    /// # Errors
    /// As `section`; `Usage` if `from` has no such section; `UnsupportedFeature` if `from` has features
    /// that forbid making new containers of it; what is wrong with its tables; `Io`.
    pub fn copy_section(&mut self, from: &Artifact, kind: SectionKind) -> Result<(), FormatError> {
        let position = from.sections().iter().position(|section| section.kind == kind);
        let missing = || FormatError::usage(Part::Section(kind), "the source has no such section");
        self.copy_section_at(from, position.ok_or_else(missing)?)
    }

    /// As `copy_section`, for the section at a position of `from.sections()`.
    ///
    /// # Errors
    /// As `copy_section`.
    pub fn copy_section_at(&mut self, from: &Artifact, position: usize) -> Result<(), FormatError> {
        let mut entry = from.entry(position)?.clone();
        self.check_next(entry.kind)?;
        check_features(from)?;
        let section = Section::load(from, &entry)?;
        let tables = Tables::load(from, &entry)?;
        let name = from.sections().get(position).and_then(|section| section.name.clone());
        if entry.data.length > 0 {
            let source = from.base() + entry.data.offset;
            entry.data = self.copy_data(from.file(), source, entry.data.length, 1 << entry.alignment_log2)?;
        }
        self.zstd |= section.chunks().iter().any(|chunk| matches!(chunk.data, ChunkData::Zstd { .. }));
        let parent = section.chunks().iter().any(|chunk| chunk.data == ChunkData::Parent);
        self.close(Done { entry, name, content: tables.content, placement: tables.placement, parent });
        Ok(())
    }

    fn copy_data(
        &mut self,
        from: &File,
        source: u64,
        length: u64,
        align: u64,
    ) -> Result<Extent, FormatError> {
        let offset = self.at.next_multiple_of(align);
        copy_range(from, source, &self.output.file, offset, length)
            .map_err(|e| FormatError::io(Part::File, source, "copying a section failed", e))?;
        self.at = (offset + length).next_multiple_of(BLOCK);
        Ok(Extent { offset, length })
    }
}

fn check_features(from: &Artifact) -> Result<(), FormatError> {
    let unknown = from.header().ro_compat;
    if unknown == 0 {
        return Ok(());
    }
    let what = format!("features {unknown:#x} forbid making new containers of it; use a newer smolpack");
    Err(FormatError::new(Code::UnsupportedFeature, Part::Header, from.base() + 24, what))
}

/// Copies within the kernel where it can.
fn copy_range(from: &File, source: u64, to: &File, target: u64, length: u64) -> std::io::Result<()> {
    let (mut read_at, mut write_at, end) = (source, target, source + length);
    while read_at < end {
        let step = (end - read_at).min(1 << 30) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), step) {
            Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                return copy_through_memory(from, read_at, to, write_at, end - read_at);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_through_memory(from: &File, source: u64, to: &File, target: u64, length: u64) -> std::io::Result<()> {
    let mut buf = vec![0; STEP.min(length) as usize];
    let mut done = 0;
    while done < length {
        let step = STEP.min(length - done) as usize;
        from.read_exact_at(&mut buf[..step], source + done)?;
        to.write_all_at(&buf[..step], target + done)?;
        done += step as u64;
    }
    Ok(())
}
