//! The `.smolmachine` container format: reader, writer, verifier. `FORMAT.md` is normative.
//!
//! Bottom up: [`Digest`] and [`FormatError`]; `spec` (the bytes on disk, decoded and encoded, nothing
//! else); `canonical` and [`manifest`] (the JSON); [`Artifact`] and [`Section`] (reading);
//! [`verify()`] (every byte); [`Writer`] (writing).
//!
//! Contract: a file is hostile until checked. [`Artifact::open`] checks the header, the footer, the
//! section index and the manifest and that no two parts of the file overlap; a section's tables are
//! checked when [`Artifact::section`] loads them; the data itself is checked by [`verify()`] and, for
//! compressed chunks, whenever they are decoded. Memory use is bounded by the limits in [`limits`],
//! whatever the file claims.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod artifact;
mod canonical;
mod digest;
mod error;
mod frame;
pub mod fuzz;
mod io_util;
mod kind;
mod layout;
pub mod limits;
pub mod manifest;
mod open;
mod section;
mod spec;
mod text;
mod verify;
mod writer;

pub use artifact::{Artifact, SectionEntry};
pub use digest::{Digest, ParseDigestError};
pub use error::{Class, Code, FormatError, Part};
pub use kind::SectionKind;
pub use manifest::Manifest;
pub use open::{folder_of, kind_name, open_file, read_text_file};
pub use section::{Chunk, ChunkData, Section};
pub use text::{printable, printable_json, printable_lines};
pub use verify::{Report, verify, verify_artifact};
pub use writer::{Chunking, Compression, NewFile, SectionOptions, SectionWriter, Writer};

/// Bytes in a block: the unit of chunk boundaries and of mapping.
pub const BLOCK: u64 = 4096;
