//! The bytes on disk: decoded, encoded, checked field by field. No input or output.
//!
//! Numbers are little-endian. Offsets in these structures are relative to the header; `base`, where a
//! function takes it, is the header's place in the file and serves error messages alone.

pub(crate) mod footer;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod table;

use crate::{Code, Digest, FormatError, Part};

/// Reads a 16-bit number; `raw` is long enough by type or by a check of its caller.
fn le16(raw: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(raw, at))
}

fn le32(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(raw, at))
}

fn le64(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(raw, at))
}

fn digest(raw: &[u8], at: usize) -> Digest {
    Digest(array(raw, at))
}

fn array<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&raw[at..at + N]);
    out
}

fn put<const N: usize>(raw: &mut [u8], at: usize, bytes: [u8; N]) {
    raw[at..at + N].copy_from_slice(&bytes);
}

/// Refuses a reserved field that is not zero. `at` is the field's absolute place.
fn reserved(raw: &[u8], part: Part, at: u64) -> Result<(), FormatError> {
    match raw.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(i) => {
            Err(FormatError::new(Code::ReservedNotZero, part, at + i as u64, "a reserved byte is not zero"))
        }
    }
}
