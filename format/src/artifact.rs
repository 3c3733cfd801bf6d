//! Opening a container.
//!
//! Opening reads the header, the footer, the section index and the manifest, a few KiB in all, and
//! leaves nothing unchecked in them. Sections load their tables when they are asked for.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::io_util::{read_exact, read_vec};
use crate::layout::{Piece, arrange, check_bounds};
use crate::limits::{MAX_MANIFEST, MAX_SECTIONS};
use crate::manifest::{Kind, SectionSummary};
use crate::open::open_file;
use crate::spec::footer::{FOOTER_LEN, Footer};
use crate::spec::header::{self, Extent, HEADER_LEN, Header};
use crate::spec::index::{ENTRY_LEN, Entry};
use crate::{Code, Digest, FormatError, Manifest, Part, Section, SectionKind};

/// An open container: its header, footer, index and manifest are verified.
#[derive(Clone, Debug)]
pub struct Artifact {
    file: Arc<File>,
    base: u64,
    header: Header,
    digest: Digest,
    manifest: Manifest,
    entries: Vec<Entry>,
    sections: Vec<SectionEntry>,
    pieces: Vec<Piece>,
}

/// A section as the index and the manifest describe it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionEntry {
    /// What it holds.
    pub kind: SectionKind,
    /// What an attachment is called.
    pub name: Option<String>,
    /// Logical bytes.
    pub length: u64,
    /// Bytes its data takes in the file.
    pub stored: u64,
    /// Chunks it consists of.
    pub chunks: u64,
    /// SHA-256 of its content table: equal content, cut alike, has equal digests.
    pub digest: Digest,
}

impl Artifact {
    /// Opens the container at `path`.
    ///
    /// # Errors
    /// `Io` if the file cannot be opened or read; else what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let file = open_file(path).map_err(|source| {
            FormatError::io(Part::File, None, &format!("cannot open {}", path.display()), source)
        })?;
        Self::from_file(file)
    }

    /// Opens the container in a file that is open for reading; its position does not matter.
    ///
    /// # Errors
    /// As `open`.
    pub fn from_file(file: File) -> Result<Self, FormatError> {
        let size = file_size(&file)?;
        let found = Found::locate(&file, size)?;
        let (base, header) = (found.base, found.header);
        let index = load(&file, base, &header, Part::Index)?;
        let entries = decode_index(&index, base + header.index.offset)?;
        let pieces = arrange(pieces(&header, &entries), header.length, base)?;
        let bytes = load(&file, base, &header, Part::Manifest)?;
        let manifest = Manifest::decode(&bytes, base + header.manifest.offset)?;
        let digest = header.manifest_digest;
        let sections = join(&entries, &manifest, base + header.index.offset)?;
        Ok(Self { file: Arc::new(file), base, header, digest, manifest, entries, sections, pieces })
    }

    /// What the machine is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The artifact's name: the SHA-256 of its manifest, which names all content.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The sections in the order of the index.
    #[must_use]
    pub fn sections(&self) -> &[SectionEntry] {
        &self.sections
    }

    /// Loads and verifies the tables of the first section of a kind; `None` if there is none.
    ///
    /// # Errors
    /// What is wrong with its tables.
    pub fn section(&self, kind: SectionKind) -> Result<Option<Section>, FormatError> {
        let at = self.sections.iter().position(|section| section.kind == kind);
        at.map(|at| self.section_at(at)).transpose()
    }

    /// Loads and verifies the tables of the section at a position of `sections`.
    ///
    /// # Errors
    /// What is wrong with its tables; `Usage` for a position beyond the last.
    pub fn section_at(&self, position: usize) -> Result<Section, FormatError> {
        Section::load(self, self.entry(position)?)
    }

    /// The file; chunks give places in it.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The container's place in the file, and its length in bytes.
    #[must_use]
    pub fn extent(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.header.length
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn entry(&self, position: usize) -> Result<&Entry, FormatError> {
        let missing = || FormatError::usage(Part::Index, format!("there is no section {position}"));
        self.entries.get(position).ok_or_else(missing)
    }

    /// Whether parent chunks have a meaning in sections of this kind: in the overlay they stand for
    /// the disk; elsewhere for the parent, which only a checkpoint has.
    pub(crate) fn allows_parent(&self, kind: SectionKind) -> bool {
        allows_parent(self.manifest.kind, kind)
    }
}

