//! A tar reader that says where the data is instead of copying it.
//!
//! Reads ustar, GNU (long names, base-256 numbers, old sparse files) and PAX (names, sizes, times to the
//! nanosecond, attributes, sparse 0.0, 0.1 and 1.0). Entries own their names and borrow nothing. Every
//! length is checked against the archive and [`Limits`] before it is used. The crate `tar` is not
//! used because it hands out PAX 1.0 sparse files as packed bytes and needs their data read.

mod acl;
mod header;
mod pax;
mod sparse;

use std::io;

use super::error::show;
use super::limits::Limits;
use super::region::Region;
use crate::tree::{Metadata, Timestamp};
use header::{BLOCK, Header};
use pax::Pax;
use sparse::Stretch;

/// One member of an archive.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The name as written: may be absolute, hold `..`, end in a slash.
    pub(super) path: Vec<u8>,
    pub(super) meta: Metadata,
    pub(super) kind: EntryKind,
}

/// A stretch of a file's data: where in the file, how long, where in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) offset: u64,
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    File { size: u64, data: Vec<Stored> },
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Directory,
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Fifo,
}

/// Why reading stopped.
#[derive(Debug)]
pub(super) enum TarError {
    /// Entry (where known), byte offset in the archive, what is wrong.
    Corrupt {
        entry: Option<String>,
        offset: u64,
        what: String,
    },
    /// Entry, what is not read.
    Unsupported {
        entry: String,
        what: String,
    },
    /// Entry, which bound.
    Limit {
        entry: Option<String>,
        what: String,
    },
    Io(io::Error),
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Whether an archive may stop without its end mark. A layer is verified as a whole, and some writers
/// leave the mark out; an archive without a digest has nothing else to tell that it was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndMark {
    Optional,
    Required,
}

/// Reads an archive's entries in order.
pub(super) struct Reader {
    window: Window,
    at: u64,
    global: Pax,
    limits: Limits,
    end: EndMark,
    done: bool,
    /// Where the current entry's header is, for messages.
    start: u64,
    name: Option<Vec<u8>>,
}

/// What came before an entry's own header.
#[derive(Default)]
struct Prelude {
    pax: Option<Pax>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl Reader {
    pub(super) fn new(region: Region, limits: Limits, end: EndMark) -> Self {
        Self {
            window: Window::new(region),
            at: 0,
            global: Pax::default(),
            limits,
            end,
            done: false,
            start: 0,
            name: None,
        }
    }

    /// The next entry; `None` at the archive's end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        let mut prelude = Prelude::default();
        self.name = None;
        loop {
            self.start = self.at;
            let Some(block) = self.header()? else {
                return self.finish(&prelude);
            };
            let header = Header(&block);
            match header.kind() {
                b'x' | b'X' => self.pax_header(&header, &mut prelude)?,
                b'g' => {
                    let data = self.meta_data(&header)?;
                    self.global.extend(&data).map_err(|what| self.corrupt(what))?;
                }
                b'L' => prelude.long_name = Some(self.long_text(&header)?),
                b'K' => prelude.long_link = Some(self.long_text(&header)?),
                // A volume's label is no file.
                b'V' => self.skip_data(&header)?,
                _ => return self.entry(&header, prelude).map(Some),
            }
        }
    }

    fn finish(&mut self, prelude: &Prelude) -> Result<Option<Entry>, TarError> {
        self.done = true;
        if prelude.pax.is_some() || prelude.long_name.is_some() || prelude.long_link.is_some() {
            return Err(self.corrupt("it ends after an extended header, before the entry it is for"));
        }
        Ok(None)
    }

