//! The two tables of a section (FORMAT.md, "Chunks").
//!
//! The content table says what the section is: class, length and digest of each chunk; its SHA-256 is
//! the section's digest. The placement table says how the data chunks are stored. Keeping them apart
//! is what makes a section's digest, and so the artifact's, independent of where the data lies and
//! whether it is compressed.

use super::header::Extent;
use super::index::Entry;
use super::{digest, le32, le64, put, reserved};
use crate::limits::MAX_DATA_CHUNK;
use crate::section::{Chunk, ChunkData};
use crate::{BLOCK, Code, Digest, FormatError, Part};

/// Bytes in a content record.
pub(crate) const CONTENT_LEN: u64 = 48;
/// Bytes in a placement record.
pub(crate) const PLACEMENT_LEN: u64 = 8;

const CLASS_ZERO: u32 = 0;
const CLASS_DATA: u32 = 1;
const CLASS_PARENT: u32 = 2;

const ENCODING_RAW: u32 = 0;
const ENCODING_ZSTD: u32 = 1;

/// How a data chunk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    Raw,
    Zstd,
}

/// What a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Zero,
    Data,
    Parent,
}

/// Encodes a content record.
pub(crate) fn encode_content(class: Class, length: u64, content: Digest) -> [u8; CONTENT_LEN as usize] {
    let class = match class {
        Class::Zero => CLASS_ZERO,
        Class::Data => CLASS_DATA,
        Class::Parent => CLASS_PARENT,
    };
    let mut raw = [0; CONTENT_LEN as usize];
    put(&mut raw, 0, class.to_le_bytes());
    put(&mut raw, 8, length.to_le_bytes());
    put(&mut raw, 16, content.0);
    raw
}

/// Encodes a placement record; `stored` is at most `MAX_DATA_CHUNK`.
pub(crate) fn encode_placement(encoding: Encoding, stored: u32) -> [u8; PLACEMENT_LEN as usize] {
    let encoding = match encoding {
        Encoding::Raw => ENCODING_RAW,
        Encoding::Zstd => ENCODING_ZSTD,
    };
    let mut raw = [0; PLACEMENT_LEN as usize];
    put(&mut raw, 0, encoding.to_le_bytes());
    put(&mut raw, 4, stored.to_le_bytes());
    raw
}

/// What a section's tables are checked against.
pub(crate) struct Context<'a> {
    /// The section's index entry.
    pub(crate) entry: &'a Entry,
    /// The header's place in the file.
    pub(crate) base: u64,
    /// The header announces zstd.
    pub(crate) zstd: bool,
    /// Parent chunks have a meaning in this section.
    pub(crate) parent: bool,
}

/// Decodes both tables, whose lengths are those of the entry. The chunks are sorted, gapless, and
/// cover the section's length exactly; the stored ones fill its extent exactly.
///
/// # Errors
/// The section, the record's offset and what is wrong there.
pub(crate) fn decode(
    content: &[u8],
    placement: &[u8],
    context: Context<'_>,
) -> Result<Vec<Chunk>, FormatError> {
    let count = context.entry.chunks() as usize;
    let mut decoder = Decoder::new(context, placement);
    let mut chunks = Vec::with_capacity(count);
    for (i, raw) in content.chunks_exact(CONTENT_LEN as usize).enumerate() {
        chunks.push(decoder.chunk(i, raw)?);
    }
    decoder.end()?;
    Ok(chunks)
}

struct Decoder<'a> {
    context: Context<'a>,
    placement: std::slice::ChunksExact<'a, u8>,
    /// Stored chunks met so far.
    stored: u64,
    /// Logical position.
    at: u64,
    /// Position in the container after the last stored chunk.
    end: u64,
}

impl<'a> Decoder<'a> {
    fn new(context: Context<'a>, placement: &'a [u8]) -> Self {
        let end = context.entry.data.offset;
        let placement = placement.chunks_exact(PLACEMENT_LEN as usize);
        Self { context, placement, stored: 0, at: 0, end }
    }

    fn part(&self) -> Part {
        Part::Section(self.context.entry.kind)
    }

    /// The absolute place of record `i` of `table`, `record` bytes each.
    fn place(&self, table: Extent, i: u64, record: u64) -> u64 {
        self.context.base.saturating_add(table.offset).saturating_add(i * record)
    }

