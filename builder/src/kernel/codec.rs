//! The compressions that kernels, their modules and Debian packages come in, told apart by their first
//! bytes and never trusted about their size.
//!
//! The kernel's own LZ4 is the *legacy* frame (a magic number, then blocks of at most 8 MiB each behind
//! its length) which no crate reads as a stream, so that one is read here.

use std::fmt;
use std::io::{self, Read};

/// What a legacy LZ4 frame begins with, and may repeat between blocks.
const LZ4_LEGACY_MAGIC: u32 = 0x184C_2102;
/// Each legacy block holds so much, the last one less.
const LZ4_BLOCK: usize = 8 << 20;
/// LZ4's worst case for a block that does not compress.
const LZ4_BLOCK_BOUND: usize = LZ4_BLOCK + LZ4_BLOCK / 255 + 16;
/// An xz dictionary past this (in KiB) is a way to use up memory: the kernel's is 32 MiB, dpkg's 64.
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// A compression this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Gzip,
    Xz,
    Lz4Legacy,
    Zstd,
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lz4Legacy => "LZ4",
            Self::Zstd => "zstd",
        })
    }
}

/// Why data did not decompress.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("damaged {0} data")]
    Damaged(Codec, #[source] io::Error),
    #[error("{0} data that inflates to more than {1} bytes")]
    TooLarge(Codec, u64),
}

impl Codec {
    /// The compression of data that begins with `head`; `None` for anything else.
    pub(crate) fn sniff(head: &[u8]) -> Option<Self> {
        match head {
            [0x1F, 0x8B, 0x08, ..] => Some(Self::Gzip),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x02, 0x21, 0x4C, 0x18, ..] => Some(Self::Lz4Legacy),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// A reader of the plain data of the first stream or frame in `input`.
    pub(crate) fn reader<'a>(self, input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::GzDecoder::new(input)),
            Self::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(input, false, XZ_MEMORY_KIB)),
            Self::Lz4Legacy => Box::new(Lz4Legacy::new(input)?),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::new(input)?.single_frame()),
        })
    }

    /// The plain data of the first stream or frame in `data`, if it is at most `limit` bytes.
    pub(crate) fn decompress(self, data: &[u8], limit: u64) -> Result<Vec<u8>, CodecError> {
        let mut plain = Vec::new();
        self.reader(data)
            .and_then(|reader| reader.take(limit.saturating_add(1)).read_to_end(&mut plain))
            .map_err(|e| CodecError::Damaged(self, e))?;
        if plain.len() as u64 > limit {
            return Err(CodecError::TooLarge(self, limit));
        }
        Ok(plain)
    }
}

/// The name of a compression that kernels have but smolpack does not read.
pub(crate) fn unsupported(head: &[u8]) -> Option<&'static str> {
    match head {
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        [0x5D, 0, 0, ..] => Some("lzma"),
        [0x89, b'L', b'Z', b'O', ..] => Some("lzo"),
        [0x04, 0x22, 0x4D, 0x18, ..] => Some("LZ4 (current frame)"),
        _ => None,
    }
}

/// Reads a legacy LZ4 frame block by block.
struct Lz4Legacy<R> {
    input: R,
    block: Vec<u8>,
    plain: Vec<u8>,
    /// How much of the first `len` bytes of `plain` was handed out.
    pos: usize,
    len: usize,
}

impl<R: Read> Lz4Legacy<R> {
    fn new(mut input: R) -> io::Result<Self> {
        let mut magic = [0; 4];
        input.read_exact(&mut magic)?;
        if u32::from_le_bytes(magic) != LZ4_LEGACY_MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no legacy LZ4 magic number"));
        }
        Ok(Self { input, block: Vec::new(), plain: Vec::new(), pos: 0, len: 0 })
    }

    /// The length of the next block; `None` at the end of the frame.
    fn next_length(&mut self) -> io::Result<Option<usize>> {
        loop {
            let mut raw = [0; 4];
            match read_up_to(&mut self.input, &mut raw)? {
                0 => return Ok(None),
                4 => {}
                _ => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut inside a block's length")),
            }
            match u32::from_le_bytes(raw) {
                0 => return Ok(None),
                LZ4_LEGACY_MAGIC => {}
                len if len as usize <= LZ4_BLOCK_BOUND => return Ok(Some(len as usize)),
                len => {
                    let why = format!("a block of {len} bytes, more than the frame allows");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
            }
        }
    }

    /// Decodes the next block into `plain`; false at the end of the frame.
    fn fill(&mut self) -> io::Result<bool> {
        let Some(len) = self.next_length()? else { return Ok(false) };
        self.block.resize(len, 0);
        self.input.read_exact(&mut self.block)?;
        self.plain.resize(LZ4_BLOCK, 0);
        self.len = lz4_flex::block::decompress_into(&self.block, &mut self.plain)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.pos = 0;
        Ok(true)
    }
}

impl<R: Read> Read for Lz4Legacy<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.pos == self.len {
            if !self.fill()? {
                return Ok(0);
            }
        }
        let n = buf.len().min(self.len - self.pos);
        buf[..n].copy_from_slice(&self.plain[self.pos..self.pos + n]);
        self.pos += n;
        Ok(n)
    }
}

/// Fills `buf` as far as the input goes.
pub(crate) fn read_up_to(input: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match input.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legacy_frame(plain: &[u8]) -> Vec<u8> {
        let mut out = LZ4_LEGACY_MAGIC.to_le_bytes().to_vec();
        for block in plain.chunks(LZ4_BLOCK) {
            let packed = lz4_flex::block::compress(block);
            out.extend_from_slice(&(packed.len() as u32).to_le_bytes());
            out.extend_from_slice(&packed);
        }
        out
    }

    #[test]
    fn lz4_legacy_reads_several_blocks() {
        let plain: Vec<u8> = (0..LZ4_BLOCK + 5000).map(|i| (i / 7) as u8).collect();
        let frame = legacy_frame(&plain);
        assert_eq!(Codec::sniff(&frame), Some(Codec::Lz4Legacy));
        assert!(Codec::Lz4Legacy.decompress(&frame, plain.len() as u64).unwrap() == plain);
    }

    #[test]
    fn output_past_the_limit_is_refused() {
        let frame = legacy_frame(&[0; 10_000]);
        let err = Codec::Lz4Legacy.decompress(&frame, 9_999).unwrap_err();
        assert!(matches!(err, CodecError::TooLarge(Codec::Lz4Legacy, 9_999)), "{err}");
    }

    #[test]
    fn a_block_that_claims_too_much_is_refused_before_it_is_read() {
        let mut frame = LZ4_LEGACY_MAGIC.to_le_bytes().to_vec();
        frame.extend_from_slice(&0x7FFF_FFFF_u32.to_le_bytes());
        let err = Codec::Lz4Legacy.decompress(&frame, 1 << 20).unwrap_err();
        assert!(matches!(err, CodecError::Damaged(..)), "{err}");
    }
}
