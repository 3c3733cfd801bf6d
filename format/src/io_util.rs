//! Reads that know which part of the file they are for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Code, FormatError, Part};

/// Fills `buf` from byte `at` of the file.
///
/// # Errors
/// `Truncated` when the file ends first, `Io` otherwise.
pub(crate) fn read_exact(file: &File, buf: &mut [u8], at: u64, part: Part) -> Result<(), FormatError> {
    file.read_exact_at(buf, at).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            FormatError::new(Code::Truncated, part, at, format!("the file ends within {} bytes", buf.len()))
        }
        _ => FormatError::io(part, at, "reading failed", source),
    })
}

/// Reads `len` bytes, which the caller has bounded, from byte `at` of the file.
///
/// # Errors
/// As `read_exact`.
pub(crate) fn read_vec(file: &File, at: u64, len: u64, part: Part) -> Result<Vec<u8>, FormatError> {
    let mut buf = vec![0; len as usize];
    read_exact(file, &mut buf, at, part)?;
    Ok(buf)
}