    fn chunk(&mut self, i: usize, raw: &[u8]) -> Result<Chunk, FormatError> {
        let here = self.place(self.context.entry.content, i as u64, CONTENT_LEN);
        let fail = |part, code, field, what: String| Err(FormatError::new(code, part, here + field, what));
        let part = self.part();
        reserved(&raw[4..8], part, here + 4)?;
        let (class, len, name) = (le32(raw, 0), le64(raw, 8), digest(raw, 16));
        self.check_length(i, len, here + 8)?;
        if class != CLASS_DATA && name != Digest::NONE {
            return fail(part, Code::ReservedNotZero, 16, format!("chunk {i} has no data but a digest"));
        }
        let data = match class {
            CLASS_ZERO => ChunkData::Zero,
            CLASS_PARENT if self.context.parent => ChunkData::Parent,
            CLASS_PARENT => {
                return fail(part, Code::ParentNotAllowed, 0, format!("chunk {i} refers to a parent"));
            }
            CLASS_DATA if len > MAX_DATA_CHUNK => {
                return fail(part, Code::LimitExceeded, 8, format!("data chunk {i} claims {len} bytes"));
            }
            CLASS_DATA => self.data(i, len)?,
            other => return fail(part, Code::ChunkKind, 0, format!("chunk {i} has unknown class {other}")),
        };
        let at = self.at;
        self.at += len;
        Ok(Chunk { at, len, data, digest: name })
    }

    fn check_length(&self, i: usize, len: u64, here: u64) -> Result<(), FormatError> {
        let rest = self.context.entry.length - self.at;
        let what = if len == 0 {
            format!("chunk {i} is empty")
        } else if len > rest {
            format!("chunk {i} has {len} bytes, but {rest} remain of the section")
        } else if len < rest && !len.is_multiple_of(BLOCK) {
            format!("chunk {i} has {len} bytes, no multiple of 4096, and is not the last")
        } else {
            return Ok(());
        };
        Err(FormatError::new(Code::ChunkLength, self.part(), here, what))
    }

    /// The next placement record belongs to a data chunk of `len` bytes.
    fn data(&mut self, i: usize, len: u64) -> Result<ChunkData, FormatError> {
        let here = self.place(self.context.entry.placement, self.stored, PLACEMENT_LEN);
        let fail = |part, code, what: String| Err(FormatError::new(code, part, here, what));
        let Some(raw) = self.placement.next() else {
            let what = format!("no placement for data chunk {i}");
            return fail(self.part(), Code::ChunkPlacement, what);
        };
        self.stored += 1;
        let stored = u64::from(le32(raw, 4));
        match le32(raw, 0) {
            ENCODING_RAW if stored == len => Ok(ChunkData::Raw { offset: self.take(BLOCK, stored) }),
            ENCODING_ZSTD if !self.context.zstd => {
                let what = format!("chunk {i} is compressed, but the header does not announce zstd");
                fail(self.part(), Code::FeatureMissing, what)
            }
            ENCODING_ZSTD if stored > 0 && stored < len => {
                Ok(ChunkData::Zstd { offset: self.take(1, stored), stored })
            }
            ENCODING_RAW | ENCODING_ZSTD => {
                let what = format!("chunk {i} of {len} bytes cannot be stored in {stored}");
                fail(self.part(), Code::ChunkLength, what)
            }
            other => fail(self.part(), Code::ChunkKind, format!("chunk {i} has unknown encoding {other}")),
        }
    }

    /// Takes `stored` bytes of the extent from the next multiple of `align`; gives the absolute place.
    fn take(&mut self, align: u64, stored: u64) -> u64 {
        let start = self.end.next_multiple_of(align);
        self.end = start + stored;
        self.context.base + start
    }

    fn end(&mut self) -> Result<(), FormatError> {
        let entry = self.context.entry;
        let fail = |code, table, what: String| {
            Err(FormatError::new(code, Part::Section(entry.kind), self.context.base + table, what))
        };
        if self.at != entry.length {
            let what = format!("the chunks have {} bytes, the section {}", self.at, entry.length);
            return fail(Code::ChunkLength, entry.content.offset, what);
        }
        if self.placement.next().is_some() {
            let what = "more placements than data chunks".to_owned();
            return fail(Code::ChunkPlacement, entry.placement.offset, what);
        }
        let (used, given) = (self.end.next_multiple_of(BLOCK), entry.data.end());
        if used != given {
            let what = format!("the stored chunks end at {used}, the section's data at {given}");
            return fail(Code::ChunkPlacement, entry.placement.offset, what);
        }
        Ok(())
    }
}