/// See [`Artifact::allows_parent`].
pub(crate) fn allows_parent(container: Kind, section: SectionKind) -> bool {
    section == SectionKind::Overlay || container == Kind::Checkpoint
}

fn file_size(file: &File) -> Result<u64, FormatError> {
    let meta = file.metadata().map_err(|e| FormatError::io(Part::File, None, "cannot stat the file", e))?;
    if !meta.is_file() {
        return Err(FormatError::new(Code::NotSmolmachine, Part::File, None, "not a regular file"));
    }
    Ok(meta.len())
}

/// A header that was found, and where.
struct Found {
    base: u64,
    header: Header,
}

impl Found {
    /// Looks for a header at the start of the file, then for a footer that leads to one.
    fn locate(file: &File, size: u64) -> Result<Self, FormatError> {
        let mut magic = [0; 8];
        if size >= 8 {
            read_exact(file, &mut magic, 0, Part::Header)?;
        }
        let at_start = magic == header::MAGIC;
        let footer = Self::footer(file, size)?;
        let base = match footer {
            _ if at_start => 0,
            Some(footer) => base_from(footer, size)?,
            None => return Err(foreign(file, size)),
        };
        let (header, checksum) = Self::header(file, base)?;
        check_size(&header, base, size)?;
        let footer = footer.ok_or_else(|| {
            FormatError::new(Code::FooterMismatch, Part::Footer, size - FOOTER_LEN, "there is no footer")
        })?;
        footer.check(header.length, checksum, size - FOOTER_LEN)?;
        Ok(Self { base, header })
    }

    fn footer(file: &File, size: u64) -> Result<Option<Footer>, FormatError> {
        let Some(at) = size.checked_sub(FOOTER_LEN) else { return Ok(None) };
        let mut raw = [0; FOOTER_LEN as usize];
        read_exact(file, &mut raw, at, Part::Footer)?;
        Footer::decode(&raw, at)
    }

    fn header(file: &File, base: u64) -> Result<(Header, Digest), FormatError> {
        let mut raw = [0; HEADER_LEN as usize];
        read_exact(file, &mut raw, base, Part::Header)?;
        if raw[..8] != header::MAGIC {
            let what = "the footer does not lead to a header";
            return Err(FormatError::new(Code::FooterMismatch, Part::Header, base, what));
        }
        Header::decode(&raw, base)
    }
}

/// Where a footer at the end of a file of `size` bytes says the header is.
fn base_from(footer: Footer, size: u64) -> Result<u64, FormatError> {
    let at = size - FOOTER_LEN;
    let Some(base) = size.checked_sub(footer.length) else {
        let what = format!("the container has {} bytes, the file {size}", footer.length);
        return Err(FormatError::new(Code::Truncated, Part::Footer, at + 8, what));
    };
    if !base.is_multiple_of(crate::BLOCK) {
        let what = format!("the container starts at {base}, no multiple of 4096");
        return Err(FormatError::new(Code::Misaligned, Part::Footer, at + 8, what));
    }
    Ok(base)
}

fn check_size(header: &Header, base: u64, size: u64) -> Result<(), FormatError> {
    let (rest, length) = (size - base, header.length);
    if rest < length {
        let what = format!("the container has {length} bytes, the file {rest}; get it again");
        return Err(FormatError::new(Code::Truncated, Part::File, size, what));
    }
    if rest > length {
        let what = format!("{} bytes after the container's end", rest - length);
        return Err(FormatError::new(Code::TrailingData, Part::File, base + length, what));
    }
    Ok(())
}

/// Names a file that is no container.
fn foreign(file: &File, size: u64) -> FormatError {
    const SMOLVM: &[u8] = b"SMOLPACK";
    let start = size.saturating_sub(4096);
    let tail = match read_vec(file, start, size - start, Part::File) {
        Ok(tail) => tail,
        Err(error) => return error,
    };
    match tail.windows(SMOLVM.len()).rposition(|window| window == SMOLVM) {
        Some(at) => {
            let what = "packed by smolvm, in its own format; rebuild it from its Smolfile or image with \
                        `smolpack build`";
            FormatError::new(Code::SmolvmFile, Part::File, start + at as u64, what)
        }
        None => FormatError::new(Code::NotSmolmachine, Part::File, None, "not a .smolmachine file"),
    }
}