    /// The next header block, checked; `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.done {
            return Ok(None);
        }
        let Some(block) = self.block()? else {
            return match self.end {
                EndMark::Optional => Ok(None),
                EndMark::Required => Err(self.corrupt("it is cut short: there is no end mark")),
            };
        };
        let header = Header(&block);
        if header.is_zero() {
            return self.end_mark();
        }
        if !header.checksum_fits() {
            return Err(self.corrupt("a header's checksum is wrong: the archive is damaged or no tar"));
        }
        Ok(Some(block))
    }

    /// After one zero block: a second one, or the archive's end.
    fn end_mark(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        match self.block()? {
            Some(block) if !Header(&block).is_zero() => {
                Err(self.corrupt("a block of zeros lies between two entries"))
            }
            _ => Ok(None),
        }
    }

    /// 512 bytes; `None` at the very end.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        match self.window.read(&mut block, self.at)? {
            0 => Ok(None),
            BLOCK => {
                self.at += BLOCK as u64;
                Ok(Some(block))
            }
            _ => Err(self.corrupt("it is cut short within a header")),
        }
    }

    fn pax_header(&mut self, header: &Header<'_>, prelude: &mut Prelude) -> Result<(), TarError> {
        let data = self.meta_data(header)?;
        let mut pax = prelude.pax.take().unwrap_or_else(|| self.global.clone());
        pax.extend(&data).map_err(|what| self.corrupt(what))?;
        prelude.pax = Some(pax);
        Ok(())
    }

    fn long_text(&mut self, header: &Header<'_>) -> Result<Vec<u8>, TarError> {
        let data = self.meta_data(header)?;
        Ok(header::text(&data).to_vec())
    }

    /// The data of a header-like member, bounded.
    fn meta_data(&mut self, header: &Header<'_>) -> Result<Vec<u8>, TarError> {
        let size = self.header_size(header)?;
        if size > self.limits.header_bytes {
            let what = format!("an extended header of {size} bytes (at most {})", self.limits.header_bytes);
            return Err(TarError::Limit { entry: None, what });
        }
        self.stored_fits(size)?;
        let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
        self.window.region.read_at(&mut data, self.at)?;
        self.at += padded(size);
        Ok(data)
    }

    fn skip_data(&mut self, header: &Header<'_>) -> Result<(), TarError> {
        let size = self.header_size(header)?;
        self.stored_fits(size)?;
        self.at += padded(size);
        Ok(())
    }

    fn header_size(&self, header: &Header<'_>) -> Result<u64, TarError> {
        let size = header.size().and_then(|size| u64::try_from(size).ok());
        size.ok_or_else(|| self.corrupt("its size is no number"))
    }

    /// Checks that `size` bytes from here on are in the archive.
    fn stored_fits(&self, size: u64) -> Result<(), TarError> {
        let left = self.window.region.len.saturating_sub(self.at);
        if size > left {
            return Err(self.corrupt(format!("it is cut short: {size} bytes should follow, {left} do")));
        }
        Ok(())
    }

    fn entry(&mut self, header: &Header<'_>, prelude: Prelude) -> Result<Entry, TarError> {
        let mut pax = prelude.pax.unwrap_or_else(|| self.global.clone());
        let sparse_name = pax.sparse.name.take();
        let path = sparse_name.or(pax.path.take()).or(prelude.long_name).unwrap_or_else(|| header.path());
        self.name = Some(path.clone());
        if path.is_empty() {
            return Err(self.corrupt("an entry without a name"));
        }
        let link = pax.link.take().or(prelude.long_link).unwrap_or_else(|| header.link());
        let meta = self.metadata(header, &mut pax)?;
        let kind = self.kind(header, &pax, &path, link)?;
        Ok(Entry { path, meta, kind })
    }

    fn metadata(&self, header: &Header<'_>, pax: &mut Pax) -> Result<Metadata, TarError> {
        let mode = header.mode().ok_or_else(|| self.corrupt("its mode is no number"))?;
        let owner = |pax: Option<u32>, field: Option<i64>, what: &str| {
            pax.or_else(|| u32::try_from(field?).ok())
                .ok_or_else(|| self.corrupt(format!("its {what} is no number from 0 to 2^32 - 1")))
        };
        let mtime = match (pax.mtime, header.mtime()) {
            (Some(time), _) => time,
            (None, Some(seconds)) => Timestamp { seconds, nanoseconds: 0 },
            (None, None) => return Err(self.corrupt("its time is no number")),
        };
        Ok(Metadata {
            mode: u16::try_from(mode & 0o7777).unwrap_or(0),
            uid: owner(pax.uid, header.uid(), "owner")?,
            gid: owner(pax.gid, header.gid(), "group")?,
            mtime,
            xattrs: std::mem::take(&mut pax.xattrs),
        })
    }

    fn kind(
        &mut self,
        header: &Header<'_>,
        pax: &Pax,
        path: &[u8],
        link: Vec<u8>,
    ) -> Result<EntryKind, TarError> {
        match header.kind() {
            0 if path.ends_with(b"/") => self.directory(header, pax),
            0 | b'0' | b'7' => self.file(header, pax),
            b'S' => self.gnu_sparse(header, pax),
            b'D' => self.directory(header, pax),
            b'5' => Ok(EntryKind::Directory),
            b'1' => Ok(EntryKind::HardLink(link)),
            b'2' if link.is_empty() => Err(self.corrupt("a symbolic link without a target")),
            b'2' => Ok(EntryKind::Symlink(link)),
            b'3' => self.device(header, pax).map(|(major, minor)| EntryKind::CharDevice { major, minor }),
            b'4' => self.device(header, pax).map(|(major, minor)| EntryKind::BlockDevice { major, minor }),
            b'6' => Ok(EntryKind::Fifo),
            other => Err(TarError::Unsupported {
                entry: show(path),
                what: format!("an entry of type {:?}", char::from(other)),
            }),
        }
    }

    fn directory(&mut self, header: &Header<'_>, pax: &Pax) -> Result<EntryKind, TarError> {
        let size = self.data_size(header, pax)?;
        self.at += padded(size);
        Ok(EntryKind::Directory)
    }

    fn device(&self, header: &Header<'_>, pax: &Pax) -> Result<(u32, u32), TarError> {
        let number = |pax: Option<u32>, field: Option<i64>| pax.or_else(|| u32::try_from(field?).ok());
        let major = number(pax.device_major, header.device_major());
        let minor = number(pax.device_minor, header.device_minor());
        major.zip(minor).ok_or_else(|| self.corrupt("its device number is no number"))
    }

    /// Bytes stored for this entry, checked against the archive.
    fn data_size(&self, header: &Header<'_>, pax: &Pax) -> Result<u64, TarError> {
        let size = pax.size.map_or_else(|| self.header_size(header), Ok)?;
        self.stored_fits(size)?;
        Ok(size)
    }

    fn file(&mut self, header: &Header<'_>, pax: &Pax) -> Result<EntryKind, TarError> {
        let stored = self.data_size(header, pax)?;
        if pax.sparse.present() {
            return self.pax_sparse(pax, stored);
        }
        let data = if stored == 0 { vec![] } else { vec![Stored { at: 0, len: stored, offset: self.at }] };
        self.at += padded(stored);
        Ok(EntryKind::File { size: stored, data })
    }

    fn pax_sparse(&mut self, pax: &Pax, stored: u64) -> Result<EntryKind, TarError> {
        let end = self.at + padded(stored);
        let (map, stored) = match (pax.sparse.major, pax.sparse.minor) {
            (None | Some(0), _) => (sparse::pairs(&pax.sparse.numbers), stored),
            (Some(1), Some(0)) => {
                let (map, used) = self.sparse_lines(stored)?;
                (Ok(map), stored - used)
            }
            _ => return Err(self.unsupported("a sparse file newer than GNU.sparse 1.0")),
        };
        let map = map.map_err(|what| self.corrupt(what))?;
        let size = pax.sparse.size.ok_or_else(|| self.corrupt("a sparse file without its size"))?;
        let kind = self.sparse_file(map, size, stored)?;
        self.at = end;
        Ok(kind)
    }

    /// The map at the head of a PAX 1.0 sparse file's data; how many bytes it takes, a multiple of 512.
    fn sparse_lines(&mut self, stored: u64) -> Result<(Vec<Stretch>, u64), TarError> {
        let start = self.at;
        let most = self.limits.header_bytes;
        let mut lines = Lines { window: &mut self.window, at: start, end: start + stored };
        let map = sparse::lines(|| lines.next(), most / 4);
        let used = padded(lines.at - start);
        let map = map.map_err(|error| match error {
            LineError::What(what) => self.corrupt(what),
            LineError::Io(error) => error.into(),
        })?;
        if used > stored {
            return Err(self.corrupt("its sparse map is longer than its data"));
        }
        self.at += used;
        Ok((map, used))
    }

    fn gnu_sparse(&mut self, header: &Header<'_>, pax: &Pax) -> Result<EntryKind, TarError> {
        let mut map = Vec::new();
        let malformed = |reader: &Self, what: &str| reader.corrupt(what);
        sparse::gnu_map(header.sparse_map(), &mut map).map_err(|what| malformed(self, what))?;
        let mut more = header.sparse_extended();
        while more {
            let block = self.block()?.ok_or_else(|| self.corrupt("it is cut short within a sparse map"))?;
            sparse::gnu_map(&block[..504], &mut map).map_err(|what| malformed(self, what))?;
            more = block[504] != 0;
            if map.len() as u64 * 24 > self.limits.header_bytes {
                return Err(self.limit("a sparse map longer than allowed"));
            }
        }
        let size = header.sparse_size().and_then(|size| u64::try_from(size).ok());
        let size = size.ok_or_else(|| self.corrupt("a sparse file without its size"))?;
        let stored = self.data_size(header, pax)?;
        let kind = self.sparse_file(map, size, stored)?;
        self.at += padded(stored);
        Ok(kind)
    }

    fn sparse_file(&self, map: Vec<Stretch>, size: u64, stored: u64) -> Result<EntryKind, TarError> {
        let map = sparse::check(map, size, stored).map_err(|what| self.corrupt(what))?;
        let mut offset = self.at;
        let place = |Stretch { at, len }| {
            offset += len;
            Stored { at, len, offset: offset - len }
        };
        Ok(EntryKind::File { size, data: map.into_iter().map(place).collect() })
    }

    fn shown(&self) -> Option<String> {
        self.name.as_deref().map(show)
    }

    fn corrupt(&self, what: impl Into<String>) -> TarError {
        TarError::Corrupt { entry: self.shown(), offset: self.start, what: what.into() }
    }

    fn unsupported(&self, what: &str) -> TarError {
        TarError::Unsupported { entry: self.shown().unwrap_or_default(), what: what.to_owned() }
    }

    fn limit(&self, what: &str) -> TarError {
        TarError::Limit { entry: self.shown(), what: what.to_owned() }
    }
}

