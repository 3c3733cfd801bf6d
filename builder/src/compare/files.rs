//! The files of two disks, path by path.

use ext4_view::{Ext4, Ext4Error, Ext4Read, Metadata, PathBuf};
use serde::Serialize;
use smolpack_format::{Artifact, FormatError, Section, SectionKind};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use super::CompareError;
use super::attributes::{Attributes, Inodes, ROOT};
use crate::ext4::{SUPERBLOCK_SIZE, hide_large_xattrs};

/// A path that is not the same on both disks.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct FileDifference {
    /// From the root; bytes that are not text are shown as U+FFFD.
    pub path: String,
    /// How it differs.
    pub change: FileChange,
    /// In what, where it is on both: `contents`, `mode 644 to 755` and the like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what: Vec<String>,
}

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// It is on the second disk alone. What lies below a new folder is not listed.
    Added,
    /// It is on the first disk alone.
    Removed,
    /// It is on both.
    Changed,
}

/// Reads a file system out of a section.
struct SectionReader {
    section: Arc<Section>,
    /// The superblock without the feature that the library refuses and has nothing to do with.
    superblock: [u8; SUPERBLOCK_SIZE],
}

/// Where the superblock lies, bytes.
const SUPERBLOCK: u64 = 1024;

impl SectionReader {
    fn new(section: Arc<Section>) -> Result<Self, FormatError> {
        let mut superblock = [0; SUPERBLOCK_SIZE];
        section.read_at(&mut superblock, SUPERBLOCK)?;
        hide_large_xattrs(&mut superblock);
        Ok(Self { section, superblock })
    }
}

impl Ext4Read for SectionReader {
    fn read(
        &mut self,
        start: u64,
        into: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        self.section.read_at(into, start)?;
        let end = start + into.len() as u64;
        let (from, to) = (start.max(SUPERBLOCK), end.min(SUPERBLOCK + SUPERBLOCK_SIZE as u64));
        if from < to {
            let patch = &self.superblock[(from - SUPERBLOCK) as usize..(to - SUPERBLOCK) as usize];
            into[(from - start) as usize..(to - start) as usize].copy_from_slice(patch);
        }
        Ok(())
    }
}

struct Disk {
    which: &'static str,
    ext4: Option<Ext4>,
    inodes: Option<Inodes>,
}

impl Disk {
    fn open(artifact: &Artifact, which: &'static str) -> Result<Self, CompareError> {
        let unreadable = |source| CompareError::Format { which, source };
        let Some(section) = artifact.section(SectionKind::Disk).map_err(unreadable)?.map(Arc::new) else {
            return Ok(Self { which, ext4: None, inodes: None });
        };
        let reader = SectionReader::new(Arc::clone(&section)).map_err(unreadable)?;
        let ext4 = Ext4::load(Box::new(reader));
        let ext4 = ext4.map_err(|e| CompareError::Disk { which, why: e.to_string() })?;
        let inodes = Inodes::open(section).map_err(|why| CompareError::Disk { which, why })?;
        Ok(Self { which, ext4: Some(ext4), inodes: Some(inodes) })
    }

    /// The inodes of what is in a folder.
    fn numbers(&self, folder: u32) -> Result<BTreeMap<Vec<u8>, u32>, CompareError> {
        self.inodes.as_ref().map_or(Ok(BTreeMap::new()), |inodes| self.is_right(inodes.entries(folder)))
    }

    fn attributes(&self, inode: u32) -> Result<Attributes, CompareError> {
        self.inodes.as_ref().map_or(Ok(BTreeMap::new()), |inodes| self.is_right(inodes.attributes(inode)))
    }

    fn is_right<T>(&self, read: Result<T, String>) -> Result<T, CompareError> {
        read.map_err(|why| CompareError::Disk { which: self.which, why })
    }

    fn has<T>(&self, read: Result<T, Ext4Error>) -> Result<T, CompareError> {
        read.map_err(|e| CompareError::Disk { which: self.which, why: e.to_string() })
    }

    /// A folder's entries by name. A disk that is not there has none.
    fn entries(&self, folder: &PathBuf) -> Result<BTreeMap<Vec<u8>, PathBuf>, CompareError> {
        let Some(ext4) = &self.ext4 else { return Ok(BTreeMap::new()) };
        let mut entries = BTreeMap::new();
        for entry in self.has(ext4.read_dir(folder))? {
            let entry = self.has(entry)?;
            let name = entry.file_name();
            if !matches!(name.as_ref(), b"." | b"..") {
                entries.insert(name.as_ref().to_vec(), entry.path());
            }
        }
        Ok(entries)
    }

