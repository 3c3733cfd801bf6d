//! Writing a container, strictly forward: sections, then their tables, the index, the manifest and the
//! footer; the header last, so that a file that was not finished is not taken for a container.
//!
//! Deterministic: the same sections, options and manifest give the same bytes (compressed data: with
//! the same version of zstd; the artifact's digest does not depend on it).

mod chunker;
mod copy;
mod options;
mod output;
mod section;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use options::{Chunking, Compression, SectionOptions};
pub use output::NewFile;
pub use section::SectionWriter;

use crate::artifact::allows_parent;
use crate::limits::{MAX_MANIFEST, MAX_SECTIONS};
use crate::manifest::SectionSummary;
use crate::spec::footer::{FOOTER_LEN, Footer};
use crate::spec::header::{Extent, HEADER_LEN, Header, INCOMPAT_ZSTD, MINOR};
use crate::spec::index::Entry;
use crate::{BLOCK, Code, Digest, FormatError, Manifest, Part, SectionKind};

/// Writes one container.
#[derive(Debug)]
pub struct Writer {
    output: NewFile,
    /// The end of what was written; holes before it read as zero.
    at: u64,
    sections: Vec<Done>,
    /// A section was begun; finishing it clears this.
    open: Option<SectionKind>,
    zstd: bool,
}

/// A finished section. Its tables' places in `entry` are set when they are written.
#[derive(Debug)]
struct Done {
    entry: Entry,
    name: Option<String>,
    content: Vec<u8>,
    placement: Vec<u8>,
    parent: bool,
}

impl Writer {
    /// Begins a container that is to appear at `path`. Until `finish` succeeds nothing is visible
    /// there, or the old file is; dropping the writer leaves no trace.
    ///
    /// # Errors
    /// `Io` if the folder does not exist or cannot be written to.
    pub fn create(path: &Path) -> Result<Self, FormatError> {
        NewFile::create(path).map(Self::new)
    }

    /// Begins a container in an empty file that is open for reading and writing.
    ///
    /// # Errors
    /// `Usage` if it is not empty; `Io` if it cannot be examined.
    pub fn to_file(file: File) -> Result<Self, FormatError> {
        let meta =
            file.metadata().map_err(|e| FormatError::io(Part::File, None, "cannot stat the file", e))?;
        if meta.len() != 0 {
            return Err(FormatError::usage(Part::File, "a container is written into an empty file"));
        }
        Ok(Self::new(NewFile::given(file)))
    }

    fn new(output: NewFile) -> Self {
        Self { output, at: HEADER_LEN, sections: Vec::new(), open: None, zstd: false }
    }