/// Reads the index or the manifest and compares its digest.
fn load(file: &File, base: u64, header: &Header, part: Part) -> Result<Vec<u8>, FormatError> {
    let (extent, digest, field, max, code) = match part {
        Part::Index => (header.index, header.index_digest, 104, MAX_SECTIONS * ENTRY_LEN, Code::IndexDigest),
        _ => (header.manifest, header.manifest_digest, 56, MAX_MANIFEST, Code::ManifestDigest),
    };
    if extent.length > max {
        let what = format!("{} bytes; at most {max}", extent.length);
        return Err(FormatError::new(Code::LimitExceeded, part, base + field, what));
    }
    check_bounds(extent, part, header.length, base + field - 8)?;
    let bytes = read_vec(file, base + extent.offset, extent.length, part)?;
    if Digest::of(&bytes) != digest {
        let what = "its SHA-256 is not the header's";
        return Err(FormatError::new(code, part, base + extent.offset, what));
    }
    Ok(bytes)
}

pub(crate) fn decode_index(bytes: &[u8], at: u64) -> Result<Vec<Entry>, FormatError> {
    if !(bytes.len() as u64).is_multiple_of(ENTRY_LEN) {
        let what = format!("{} bytes are no multiple of an entry's 128", bytes.len());
        return Err(FormatError::new(Code::Misaligned, Part::Index, at, what));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (i, raw) in bytes.chunks_exact(ENTRY_LEN as usize).enumerate() {
        let here = at + i as u64 * ENTRY_LEN;
        let entry = Entry::decode(raw, here)?;
        if !entry.kind.may_repeat() && entries.iter().any(|other| other.kind == entry.kind) {
            let what = "occurs twice";
            return Err(FormatError::new(Code::DuplicateSection, Part::Section(entry.kind), here, what));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn pieces(header: &Header, entries: &[Entry]) -> Vec<Piece> {
    let mut pieces = vec![
        Piece::new(Extent { offset: 0, length: HEADER_LEN }, Part::Header),
        Piece::new(header.index, Part::Index),
        Piece::new(header.manifest, Part::Manifest),
        Piece::new(
            Extent { offset: header.length.saturating_sub(FOOTER_LEN), length: FOOTER_LEN },
            Part::Footer,
        ),
    ];
    for entry in entries {
        let part = Part::Section(entry.kind);
        pieces.push(Piece::new(entry.data, part));
        pieces.push(Piece::new(entry.content, part));
        pieces.push(Piece::new(entry.placement, part));
    }
    pieces
}

/// Pairs index entries with what the manifest says of them.
fn join(entries: &[Entry], manifest: &Manifest, at: u64) -> Result<Vec<SectionEntry>, FormatError> {
    if entries.len() != manifest.sections.len() {
        let what = format!("{} sections, the manifest names {}", entries.len(), manifest.sections.len());
        return Err(FormatError::new(Code::SectionMismatch, Part::Index, at, what));
    }
    let pairs = entries.iter().zip(&manifest.sections);
    let joined =
        pairs.enumerate().map(|(i, (entry, summary))| pair(entry, summary, at + i as u64 * ENTRY_LEN));
    let sections = joined.collect::<Result<Vec<_>, _>>()?;
    check_overlay(&sections, at)?;
    Ok(sections)
}

fn pair(entry: &Entry, summary: &SectionSummary, at: u64) -> Result<SectionEntry, FormatError> {
    let same_kind = match entry.kind.name() {
        Some(name) => name == summary.kind,
        None => !SectionKind::is_known_name(&summary.kind),
    };
    if !same_kind || entry.length != summary.length || entry.content_digest != summary.digest {
        let what = format!("the manifest has {}, {} bytes, {}", summary.kind, summary.length, summary.digest);
        return Err(FormatError::new(Code::SectionMismatch, Part::Section(entry.kind), at, what));
    }
    Ok(SectionEntry {
        kind: entry.kind,
        name: summary.name.clone(),
        length: entry.length,
        stored: entry.data.length,
        chunks: entry.chunks(),
        digest: entry.content_digest,
    })
}

/// An overlay lies over a disk of its own length.
fn check_overlay(sections: &[SectionEntry], at: u64) -> Result<(), FormatError> {
    let length = |kind| sections.iter().find(|section| section.kind == kind).map(|section| section.length);
    match (length(SectionKind::Disk), length(SectionKind::Overlay)) {
        (Some(disk), Some(overlay)) if disk != overlay => {
            let what = format!("{overlay} bytes over a disk of {disk}");
            Err(FormatError::new(Code::SectionMismatch, Part::Section(SectionKind::Overlay), at, what))
        }
        _ => Ok(()),
    }
}
