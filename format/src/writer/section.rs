//! Writing one section.

use super::chunker::{Chunker, Cut, CutSink};
use super::options::{Compression, SectionOptions};
use super::{Done, Writer};
use crate::limits::{MAX_CHUNKS, MAX_LENGTH};
use crate::spec::header::Extent;
use crate::spec::index::Entry;
use crate::spec::table::{self, CONTENT_LEN, Class, Encoding};
use crate::{BLOCK, Code, Digest, FormatError, Part, SectionKind};

/// Takes a section's bytes from the first to the last. Call `finish` at the end: a container with a
/// section that was not finished cannot be finished either.
#[derive(Debug)]
pub struct SectionWriter<'a> {
    chunker: Chunker,
    store: Store<'a>,
}

/// Stores chunks as they are cut.
#[derive(Debug)]
struct Store<'a> {
    writer: &'a mut Writer,
    kind: SectionKind,
    options: SectionOptions,
    /// Place of the first stored byte.
    start: Option<u64>,
    content: Vec<u8>,
    placement: Vec<u8>,
    /// Reused for every compressed chunk.
    frame: Vec<u8>,
    parent: bool,
}

impl<'a> SectionWriter<'a> {
    pub(super) fn new(writer: &'a mut Writer, kind: SectionKind, options: SectionOptions) -> Self {
        let chunker = Chunker::new(&options);
        let (content, placement, frame) = (Vec::new(), Vec::new(), Vec::new());
        let store = Store { writer, kind, options, start: None, content, placement, frame, parent: false };
        Self { chunker, store }
    }

    /// The next bytes. Zero blocks among them are left out where they form long runs.
    ///
    /// # Errors
    /// `Io`; `LimitExceeded`; `Usage` after a parent run that ended within a block.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.check_room(bytes.len() as u64)?;
        self.chunker.data(bytes, &mut self.store)
    }

    /// The next `len` bytes are zero. The same as that many zero bytes given to `data`, but cheap.
    ///
    /// # Errors
    /// As `data`.
    pub fn zeros(&mut self, len: u64) -> Result<(), FormatError> {
        self.check_room(len)?;
        self.chunker.zeros(len, &mut self.store)
    }

    /// The next `len` bytes are as in the parent: in an overlay, as in the disk.
    ///
    /// # Errors
    /// As `data`; `Usage` if the position is within a block. After a `len` that is no multiple of 4096
    /// nothing may follow.
    pub fn parent(&mut self, len: u64) -> Result<(), FormatError> {
        self.check_room(len)?;
        if self.chunker.within_block() {
            return Err(FormatError::usage(self.store.part(), "a parent run starts at a multiple of 4096"));
        }
        self.store.parent = true;
        self.chunker.parent(len, &mut self.store)
    }

    /// Bytes given so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.chunker.position()
    }

    /// Ends the section; its length is what was given.
    ///
    /// # Errors
    /// `Io`; `LimitExceeded`.
    pub fn finish(mut self) -> Result<(), FormatError> {
        self.chunker.finish(&mut self.store)?;
        self.store.finish(self.chunker.position());
        Ok(())
    }

    fn check_room(&self, len: u64) -> Result<(), FormatError> {
        if self.chunker.ended() && len > 0 {
            let what = "nothing may follow a parent run that ends within a block";
            return Err(FormatError::usage(self.store.part(), what));
        }
        if len > MAX_LENGTH - self.chunker.position() {
            return Err(self.store.limit("a section has at most 2^62 bytes"));
        }
        Ok(())
    }
}

impl CutSink for Store<'_> {
    fn cut(&mut self, cut: Cut<'_>) -> Result<(), FormatError> {
        if self.content.len() as u64 >= MAX_CHUNKS * CONTENT_LEN {
            return Err(self.limit("a section has at most 2^22 chunks; use longer ones"));
        }
        let record = match cut {
            Cut::Zeros(len) => table::encode_content(Class::Zero, len, Digest::NONE),
            Cut::Parent(len) => table::encode_content(Class::Parent, len, Digest::NONE),
            Cut::Data(bytes) => {
                self.store(bytes)?;
                table::encode_content(Class::Data, bytes.len() as u64, Digest::of(bytes))
            }
        };
        self.content.extend_from_slice(&record);
        Ok(())
    }
}

impl Store<'_> {
    fn part(&self) -> Part {
        Part::Section(self.kind)
    }

    fn limit(&self, what: &str) -> FormatError {
        FormatError::new(Code::LimitExceeded, self.part(), None, what)
    }

    fn store(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let compressed = self.compress(bytes)?;
        let (encoding, stored, align) = if compressed {
            (Encoding::Zstd, self.frame.len(), 1)
        } else {
            (Encoding::Raw, bytes.len(), BLOCK)
        };
        let align = if self.start.is_none() { self.options.alignment.into() } else { align };
        let offset = self.writer.at.next_multiple_of(align);
        self.writer.write_at(if compressed { &self.frame } else { bytes }, offset, self.part())?;
        self.writer.at = offset + stored as u64;
        self.writer.zstd |= compressed;
        self.start.get_or_insert(offset);
        self.placement.extend_from_slice(&table::encode_placement(encoding, stored as u32));
        Ok(())
    }

    /// Compresses into `frame`; whether that is worth while.
    fn compress(&mut self, bytes: &[u8]) -> Result<bool, FormatError> {
        let Compression::Zstd(level) = self.options.compression else { return Ok(false) };
        self.frame.resize(zstd::zstd_safe::compress_bound(bytes.len()), 0);
        let len = zstd::bulk::compress_to_buffer(bytes, &mut self.frame, level)
            .map_err(|source| FormatError::io(self.part(), None, "zstd failed", source))?;
        self.frame.truncate(len);
        Ok(len <= bytes.len() - bytes.len().div_ceil(16))
    }

    fn finish(self, length: u64) {
        let data = match self.start {
            Some(offset) => Extent { offset, length: self.writer.at.next_multiple_of(BLOCK) - offset },
            None => Extent::default(),
        };
        let entry = Entry {
            kind: self.kind,
            alignment_log2: self.options.alignment.trailing_zeros() as u8,
            length,
            data,
            content: Extent { offset: 0, length: self.content.len() as u64 },
            placement: Extent { offset: 0, length: self.placement.len() as u64 },
            content_digest: Digest::of(&self.content),
            placement_digest: Digest::of(&self.placement),
        };
        let Self { writer, options, content, placement, parent, .. } = self;
        writer.close(Done { entry, name: options.name, content, placement, parent });
    }
}