    /// Begins the next section; the one before it must be finished.
    ///
    /// # Errors
    /// `Usage` for a second section of a kind, an unfinished one, too many, or senseless options.
    pub fn section(
        &mut self,
        kind: SectionKind,
        options: SectionOptions,
    ) -> Result<SectionWriter<'_>, FormatError> {
        self.check_next(kind)?;
        options.check().map_err(|what| FormatError::usage(Part::Section(kind), what))?;
        self.open = Some(kind);
        Ok(SectionWriter::new(self, kind, options))
    }

    /// Completes the container: tables, index, manifest (its `sections` are filled in here), footer and
    /// header; then makes it durable and gives it its name. Returns the artifact's digest.
    ///
    /// # Errors
    /// `Usage` if a section was begun and not finished; `ManifestInvalid` if the manifest contradicts
    /// itself or the sections; `Io`.
    pub fn finish(mut self, mut manifest: Manifest) -> Result<Digest, FormatError> {
        self.check_closed()?;
        self.check_sections(&manifest)?;
        manifest.sections = self.sections.iter().map(Done::summary).collect();
        let manifest = manifest.encode()?;
        if manifest.len() as u64 > MAX_MANIFEST {
            let what = format!("{} bytes; at most {MAX_MANIFEST}", manifest.len());
            return Err(FormatError::new(Code::LimitExceeded, Part::Manifest, None, what));
        }
        let index = self.write_tables()?;
        let header = self.write_end(&index, &manifest)?;
        let (raw, header_checksum) = header.encode();
        let footer = Footer { length: header.length, header_checksum }.encode();
        self.write_at(&footer, header.length - FOOTER_LEN, Part::Footer)?;
        self.write_at(&raw, 0, Part::Header)?;
        self.output.publish()?;
        Ok(header.manifest_digest)
    }

    fn check_next(&self, kind: SectionKind) -> Result<(), FormatError> {
        self.check_closed()?;
        let part = Part::Section(kind);
        if !kind.may_repeat() && self.sections.iter().any(|done| done.entry.kind == kind) {
            return Err(FormatError::usage(part, "the container has this section already"));
        }
        if self.sections.len() as u64 >= MAX_SECTIONS {
            return Err(FormatError::usage(part, format!("a container has at most {MAX_SECTIONS} sections")));
        }
        Ok(())
    }

    fn check_closed(&self) -> Result<(), FormatError> {
        match self.open {
            None => Ok(()),
            Some(kind) => {
                Err(FormatError::usage(Part::Section(kind), "the section was begun, but not finished"))
            }
        }
    }

    /// What a reader would refuse.
    fn check_sections(&self, manifest: &Manifest) -> Result<(), FormatError> {
        for done in &self.sections {
            if done.parent && !allows_parent(manifest.kind, done.entry.kind) {
                let what = "refers to a parent, but the container is no checkpoint";
                return Err(FormatError::usage(Part::Section(done.entry.kind), what));
            }
        }
        let length = |kind| self.sections.iter().find(|d| d.entry.kind == kind).map(|d| d.entry.length);
        match (length(SectionKind::Disk), length(SectionKind::Overlay)) {
            (Some(disk), Some(overlay)) if disk != overlay => {
                let what = format!("{overlay} bytes over a disk of {disk}");
                Err(FormatError::usage(Part::Section(SectionKind::Overlay), what))
            }
            _ => Ok(()),
        }
    }

    /// Writes all tables; gives the index.
    fn write_tables(&mut self) -> Result<Vec<u8>, FormatError> {
        let mut sections = std::mem::take(&mut self.sections);
        let mut index = Vec::new();
        for done in &mut sections {
            let part = Part::Section(done.entry.kind);
            done.entry.content = self.append(&done.content, part)?;
            done.entry.placement = self.append(&done.placement, part)?;
            index.extend_from_slice(&done.entry.encode());
        }
        Ok(index)
    }

    /// Writes index and manifest; gives the header that leads to them.
    fn write_end(&mut self, index: &[u8], manifest: &[u8]) -> Result<Header, FormatError> {
        let index_at = self.append(index, Part::Index)?;
        let manifest_at = self.append(manifest, Part::Manifest)?;
        Ok(Header {
            minor: MINOR,
            incompat: if self.zstd { INCOMPAT_ZSTD } else { 0 },
            ro_compat: 0,
            compat: 0,
            length: self.at.next_multiple_of(8) + FOOTER_LEN,
            manifest: manifest_at,
            manifest_digest: Digest::of(manifest),
            index: index_at,
            index_digest: Digest::of(index),
        })
    }

    /// Appends a part of the container's end, at a multiple of 8. What is empty lies at 0.
    fn append(&mut self, bytes: &[u8], part: Part) -> Result<Extent, FormatError> {
        if bytes.is_empty() {
            return Ok(Extent::default());
        }
        let offset = self.at.next_multiple_of(8);
        self.write_at(bytes, offset, part)?;
        self.at = offset + bytes.len() as u64;
        Ok(Extent { offset, length: bytes.len() as u64 })
    }

    fn write_at(&self, bytes: &[u8], at: u64, part: Part) -> Result<(), FormatError> {
        self.output.file.write_all_at(bytes, at).map_err(|source| {
            let what = "writing failed; is the disk full?";
            FormatError::io(part, at, what, source)
        })
    }

    /// Closes the section that is open.
    fn close(&mut self, done: Done) {
        self.at = self.at.next_multiple_of(BLOCK);
        self.open = None;
        self.sections.push(done);
    }
}

impl Done {
    fn summary(&self) -> SectionSummary {
        let entry = &self.entry;
        SectionSummary {
            kind: entry.kind.to_string(),
            length: entry.length,
            digest: entry.content_digest,
            name: self.name.clone(),
        }
    }
}
