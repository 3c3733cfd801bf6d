//! The header: the first 4096 bytes of a container (FORMAT.md, "Header").

use super::{digest, le16, le64, put, reserved};
use crate::limits::MAX_LENGTH;
use crate::{Code, Digest, FormatError, Part};

/// Bytes in a header.
pub(crate) const HEADER_LEN: u64 = 4096;
/// As PNG's: a byte that is no text, the name, and line ends that a text-mode copy would change.
pub(crate) const MAGIC: [u8; 8] = *b"\x89SMOL\r\n\x1a";
/// The major version written and read.
pub(crate) const MAJOR: u16 = 1;
/// The minor version written.
pub(crate) const MINOR: u16 = 0;
/// Incompatible feature: some chunks are zstd frames.
pub(crate) const INCOMPAT_ZSTD: u64 = 1;

const CHECKSUM_AT: usize = 4064;
const RESERVED_AT: usize = 144;

/// A place in the container, relative to the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Extent {
    /// First byte.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
}

impl Extent {
    /// One past the last byte. Lengths and offsets are under 2^63 once checked; saturates before.
    pub(crate) fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The decoded header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) minor: u16,
    pub(crate) incompat: u64,
    pub(crate) ro_compat: u64,
    pub(crate) compat: u64,
    /// From the header's first byte to the footer's last.
    pub(crate) length: u64,
    pub(crate) manifest: Extent,
    pub(crate) manifest_digest: Digest,
    pub(crate) index: Extent,
    pub(crate) index_digest: Digest,
}

impl Header {
    /// Decodes a header that is known to begin with the magic; also gives its checksum.
    ///
    /// # Errors
    /// A wrong checksum first, so that damage is not taken for a foreign version; then the version,
    /// the features, reserved bytes and the length.
    pub(crate) fn decode(raw: &[u8; HEADER_LEN as usize], base: u64) -> Result<(Self, Digest), FormatError> {
        let bad = |code, at: u64, what: String| FormatError::new(code, Part::Header, base + at, what);
        let checksum = Digest::of(&raw[..CHECKSUM_AT]);
        if checksum != digest(raw, CHECKSUM_AT) {
            let what = "the checksum does not match; the file is damaged, get it again";
            return Err(bad(Code::HeaderChecksum, CHECKSUM_AT as u64, what.into()));
        }
        let major = le16(raw, 8);
        if major != MAJOR {
            let what = format!("format version {major} is not supported, only {MAJOR}; use a newer smolpack");
            return Err(bad(Code::UnsupportedVersion, 8, what));
        }
        let header = Self::fields(raw);
        header.check_features(base)?;
        // A later minor version may have given meaning to these.
        if header.minor == MINOR {
            reserved(&raw[RESERVED_AT..CHECKSUM_AT], Part::Header, base + RESERVED_AT as u64)?;
        }
        if header.length > MAX_LENGTH {
            let what = format!("a length of {} bytes is over 2^62", header.length);
            return Err(bad(Code::LimitExceeded, 40, what));
        }
        Ok((header, checksum))
    }

    fn fields(raw: &[u8; HEADER_LEN as usize]) -> Self {
        Self {
            minor: le16(raw, 10),
            incompat: le64(raw, 16),
            ro_compat: le64(raw, 24),
            compat: le64(raw, 32),
            length: le64(raw, 40),
            manifest: Extent { offset: le64(raw, 48), length: le64(raw, 56) },
            manifest_digest: digest(raw, 64),
            index: Extent { offset: le64(raw, 96), length: le64(raw, 104) },
            index_digest: digest(raw, 112),
        }
    }

    fn check_features(&self, base: u64) -> Result<(), FormatError> {
        let unknown = self.incompat & !INCOMPAT_ZSTD;
        if unknown != 0 {
            let what = format!("unknown incompatible features {unknown:#x}; use a newer smolpack");
            return Err(FormatError::new(Code::UnsupportedFeature, Part::Header, base + 16, what));
        }
        Ok(())
    }

    /// Encodes the header with its checksum; also gives the checksum.
    pub(crate) fn encode(&self) -> ([u8; HEADER_LEN as usize], Digest) {
        let mut raw = [0; HEADER_LEN as usize];
        put(&mut raw, 0, MAGIC);
        put(&mut raw, 8, MAJOR.to_le_bytes());
        put(&mut raw, 10, self.minor.to_le_bytes());
        let numbers = [self.incompat, self.ro_compat, self.compat, self.length];
        let places = [self.manifest.offset, self.manifest.length];
        for (i, number) in numbers.into_iter().chain(places).enumerate() {
            put(&mut raw, 16 + 8 * i, number.to_le_bytes());
        }
        put(&mut raw, 64, self.manifest_digest.0);
        put(&mut raw, 96, self.index.offset.to_le_bytes());
        put(&mut raw, 104, self.index.length.to_le_bytes());
        put(&mut raw, 112, self.index_digest.0);
        let checksum = Digest::of(&raw[..CHECKSUM_AT]);
        put(&mut raw, CHECKSUM_AT, checksum.0);
        (raw, checksum)
    }
}
