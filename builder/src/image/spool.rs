//! Decompression into the cache, and digests of what lies elsewhere.
//!
//! Two threads: one decompresses, one hashes and writes. The tar inside is only read once its digest
//! has been checked, so nothing unverified is ever interpreted.

use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::cache::{Cache, Draft};
use super::error::{ErrorKind, ImageError};
use super::gzip;
use super::progress::Reporter;
use super::region::Region;
use smolpack_registry::{Digest, Hasher};

/// One buffer between the threads; a few are under way at a time.
const BUFFER: usize = 1 << 20;

/// How bytes are compressed, by their magic: media types and names lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Looks at the first bytes.
///
/// # Errors
/// Names a compression that is known but not read.
pub(super) fn sniff(region: &Region, place: &str) -> Result<Compression, ImageError> {
    let mut magic = [0; 6];
    region.read_at(&mut magic, 0).map_err(|e| ImageError::io_at(place, "cannot read", e))?;
    let unsupported = |name: &str, tool: &str| {
        Err(ImageError::unsupported(place, format!("it is compressed with {name}"))
            .with_hint(format!("decompress it with `{tool}`, or use gzip or zstd")))
    };
    match magic {
        [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => unsupported("xz", "xz -d"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => unsupported("bzip2", "bzip2 -d"),
        [0x04, 0x22, 0x4d, 0x18, ..] => unsupported("lz4", "lz4 -d"),
        _ => Ok(Compression::None),
    }
}

/// The digest of a region, of the same algorithm as `like`.
pub(super) fn digest_of(
    region: &Region,
    like: Option<&Digest>,
    place: &str,
    reporter: &Reporter<'_>,
) -> Result<Digest, ImageError> {
    reporter.phase("verify", Some(region.len));
    let mut hasher = like.map_or_else(Hasher::sha256, Hasher::like);
    copy(&mut region.reader(), |bytes| {
        hasher.update(bytes);
        reporter.advance(bytes.len() as u64);
        Ok(())
    })
    .map_err(|e| ImageError::io_at(place, "cannot read", e))?;
    Ok(hasher.finish())
}

/// What must come out of two digests.
pub(super) fn check_digest(what: &str, is: &Digest, should: &Digest, place: &str) -> Result<(), ImageError> {
    if is == should {
        return Ok(());
    }
    let text = format!("{what} has digest {is}, but should have {should}");
    Err(ImageError::new(ErrorKind::DigestMismatch, place, text)
        .with_hint("the data was damaged or replaced; fetch or make the image again"))
}

/// Copies standard input or the like into the cache, as it is.
pub(super) fn store(
    input: &mut dyn Read,
    cache: &Cache,
    place: &str,
    limit: u64,
    reporter: &Reporter<'_>,
) -> Result<Region, ImageError> {
    let mut draft = cache.draft()?;
    reporter.phase("read", None);
    let mut total = 0;
    copy(input, |bytes| {
        total += bytes.len() as u64;
        within(total, limit)?;
        reporter.advance(bytes.len() as u64);
        draft.write_all(bytes)
    })
    .map_err(|e| failed(place, limit, e))?;
    draft.into_unnamed()
}

/// A decompression to do.
pub(super) struct Inflate<'a> {
    pub(super) input: &'a Region,
    pub(super) compression: Compression,
    /// What the compressed bytes must hash to, where that is not known yet.
    pub(super) blob: Option<&'a Digest>,
    /// What the decompressed bytes must hash to.
    pub(super) diff_id: Option<&'a Digest>,
    /// Most bytes to come out.
    pub(super) limit: u64,
    pub(super) place: &'a str,
}

impl Inflate<'_> {
    /// Decompresses into the cache; gives the finished, verified file, not yet under its name.
    pub(super) fn run(&self, cache: &Cache, reporter: &Reporter<'_>) -> Result<Draft, ImageError> {
        let draft = cache.draft()?;
        let place = draft.place();
        reporter.phase("unpack", Some(self.input.len));
        let (read, written) = thread::scope(|scope| {
            let (full, chunks) = sync_channel(4);
            let (recycle, empty) = sync_channel(4);
            let hasher = self.diff_id.map_or_else(Hasher::sha256, Hasher::like);
            let write = move || write_all(draft, hasher, &chunks, &recycle);
            let writer = match thread::Builder::new().spawn_scoped(scope, write) {
                Ok(writer) => writer,
                Err(e) => return (Ok(()), Err(e)),
            };
            let read = self.decompress(&full, &empty, reporter);
            drop(full);
            let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread died")));
            (read, written)
        });
        // A write that failed also stops the reader, whose error then says nothing.
        let (draft, digest) = written.map_err(|e| ImageError::io(&place, "cannot write to the cache", e))?;
        read?;
        if let Some(diff_id) = self.diff_id {
            check_digest("its decompressed data", &digest, diff_id, self.place)?;
        }
        Ok(draft)
    }

    fn decompress(
        &self,
        full: &SyncSender<Vec<u8>>,
        empty: &Receiver<Vec<u8>>,
        reporter: &Reporter<'_>,
    ) -> Result<(), ImageError> {
        let hasher = self.blob.map(Hasher::like);
        let mut input =
            BufReader::with_capacity(BUFFER, Counted { inner: self.input.reader(), hasher, reporter });
        let result = match self.compression {
            Compression::None => self.pump(&mut input, full, empty),
            Compression::Gzip => self.pump(&mut gzip::Members::new(&mut input), full, empty),
            Compression::Zstd => zstd::stream::read::Decoder::with_buffer(&mut input)
                .and_then(|mut decoder| self.pump(&mut decoder, full, empty)),
        };
        // A damaged blob most often fails to decompress; that it is damaged says more.
        if let Some(blob) = self.blob {
            io::copy(&mut input, &mut io::sink())
                .map_err(|e| ImageError::io_at(self.place, "cannot read", e))?;
            let digest = input.into_inner().hasher.map(Hasher::finish);
            digest.map_or(Ok(()), |digest| check_digest("it", &digest, blob, self.place))?;
        }
        result.map_err(|e| failed(self.place, self.limit, e))
    }

    /// Reads to the end, handing buffers over; takes used ones back.
    fn pump(
        &self,
        decoder: &mut dyn Read,
        full: &SyncSender<Vec<u8>>,
        empty: &Receiver<Vec<u8>>,
    ) -> io::Result<()> {
        let mut total = 0;
        loop {
            let mut buffer = empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BUFFER));
            buffer.clear();
            let got = (&mut *decoder).take(BUFFER as u64).read_to_end(&mut buffer)?;
            total += got as u64;
            within(total, self.limit)?;
            if got == 0 || full.send(buffer).is_err() {
                return Ok(());
            }
        }
    }
}

