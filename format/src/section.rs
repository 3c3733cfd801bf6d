//! A section: its chunks, and reads at any place of it.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::io_util::{read_exact, read_vec};
use crate::limits::MAX_DATA_CHUNK;
use crate::spec::index::Entry;
use crate::spec::{header, table};
use crate::{Artifact, Code, Digest, FormatError, Part, SectionKind};

/// A run of a section's bytes that is stored, named and verified as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// First logical byte; a multiple of 4096.
    pub at: u64,
    /// Logical bytes; a multiple of 4096 except at the section's end.
    pub len: u64,
    /// How it is stored.
    pub data: ChunkData,
    /// SHA-256 of its logical bytes; [`Digest::NONE`] for zero and parent chunks.
    pub digest: Digest,
}

impl Chunk {
    /// Where its bytes lie in the file; `None` where it has none there.
    #[must_use]
    pub fn stored(&self) -> Option<Range<u64>> {
        match self.data {
            ChunkData::Raw { offset } => Some(offset..offset + self.len),
            ChunkData::Zstd { offset, stored } => Some(offset..offset + stored),
            ChunkData::Zero | ChunkData::Parent => None,
        }
    }
}

/// How a chunk is stored. Offsets are absolute in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkData {
    /// Not at all: it is zero.
    Zero,
    /// Not here: in an overlay as in the disk, else as in the parent's section of the same kind.
    Parent,
    /// As it is.
    Raw {
        /// First byte; a multiple of 4096. Raw chunks that follow one another logically, with nothing
        /// between them, do so in the file as well.
        offset: u64,
    },
    /// As one zstd frame.
    Zstd {
        /// First byte of the frame.
        offset: u64,
        /// Bytes in the frame.
        stored: u64,
    },
}

/// A section whose tables are verified. Reading needs no lock except around the last decoded chunk.
pub struct Section {
    file: Arc<File>,
    kind: SectionKind,
    length: u64,
    chunks: Vec<Chunk>,
    /// The chunk decoded or verified last, by its position: reads that are smaller than chunks come in runs.
    decoded: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl Section {
    pub(crate) fn load(artifact: &Artifact, entry: &Entry) -> Result<Self, FormatError> {
        let tables = Tables::load(artifact, entry)?;
        let context = table::Context {
            entry,
            base: artifact.base(),
            zstd: artifact.header().incompat & header::INCOMPAT_ZSTD != 0,
            parent: artifact.allows_parent(entry.kind),
        };
        let chunks = table::decode(&tables.content, &tables.placement, context)?;
        let file = Arc::clone(artifact.file());
        Ok(Self { file, kind: entry.kind, length: entry.length, chunks, decoded: Mutex::new(None) })
    }

    /// What it holds.
    #[must_use]
    pub fn kind(&self) -> SectionKind {
        self.kind
    }

    /// Logical bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The chunks, sorted and gapless: each starts where the one before it ends, and they cover the
    /// section exactly.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The position in `chunks` of the one that holds logical byte `at`; `None` beyond the end.
    #[must_use]
    pub fn chunk_index(&self, at: u64) -> Option<usize> {
        (at < self.length).then(|| self.chunks.partition_point(|chunk| chunk.at + chunk.len <= at))
    }

    /// Fills `buf` with the bytes from logical position `at`. Any alignment will do.
    ///
    /// Raw data is not verified (that takes the whole chunk: see [`Section::read_verified`]); compressed data
    /// is.
    ///
    /// # Errors
    /// `Usage` beyond the end; `NeedsParent` on a parent chunk, with `buf` in an unknown state;
    /// `Truncated`, `Io`, `Decompress`, `ChunkDigest`.
    pub fn read_at(&self, buf: &mut [u8], at: u64) -> Result<(), FormatError> {
        self.read(buf, at, false)
    }

    /// As [`Section::read_at`], and every chunk that is read from is verified whole. The last one is kept, so
    /// reading on costs nothing more.
    ///
    /// # Errors
    /// As `read_at`.
    pub fn read_verified(&self, buf: &mut [u8], at: u64) -> Result<(), FormatError> {
        self.read(buf, at, true)
    }

    fn read(&self, buf: &mut [u8], at: u64, verified: bool) -> Result<(), FormatError> {
        if at.checked_add(buf.len() as u64).is_none_or(|end| end > self.length) {
            let what = format!("{} bytes at {at} of a section of {}", buf.len(), self.length);
            return Err(FormatError::usage(self.part(), what));
        }
        let Some(mut i) = self.chunk_index(at) else { return Ok(()) };
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let within = at - self.chunks[i].at;
            let take = (self.chunks[i].len - within).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(take);
            self.read_within(i, within, now, verified)?;
            (at, rest, i) = (at + take as u64, later, i + 1);
        }
        Ok(())
    }

    /// Reads and verifies the chunk at a position of `chunks` into `buf`, which is resized to fit;
    /// zero chunks longer than a data chunk may be are refused, as they would fill memory.
    ///
    /// # Errors
    /// As `read_at`; also for raw data `ChunkDigest`.
    pub fn read_chunk(&self, position: usize, buf: &mut Vec<u8>) -> Result<(), FormatError> {
        let Some(chunk) = self.chunks.get(position).filter(|chunk| chunk.len <= MAX_DATA_CHUNK) else {
            return Err(FormatError::usage(self.part(), format!("chunk {position} cannot be read whole")));
        };
        buf.resize(chunk.len as usize, 0);
        match chunk.data {
            ChunkData::Zero => buf.fill(0),
            ChunkData::Parent => return Err(self.needs_parent(chunk)),
            ChunkData::Raw { offset } => read_exact(&self.file, buf, offset, self.part())?,
            ChunkData::Zstd { offset, stored } => {
                let frame = read_vec(&self.file, offset, stored, self.part())?;
                self.decode(chunk, offset, &frame, buf)?;
            }
        }
        self.check_digest(chunk, buf)
    }

