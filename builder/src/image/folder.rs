//! A root folder as it lies on disk: every owner, mode, time, link, attribute and hole of it.
//!
//! Nothing is followed: links stay links. Files are opened only when their data is wanted. Names come
//! in byte order, so equal folders give equal trees.

use smolpack_format::open_file;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, Metadata as Stat};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, major, minor, seek};
use rustix::io::Errno;

use super::error::ImageError;
use super::limits::Limits;
use super::{Context, ImageConfig, Parts};
use crate::tree::{Extent, Kind, Metadata, Node, NodeId, Source, Timestamp, Tree};

/// Reads the folder at `root`.
///
/// # Errors
/// Names the file that could not be read, or the limit that was passed.
pub(super) fn load(root: &Path, context: &Context<'_>) -> Result<Parts, ImageError> {
    context.reporter.phase("folder", None);
    let mut walk = Walk { tree: Tree::new(), limits: context.options.limits, links: HashMap::new() };
    let stat = fs::metadata(root).map_err(|e| ImageError::io(root, "cannot read", e))?;
    walk.tree.node_mut(Tree::ROOT).meta = metadata(root, &stat)?;
    walk.folders(root)?;
    Ok(Parts { digest: None, config: ImageConfig::default(), tree: walk.tree })
}

struct Walk {
    tree: Tree,
    limits: Limits,
    /// Files of more than one name, by device and inode.
    links: HashMap<(u64, u64), NodeId>,
}

impl Walk {
    /// Goes through all folders, keeping those still to do in a list: the depth is the disk's choice.
    fn folders(&mut self, root: &Path) -> Result<(), ImageError> {
        let mut to_do = vec![(root.to_owned(), Tree::ROOT, 1)];
        while let Some((path, folder, depth)) = to_do.pop() {
            if depth > self.limits.depth {
                let what = format!("folders more than {} deep", self.limits.depth);
                return Err(ImageError::limit(path.display().to_string(), what));
            }
            let first = to_do.len();
            for name in names(&path)? {
                let child = path.join(OsStr::from_bytes(&name));
                let id = self.entry(&child)?;
                if let Some(entries) = self.tree.entries_mut(folder) {
                    entries.insert(name.into(), id);
                }
                if self.tree.entries(id).is_some() {
                    to_do.push((child, id, depth + 1));
                }
            }
            // Last in, first out: turned round, folders are gone through in order.
            to_do[first..].reverse();
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path) -> Result<NodeId, ImageError> {
        let stat = fs::symlink_metadata(path).map_err(|e| ImageError::io(path, "cannot read", e))?;
        let key = (stat.dev(), stat.ino());
        let linked = !stat.is_dir() && stat.nlink() > 1;
        if let Some(id) = self.links.get(&key).filter(|_| linked) {
            return Ok(*id);
        }
        if self.tree.len() as u64 > self.limits.entries {
            let what = format!("more than {} entries", self.limits.entries);
            return Err(ImageError::limit(path.display().to_string(), what));
        }
        let meta = metadata(path, &stat)?;
        let kind = self.kind(path, &stat)?;
        let id = self.tree.add(Node { meta, kind, layer: 0 });
        if linked {
            self.links.insert(key, id);
        }
        Ok(id)
    }

    fn kind(&mut self, path: &Path, stat: &Stat) -> Result<Kind, ImageError> {
        let file_type = stat.file_type();
        let (major, minor) = (major(stat.rdev()), minor(stat.rdev()));
        Ok(if file_type.is_file() {
            self.file(path, stat)?
        } else if file_type.is_dir() {
            Kind::Directory(BTreeMap::new())
        } else if file_type.is_symlink() {
            let target = fs::read_link(path).map_err(|e| ImageError::io(path, "cannot read the link", e))?;
            Kind::Symlink(target.into_os_string().into_vec().into())
        } else if file_type.is_char_device() {
            Kind::CharDevice { major, minor }
        } else if file_type.is_block_device() {
            Kind::BlockDevice { major, minor }
        } else if file_type.is_fifo() {
            Kind::Fifo
        } else {
            Kind::Socket
        })
    }

    fn file(&mut self, path: &Path, stat: &Stat) -> Result<Kind, ImageError> {
        let size = stat.size();
        // Only a file with fewer blocks than bytes can have holes worth asking for.
        let sparse = stat.blocks().saturating_mul(512) < size;
        let stretches = match (size, sparse) {
            (0, _) => vec![],
            (_, false) => vec![(0, size)],
            (_, true) => stretches(path, size).map_err(|e| ImageError::io(path, "cannot read", e.into()))?,
        };
        if stretches.is_empty() {
            return Ok(Kind::File { size, extents: vec![] });
        }
        let source = self.tree.add_source(Source::Path(path.to_owned()));
        let extent = |(at, end)| Extent { at, len: end - at, source, offset: at };
        Ok(Kind::File { size, extents: stretches.into_iter().map(extent).collect() })
    }
}

/// The names in a folder, in byte order.
pub(super) fn names(folder: &Path) -> Result<Vec<Vec<u8>>, ImageError> {
    let read = || -> io::Result<Vec<Vec<u8>>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
    };
    let mut names = read().map_err(|e| ImageError::io(folder, "cannot list the folder", e))?;
    names.sort_unstable();
    Ok(names)
}

/// The stretches of data, from and to, of a file with holes.
fn stretches(path: &Path, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let file = open_file(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // A file system without an answer: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error),
        };
        let end = seek(&file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        found.push((start, end));
        at = end;
    }
    Ok(found)
}

fn metadata(path: &Path, stat: &Stat) -> Result<Metadata, ImageError> {
    let mtime =
        Timestamp { seconds: stat.mtime(), nanoseconds: u32::try_from(stat.mtime_nsec()).unwrap_or(0) };
    let xattrs = xattrs(path).map_err(|e| ImageError::io(path, "cannot read the attributes", e.into()))?;
    Ok(Metadata { mode: (stat.mode() & 0o7777) as u16, uid: stat.uid(), gid: stat.gid(), mtime, xattrs })
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn xattrs(path: &Path) -> Result<Xattrs, Errno> {
    let list = match grow(|buf| rustix::fs::llistxattr(path, buf)) {
        Ok(list) => list,
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        Err(error) => return Err(error),
    };
    let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .filter_map(|name| match grow(|buf| rustix::fs::lgetxattr(path, name, buf)) {
            Ok(value) => Some(Ok((name.to_vec(), value))),
            // Gone meanwhile, or listed by a file system that then denies it.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(error) => Some(Err(error)),
        })
        .collect()
}

/// Calls until the buffer is large enough; attributes and their lists end at 64 KiB.
fn grow(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut small = [0; 1024];
    match call(&mut small) {
        Ok(len) => return Ok(small[..len].to_vec()),
        Err(Errno::RANGE) => {}
        Err(error) => return Err(error),
    }
    let mut buf = vec![0; 1 << 16];
    let len = call(&mut buf)?;
    buf.truncate(len);
    Ok(buf)
}