fn write_all(
    mut draft: Draft,
    mut hasher: Hasher,
    chunks: &Receiver<Vec<u8>>,
    recycle: &SyncSender<Vec<u8>>,
) -> io::Result<(Draft, Digest)> {
    for chunk in chunks {
        draft.write_all(&chunk)?;
        hasher.update(&chunk);
        let _ = recycle.try_send(chunk);
    }
    Ok((draft, hasher.finish()))
}

/// Reports and hashes what passes.
struct Counted<'t, 'a, R> {
    inner: R,
    hasher: Option<Hasher>,
    reporter: &'t Reporter<'a>,
}

impl<R: Read> Read for Counted<'_, '_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buf[..got]);
        }
        self.reporter.advance(got as u64);
        Ok(got)
    }
}

fn copy(input: &mut dyn Read, mut sink: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => sink(&buffer[..got])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Past the limit, as an error that [`failed`] knows again.
fn within(total: u64, limit: u64) -> io::Result<()> {
    if total > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
}

fn failed(place: &str, limit: u64, error: io::Error) -> ImageError {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return ImageError::limit(place, format!("it is larger than {limit} bytes when decompressed"));
    }
    if error.raw_os_error().is_some() {
        return ImageError::io_at(place, "cannot copy it to the cache", error);
    }
    ImageError::corrupt(place, format!("it cannot be decompressed: {error}"))
        .with_hint("the data is damaged or cut short; fetch or make the image again")
}
