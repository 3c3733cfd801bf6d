//! Verifying every byte of a container.

use std::path::Path;

use serde::Serialize;

use crate::io_util::read_vec;
use crate::section::ChunkData;
use crate::{Artifact, Code, Digest, FormatError, Part, Section};

/// What was verified.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The artifact's digest.
    pub digest: Digest,
    /// The container's bytes, all of them verified.
    pub bytes: u64,
    /// Bytes before the container (a program that runs it), which the format does not cover.
    pub prefix_bytes: u64,
    /// Sections.
    pub sections: usize,
    /// Chunks in all sections.
    pub chunks: u64,
    /// Chunks whose content is in the parent, and so not verified here.
    pub parent_chunks: u64,
}

/// Verifies the container at `path`: every byte of it is either covered by a digest that leads to the
/// artifact's, or by the header's checksum, or has to be zero and is.
///
/// `progress` is called with the bytes done and in all, after each chunk.
///
/// # Errors
/// What opening finds, then gaps that are not zero, then the sections in order.
pub fn verify(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, FormatError> {
    verify_artifact(&Artifact::open(path)?, progress)
}

/// As [`verify()`], for a container that is open.
///
/// # Errors
/// As [`verify()`].
pub fn verify_artifact(
    artifact: &Artifact,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, FormatError> {
    let extent = artifact.extent();
    let mut report = Report {
        digest: artifact.digest(),
        bytes: extent.end - extent.start,
        prefix_bytes: extent.start,
        sections: artifact.sections().len(),
        chunks: 0,
        parent_chunks: 0,
    };
    check_gaps(artifact)?;
    let stored: u64 = artifact.sections().iter().map(|section| section.stored).sum();
    let mut done = report.bytes.saturating_sub(stored);
    for (position, entry) in artifact.sections().iter().enumerate() {
        let section = artifact.section_at(position)?;
        let start = artifact.base() + artifact.entry(position)?.data.offset;
        let mut data = Data { artifact, section: &section, end: start, buf: Vec::new() };
        data.verify(&mut |end| progress(done + (end - start), report.bytes))?;
        done += entry.stored;
        report.chunks += entry.chunks;
        report.parent_chunks +=
            section.chunks().iter().filter(|c| c.data == ChunkData::Parent).count() as u64;
    }
    progress(report.bytes, report.bytes);
    Ok(report)
}

/// The bytes between the parts; opening has checked that each gap is short.
fn check_gaps(artifact: &Artifact) -> Result<(), FormatError> {
    for pair in artifact.pieces().windows(2) {
        let (from, to) = (pair[0].extent.end(), pair[1].extent.offset);
        check_zero(artifact, artifact.base() + from, artifact.base() + to, pair[1].part)?;
    }
    Ok(())
}

/// Refuses bytes from `from` to `to` of the file that are not zero.
fn check_zero(artifact: &Artifact, from: u64, to: u64, part: Part) -> Result<(), FormatError> {
    let gap = read_vec(artifact.file(), from, to - from, part)?;
    match gap.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(i) => {
            let what = "a byte that belongs to nothing is not zero";
            Err(FormatError::new(Code::GapNotZero, part, from + i as u64, what))
        }
    }
}

/// A walk through a section's data extent.
struct Data<'a> {
    artifact: &'a Artifact,
    section: &'a Section,
    /// Absolute; verified up to here.
    end: u64,
    /// Reused for every chunk.
    buf: Vec<u8>,
}

impl Data<'_> {
    fn verify(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), FormatError> {
        for (i, chunk) in self.section.chunks().iter().enumerate() {
            if let Some(place) = chunk.stored() {
                self.pad(place.start)?;
                self.section.read_chunk(i, &mut self.buf)?;
                self.end = place.end;
                progress(place.end);
            }
        }
        let base = self.artifact.base();
        self.pad(base + (self.end - base).next_multiple_of(crate::BLOCK))
    }

    fn pad(&self, to: u64) -> Result<(), FormatError> {
        check_zero(self.artifact, self.end, to, Part::Section(self.section.kind()))
    }
}