    /// Verifies bytes that are to be stored for the chunk at a position of `chunks`.
    ///
    /// # Errors
    /// `Usage` where the chunk has no stored bytes, or not so many; `Decompress`, `ChunkDigest`.
    pub fn check_stored(&self, position: usize, bytes: &[u8]) -> Result<(), FormatError> {
        let chunk = self.chunks.get(position).filter(|chunk| {
            chunk.stored().is_some_and(|place| place.end - place.start == bytes.len() as u64)
        });
        let Some(chunk) = chunk else {
            let what = format!("chunk {position} is not stored in {} bytes", bytes.len());
            return Err(FormatError::usage(self.part(), what));
        };
        let ChunkData::Zstd { offset, .. } = chunk.data else { return self.check_digest(chunk, bytes) };
        let mut decoded = vec![0; chunk.len as usize];
        self.decode(chunk, offset, bytes, &mut decoded)?;
        self.check_digest(chunk, &decoded)
    }

    fn read_within(&self, i: usize, within: u64, buf: &mut [u8], verified: bool) -> Result<(), FormatError> {
        let chunk = &self.chunks[i];
        match chunk.data {
            ChunkData::Zero => buf.fill(0),
            ChunkData::Parent => return Err(self.needs_parent(chunk)),
            ChunkData::Raw { offset } if !verified => {
                read_exact(&self.file, buf, offset + within, self.part())?;
            }
            ChunkData::Raw { .. } | ChunkData::Zstd { .. } => {
                let start = within as usize;
                buf.copy_from_slice(&self.decoded(i)?[start..start + buf.len()]);
            }
        }
        Ok(())
    }

    /// The decoded, verified bytes of the data chunk `i`.
    fn decoded(&self, i: usize) -> Result<Arc<Vec<u8>>, FormatError> {
        let mut last = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, bytes)) = last.as_ref()
            && *at == i
        {
            return Ok(Arc::clone(bytes));
        }
        let mut bytes = Vec::new();
        self.read_chunk(i, &mut bytes)?;
        let bytes = Arc::new(bytes);
        *last = Some((i, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Decodes one frame. The output is bounded by `buf`, the chunk's length; the frame must be one,
    /// take up all that is stored, and give all of it.
    fn decode(&self, chunk: &Chunk, offset: u64, frame: &[u8], buf: &mut [u8]) -> Result<(), FormatError> {
        let stored = frame.len();
        let bad = |what: String| FormatError::new(Code::Decompress, self.part(), offset, what);
        let size = zstd::zstd_safe::find_frame_compressed_size(frame)
            .map_err(|code| bad(zstd::zstd_safe::get_error_name(code).to_owned()))?;
        if size != stored {
            return Err(bad(format!("the zstd frame has {size} bytes, its chunk stores {stored}")));
        }
        let len = zstd::bulk::decompress_to_buffer(frame, buf)
            .map_err(|e| bad(format!("does not decode to {} bytes: {e}", chunk.len)))?;
        if len as u64 != chunk.len {
            return Err(bad(format!("decodes to {len} bytes, not {}", chunk.len)));
        }
        Ok(())
    }

    fn check_digest(&self, chunk: &Chunk, bytes: &[u8]) -> Result<(), FormatError> {
        let Some(Range { start: offset, .. }) = chunk.stored() else { return Ok(()) };
        if Digest::of(bytes) == chunk.digest {
            return Ok(());
        }
        let what =
            format!("the {} bytes at {} do not have their digest; get the file again", chunk.len, chunk.at);
        Err(FormatError::new(Code::ChunkDigest, self.part(), offset, what))
    }

    fn needs_parent(&self, chunk: &Chunk) -> FormatError {
        let what = format!("the {} bytes at {} are in the parent", chunk.len, chunk.at);
        FormatError::new(Code::NeedsParent, self.part(), None, what)
    }

    fn part(&self) -> Part {
        Part::Section(self.kind)
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Section");
        out.field("kind", &self.kind).field("length", &self.length);
        out.field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

/// A section's tables as they are in the file, compared with their digests.
pub(crate) struct Tables {
    pub(crate) content: Vec<u8>,
    pub(crate) placement: Vec<u8>,
}

impl Tables {
    pub(crate) fn load(artifact: &Artifact, entry: &Entry) -> Result<Self, FormatError> {
        let read = |extent: header::Extent, digest, code| {
            let (at, part) = (artifact.base() + extent.offset, Part::Section(entry.kind));
            let bytes = read_vec(artifact.file(), at, extent.length, part)?;
            if Digest::of(&bytes) == digest {
                return Ok(bytes);
            }
            Err(FormatError::new(code, part, at, "a chunk table does not have the digest in the index"))
        };
        Ok(Self {
            content: read(entry.content, entry.content_digest, Code::ContentDigest)?,
            placement: read(entry.placement, entry.placement_digest, Code::PlacementDigest)?,
        })
    }
}