/// `size` and what pads it to whole blocks. Callers have checked `size` against a file's length.
fn padded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64)
}

/// Reads headers through a small buffer: a header, a small file and the next header are often one read.
struct Window {
    region: Region,
    buf: Vec<u8>,
    start: u64,
    len: usize,
}

impl Window {
    const SIZE: usize = 8192;

    fn new(region: Region) -> Self {
        Self { region, buf: vec![0; Self::SIZE], start: 0, len: 0 }
    }

    /// Fills `out` (at most [`Window::SIZE`] bytes) from `at`; fewer only at the region's end.
    fn read(&mut self, out: &mut [u8], at: u64) -> io::Result<usize> {
        if at < self.start || at + out.len() as u64 > self.start + self.len as u64 {
            self.len = self.region.read_at(&mut self.buf, at)?;
            self.start = at;
        }
        let skip = (at - self.start) as usize;
        let got = out.len().min(self.len.saturating_sub(skip));
        out[..got].copy_from_slice(&self.buf[skip..skip + got]);
        Ok(got)
    }
}

/// Decimal lines from within an archive.
struct Lines<'a> {
    window: &'a mut Window,
    at: u64,
    end: u64,
}

enum LineError {
    What(&'static str),
    Io(io::Error),
}

impl From<&'static str> for LineError {
    fn from(what: &'static str) -> Self {
        Self::What(what)
    }
}

impl Lines<'_> {
    /// The bytes up to the next newline, at most 20 of them.
    fn next(&mut self) -> Result<Vec<u8>, LineError> {
        let mut line = Vec::with_capacity(20);
        loop {
            let mut byte = [0];
            let got = if self.at < self.end {
                self.window.read(&mut byte, self.at).map_err(LineError::Io)?
            } else {
                0
            };
            if got == 0 || line.len() > 20 {
                return Err(LineError::What("its sparse map is malformed"));
            }
            self.at += 1;
            if byte == *b"\n" {
                return Ok(line);
            }
            line.push(byte[0]);
        }
    }
}
