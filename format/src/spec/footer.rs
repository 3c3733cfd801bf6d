//! The footer: the last 64 bytes of a container and of its file (FORMAT.md, "Footer").
//!
//! It leads from the end of a file to the header, so that a program can be put before a container.

use super::{digest, le64, put, reserved};
use crate::{Code, Digest, FormatError, Part};

/// Bytes in a footer.
pub(crate) const FOOTER_LEN: u64 = 64;
/// The footer's first bytes.
pub(crate) const MAGIC: [u8; 8] = *b"\x89SMOLEND";

/// The decoded footer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    /// As in the header: the container's length, footer included.
    pub(crate) length: u64,
    /// As at the end of the header.
    pub(crate) header_checksum: Digest,
}

impl Footer {
    /// Decodes a footer found at byte `at` of the file; `None` if these bytes are none.
    ///
    /// # Errors
    /// Reserved bytes that are not zero.
    pub(crate) fn decode(raw: &[u8; FOOTER_LEN as usize], at: u64) -> Result<Option<Self>, FormatError> {
        if raw[..8] != MAGIC {
            return Ok(None);
        }
        reserved(&raw[48..], Part::Footer, at + 48)?;
        Ok(Some(Self { length: le64(raw, 8), header_checksum: digest(raw, 16) }))
    }

    /// Encodes the footer.
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN as usize] {
        let mut raw = [0; FOOTER_LEN as usize];
        put(&mut raw, 0, MAGIC);
        put(&mut raw, 8, self.length.to_le_bytes());
        put(&mut raw, 16, self.header_checksum.0);
        raw
    }

    /// Refuses a footer that does not belong to the header found.
    pub(crate) fn check(&self, length: u64, checksum: Digest, at: u64) -> Result<(), FormatError> {
        if self.length == length && self.header_checksum == checksum {
            return Ok(());
        }
        let what = "the footer's length or checksum is not the header's";
        Err(FormatError::new(Code::FooterMismatch, Part::Footer, at, what))
    }
}
