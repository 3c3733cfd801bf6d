//! The section index: one entry of 128 bytes a section (FORMAT.md, "Section index").

use super::header::Extent;
use super::table::{CONTENT_LEN, PLACEMENT_LEN};
use super::{digest, le32, le64, put, reserved};
use crate::limits::{MAX_ALIGNMENT_LOG2, MAX_CHUNKS, MAX_LENGTH, MIN_ALIGNMENT_LOG2};
use crate::{BLOCK, Code, Digest, FormatError, Part, SectionKind};

/// Bytes in an index entry.
pub(crate) const ENTRY_LEN: u64 = 128;

/// A decoded index entry. Holding one from `decode` means that every field is within its limit and
/// the fields agree with each other; places are not yet compared with the rest of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: SectionKind,
    /// log2 of the alignment of the data extent.
    pub(crate) alignment_log2: u8,
    /// Logical bytes.
    pub(crate) length: u64,
    /// Where the stored data lies.
    pub(crate) data: Extent,
    /// Where the content table lies.
    pub(crate) content: Extent,
    /// Where the placement table lies.
    pub(crate) placement: Extent,
    /// SHA-256 of the content table: the section's digest.
    pub(crate) content_digest: Digest,
    /// SHA-256 of the placement table.
    pub(crate) placement_digest: Digest,
}

impl Entry {
    /// Decodes the entry found at byte `at` of the file.
    ///
    /// # Errors
    /// Says the section, the field's offset and what is wrong there.
    pub(crate) fn decode(raw: &[u8], at: u64) -> Result<Self, FormatError> {
        let kind = SectionKind::from_code(le32(raw, 0));
        let check = Check { part: Part::Section(kind), at };
        reserved(&raw[5..8], check.part, at + 5)?;
        let (chunks, stored) = (le64(raw, 40), le64(raw, 56));
        check.counts(chunks, stored)?;
        let entry = Self {
            kind,
            alignment_log2: raw[4],
            length: le64(raw, 8),
            data: Extent { offset: le64(raw, 16), length: le64(raw, 24) },
            content: Extent { offset: le64(raw, 32), length: chunks * CONTENT_LEN },
            placement: Extent { offset: le64(raw, 48), length: stored * PLACEMENT_LEN },
            content_digest: digest(raw, 64),
            placement_digest: digest(raw, 96),
        };
        check.alignment(&entry)?;
        check.lengths(&entry)?;
        Ok(entry)
    }

    /// Encodes the entry.
    pub(crate) fn encode(&self) -> [u8; ENTRY_LEN as usize] {
        let mut raw = [0; ENTRY_LEN as usize];
        put(&mut raw, 0, self.kind.code().to_le_bytes());
        raw[4] = self.alignment_log2;
        let numbers = [
            self.length,
            self.data.offset,
            self.data.length,
            self.content.offset,
            self.chunks(),
            self.placement.offset,
            self.stored_chunks(),
        ];
        for (i, number) in numbers.into_iter().enumerate() {
            put(&mut raw, 8 + 8 * i, number.to_le_bytes());
        }
        put(&mut raw, 64, self.content_digest.0);
        put(&mut raw, 96, self.placement_digest.0);
        raw
    }

    /// Chunks in the section.
    pub(crate) fn chunks(&self) -> u64 {
        self.content.length / CONTENT_LEN
    }

    /// Chunks with stored data.
    pub(crate) fn stored_chunks(&self) -> u64 {
        self.placement.length / PLACEMENT_LEN
    }
}

/// The checks of one entry; `at` is its place in the file.
struct Check {
    part: Part,
    at: u64,
}

impl Check {
    fn fail<T>(&self, code: Code, field: u64, what: impl Into<String>) -> Result<T, FormatError> {
        Err(FormatError::new(code, self.part, self.at + field, what))
    }

    fn counts(&self, chunks: u64, stored: u64) -> Result<(), FormatError> {
        if chunks > MAX_CHUNKS {
            return self.fail(Code::LimitExceeded, 40, format!("{chunks} chunks; at most {MAX_CHUNKS}"));
        }
        if stored > chunks {
            return self.fail(Code::IndexEntry, 56, format!("{stored} of {chunks} chunks have stored data"));
        }
        Ok(())
    }

    fn alignment(&self, entry: &Entry) -> Result<(), FormatError> {
        if !(MIN_ALIGNMENT_LOG2..=MAX_ALIGNMENT_LOG2).contains(&entry.alignment_log2) {
            let what = format!("alignment 2^{}; 2^12 to 2^21 are allowed", entry.alignment_log2);
            return self.fail(Code::LimitExceeded, 4, what);
        }
        if !entry.data.offset.is_multiple_of(1 << entry.alignment_log2) {
            return self.fail(Code::Misaligned, 16, "the data is not aligned as the entry says");
        }
        if !entry.data.length.is_multiple_of(BLOCK) {
            return self.fail(Code::Misaligned, 24, "the data's length is no multiple of 4096");
        }
        if !entry.content.offset.is_multiple_of(8) {
            return self.fail(Code::Misaligned, 32, "the content table's place is no multiple of 8");
        }
        if !entry.placement.offset.is_multiple_of(8) {
            return self.fail(Code::Misaligned, 48, "the placement table's place is no multiple of 8");
        }
        Ok(())
    }

    fn lengths(&self, entry: &Entry) -> Result<(), FormatError> {
        if entry.length > MAX_LENGTH {
            return self.fail(
                Code::LimitExceeded,
                8,
                format!("{} logical bytes; at most 2^62", entry.length),
            );
        }
        if (entry.length == 0) != (entry.content.length == 0) {
            return self.fail(Code::IndexEntry, 8, "a section has chunks if, and only if, it has a length");
        }
        if (entry.data.length == 0) != (entry.placement.length == 0) {
            return self.fail(Code::IndexEntry, 24, "a section has data if, and only if, chunks are stored");
        }
        for (field, extent) in [(16, entry.data), (32, entry.content), (48, entry.placement)] {
            if extent.length == 0 && extent.offset != 0 {
                return self.fail(Code::IndexEntry, field, "what is empty has its place at 0");
            }
        }
        Ok(())
    }
}
