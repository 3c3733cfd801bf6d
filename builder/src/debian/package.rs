//! Reads a `.deb`: an `ar` archive (deb(5)) whose member `data.tar.*` holds the files.
//!
//! The tar is decompressed once, into an unlinked temporary file, and indexed: its files can then be
//! read in any order and without holding them. A package is treated as hostile: lengths are checked
//! before use, and what it inflates to is bounded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use smolpack_format::open_file;

use crate::kernel::codec::Codec;

/// What an `ar` archive begins with.
const AR_MAGIC: &[u8; 8] = b"!<arch>\n";
const AR_HEADER: usize = 60;
/// More than any kernel package inflates to (Debian's largest, with modules: 500 MB).
const MAX_PLAIN: u64 = 4 << 30;
/// More files than any package has.
const MAX_ENTRIES: usize = 200_000;

/// Why a package cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// It is no `ar` archive of a `.deb`.
    #[error("{0}")]
    Malformed(String),
    /// Its file list is compressed with something else.
    #[error("its member {0} has a compression that is not gzip, xz or zstd")]
    Compression(String),
    /// It inflates without end, or has too many files.
    #[error("it holds more than {0}")]
    TooLarge(&'static str),
    /// It is cut off or damaged, or the file system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system or the decompressor said.
        source: io::Error,
    },
}

fn doing(doing: &'static str) -> impl Fn(io::Error) -> PackageError {
    move |source| PackageError::Io { doing, source }
}

/// Where a regular file of the package lies in [`Package::data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First byte in the plain tar.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// Time of the last change, seconds since 1970.
    pub mtime: u64,
}

/// An opened package: its regular files by path, without a leading `./`.
#[derive(Debug)]
pub struct Package {
    data: Arc<File>,
    files: BTreeMap<String, Entry>,
}

impl Package {
    /// Opens a package, unpacking its tar into an unlinked file in the folder `scratch`.
    ///
    /// # Errors
    /// Where the file is no package, is damaged, too large, or the disk is full.
    pub fn open(path: &Path, scratch: &Path) -> Result<Self, PackageError> {
        let mut file = open_file(path).map_err(doing("opening it"))?;
        let (name, len) = find_data(&mut file)?;
        let data = spool(&name, BufReader::new(file).take(len), scratch)?;
        let files = index(&data)?;
        Ok(Self { data: Arc::new(data), files })
    }

    /// Whether a file that begins so is an `ar` archive.
    #[must_use]
    pub fn is_one(head: &[u8]) -> bool {
        head.starts_with(AR_MAGIC)
    }

    /// The regular files, by path. Names that are not UTF-8 are left out.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, Entry> {
        &self.files
    }

    /// The package's plain tar, which entries point into.
    #[must_use]
    pub fn data(&self) -> Arc<File> {
        Arc::clone(&self.data)
    }

    /// A reader of one file's contents.
    #[must_use]
    pub fn reader(&self, entry: Entry) -> impl Read + use<> {
        EntryReader { data: self.data(), at: entry.offset, end: entry.offset + entry.len }
    }
}

struct EntryReader {
    data: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for EntryReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buf.len());
        let n = self.data.read_at(&mut buf[..room], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Leaves `file` at the contents of the member `data.tar*` and gives its name and length.
fn find_data(file: &mut File) -> Result<(String, u64), PackageError> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic).map_err(doing("reading its first bytes"))?;
    if &magic != AR_MAGIC {
        return Err(PackageError::Malformed("no ar archive".into()));
    }
    let end = file.metadata().map_err(doing("reading its size"))?.len();
    let mut at = magic.len() as u64;
    while at < end {
        let (name, len) = member(file)?;
        at += AR_HEADER as u64;
        if at.checked_add(len).is_none_or(|member_end| member_end > end) {
            return Err(PackageError::Malformed(format!(
                "truncated: the member {name} reaches past the end"
            )));
        }
        if name.starts_with("data.tar") {
            return Ok((name, len));
        }
        at += len.next_multiple_of(2);
        file.seek(SeekFrom::Start(at)).map_err(doing("seeking"))?;
    }
    Err(PackageError::Malformed("truncated, or no Debian package: it has no member data.tar".into()))
}

/// Decodes a member's header: name in 16 bytes, length in decimal at 48, `` `\n `` at 58.
fn member(file: &mut File) -> Result<(String, u64), PackageError> {
    let mut header = [0; AR_HEADER];
    file.read_exact(&mut header).map_err(doing("reading a member's header"))?;
    let text = |range: std::ops::Range<usize>| std::str::from_utf8(&header[range]).ok().map(str::trim_end);
    let name = text(0..16).map(|name| name.trim_end_matches('/').to_owned());
    let len = text(48..58).and_then(|len| len.parse().ok());
    match (name, len, &header[58..]) {
        (Some(name), Some(len), b"`\n") => Ok((name, len)),
        _ => Err(PackageError::Malformed("a damaged ar header".into())),
    }
}

/// Inflates a member into a temporary file.
fn spool(name: &str, mut member: impl Read, scratch: &Path) -> Result<File, PackageError> {
    let mut head = [0; 6];
    member.read_exact(&mut head).map_err(doing("reading its data"))?;
    let member = io::Read::chain(&head[..], member);
    let mut plain: Box<dyn Read> = match Codec::sniff(&head) {
        Some(codec @ (Codec::Gzip | Codec::Xz | Codec::Zstd)) => {
            codec.reader(member).map_err(doing("unpacking its data"))?
        }
        None if name == "data.tar" => Box::new(member),
        _ => return Err(PackageError::Compression(name.into())),
    };
    let file = tempfile::tempfile_in(scratch).map_err(doing("making a temporary file"))?;
    let mut out = BufWriter::with_capacity(1 << 20, &file);
    let len =
        io::copy(&mut (&mut plain).take(MAX_PLAIN + 1), &mut out).map_err(doing("unpacking its data"))?;
    if len > MAX_PLAIN {
        return Err(PackageError::TooLarge("4 GiB"));
    }
    out.flush().map_err(doing("writing a temporary file"))?;
    drop(out);
    Ok(file)
}

fn index(data: &File) -> Result<BTreeMap<String, Entry>, PackageError> {
    let end = data.metadata().map_err(doing("reading its file list"))?.len();
    let mut reader = BufReader::new(data);
    reader.seek(SeekFrom::Start(0)).map_err(doing("seeking"))?;
    let mut archive = tar::Archive::new(reader);
    let mut files = BTreeMap::new();
    for entry in archive.entries_with_seek().map_err(doing("reading its file list"))? {
        let entry = entry.map_err(doing("reading its file list"))?;
        if files.len() >= MAX_ENTRIES {
            return Err(PackageError::TooLarge("200,000 files"));
        }
        if let Some((name, place)) = regular_file(&entry, end)? {
            files.insert(name, place);
        }
    }
    Ok(files)
}

/// Path and place of a tar entry, if it is a regular file.
fn regular_file<R: Read>(
    entry: &tar::Entry<'_, R>,
    end: u64,
) -> Result<Option<(String, Entry)>, PackageError> {
    if !entry.header().entry_type().is_file() {
        return Ok(None);
    }
    let (offset, len) = (entry.raw_file_position(), entry.size());
    if offset.checked_add(len).is_none_or(|last| last > end) {
        return Err(PackageError::Malformed("truncated: a file reaches past the end".into()));
    }
    let mtime = entry.header().mtime().map_err(doing("reading its file list"))?;
    let name = String::from_utf8(entry.path_bytes().into_owned()).ok();
    Ok(name.map(|name| (name.trim_start_matches("./").to_owned(), Entry { offset, len, mtime })))
}