    fn metadata(&self, path: &PathBuf) -> Result<Option<Metadata>, CompareError> {
        self.ext4.as_ref().map(|ext4| self.has(ext4.symlink_metadata(path))).transpose()
    }

    fn target(&self, path: &PathBuf) -> Result<Option<PathBuf>, CompareError> {
        self.ext4.as_ref().map(|ext4| self.has(ext4.read_link(path))).transpose()
    }
}

pub(super) fn compare(a: &Artifact, b: &Artifact) -> Result<Vec<FileDifference>, CompareError> {
    let (a, b) = (Disk::open(a, "first")?, Disk::open(b, "second")?);
    let mut found = Vec::new();
    // Folders that are on both disks and still to be looked into, and their inodes.
    let mut to_do = vec![(PathBuf::new("/"), [ROOT; 2])];
    while let Some((folder, [one, two])) = to_do.pop() {
        let (mut ours, theirs) = (a.entries(&folder)?, b.entries(&folder)?);
        let numbers = (a.numbers(one)?, b.numbers(two)?);
        for (name, path) in theirs {
            let Some(_) = ours.remove(&name) else {
                found.push(difference(&path, FileChange::Added, vec![]));
                continue;
            };
            let (one, two) = (a.metadata(&path)?, b.metadata(&path)?);
            let (Some(one), Some(two)) = (one, two) else { continue };
            let inodes =
                [numbers.0.get(&name), numbers.1.get(&name)].map(|number| number.copied().unwrap_or(0));
            let mut what = changes(&a, &b, &path, &one, &two)?;
            what.extend(changed_attributes(&a.attributes(inodes[0])?, &b.attributes(inodes[1])?));
            if !what.is_empty() {
                found.push(difference(&path, FileChange::Changed, what));
            }
            if one.is_dir() && two.is_dir() {
                to_do.push((path, inodes));
            }
        }
        found.extend(ours.values().map(|path| difference(path, FileChange::Removed, vec![])));
    }
    found.sort_by(|x, y| x.path.cmp(&y.path));
    Ok(found)
}

fn difference(path: &PathBuf, change: FileChange, what: Vec<String>) -> FileDifference {
    FileDifference { path: String::from_utf8_lossy(path.as_ref()).into_owned(), change, what }
}

/// What of a path that is on both disks is not the same.
fn changes(
    a: &Disk,
    b: &Disk,
    path: &PathBuf,
    one: &Metadata,
    two: &Metadata,
) -> Result<Vec<String>, CompareError> {
    if one.file_type() != two.file_type() {
        return Ok(vec![format!("{:?} to {:?}", one.file_type(), two.file_type()).to_lowercase()]);
    }
    let mut what = Vec::new();
    if one.mode() & 0o7777 != two.mode() & 0o7777 {
        what.push(format!("mode {:o} to {:o}", one.mode() & 0o7777, two.mode() & 0o7777));
    }
    if (one.uid(), one.gid()) != (two.uid(), two.gid()) {
        what.push(format!("owner {}:{} to {}:{}", one.uid(), one.gid(), two.uid(), two.gid()));
    }
    if one.modified() != two.modified() {
        what.push("time".to_owned());
    }
    if one.is_symlink() {
        if a.target(path)? != b.target(path)? {
            what.push("target".to_owned());
        }
    } else if one.file_type() == ext4_view::FileType::Regular {
        if one.len() != two.len() {
            what.push(format!("contents, {} to {} bytes", one.len(), two.len()));
        } else if !same_contents(a, b, path)? {
            what.push("contents".to_owned());
        }
    }
    Ok(what)
}

/// The names of attributes that differ.
fn changed_attributes(one: &Attributes, two: &Attributes) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
    let differ = names.into_iter().filter(|name| one.get(*name) != two.get(*name));
    differ.map(|name| format!("attribute {name}")).collect()
}

/// Whether two files of equal length are equal.
fn same_contents(a: &Disk, b: &Disk, path: &PathBuf) -> Result<bool, CompareError> {
    let (Some(one), Some(two)) = (&a.ext4, &b.ext4) else { return Ok(false) };
    let (mut one, mut two) = (a.has(one.open(path))?, b.has(two.open(path))?);
    let (mut ours, mut theirs) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    let failed = |which, e: std::io::Error| CompareError::Disk { which, why: e.to_string() };
    loop {
        let got = fill(&mut one, &mut ours).map_err(|e| failed(a.which, e))?;
        let also = fill(&mut two, &mut theirs).map_err(|e| failed(b.which, e))?;
        if ours[..got] != theirs[..also] {
            return Ok(false);
        }
        if got < ours.len() {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
