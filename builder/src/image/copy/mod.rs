//! `[[copy]]`: files of the build context on top of an image, as one more layer.
//!
//! As `COPY` of a Dockerfile: a folder's contents go into the folder `to`; a file becomes `to`, or goes into
//! it where it is a folder or ends in a slash. Times are the disk's own, and attributes and hard links stay
//! behind: what a checkout of the same commit may have differently must not reach the machine.

mod ignore;

use smolpack_format::read_text_file;
use smolpack_guest::user::{Accounts, resolve};
use std::ffi::OsStr;
use std::fs::{self, Metadata as Stat};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::ImageError;
use super::folder::names;
use super::limits::Limits;
use super::merge::{Dialect, MergeError, Merger};
use super::tar::{Entry, EntryKind, Stored};
use super::{ErrorKind, Image};
use crate::smolfile::Smolfile;
use crate::tree::{Metadata, Source, Timestamp, Tree};
use ignore::Ignore;

/// The file that is looked for where `[build] ignore` names none.
const IGNORE_FILE: &str = ".smolignore";
/// The most of `/etc/passwd` and `/etc/group` that is read, bytes.
const ACCOUNTS_MAX: u64 = 4 << 20;
/// No file of patterns is longer, bytes.
const IGNORE_MAX: u64 = 1 << 20;

/// Where files are copied from, and how.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions<'a> {
    /// The build context.
    pub context: &'a Path,
    /// When copied files say they were changed.
    pub time: Timestamp,
    /// A file of the build context that is never copied: the artifact of an earlier build.
    pub output: &'a Path,
    /// Bounds on what is copied.
    pub limits: Limits,
}

/// Puts what `[[copy]]` says on top of the image.
///
/// # Errors
/// A source is missing or lies outside the build context, an owner is unknown, the ignore file is malformed,
/// or a file is neither file, folder nor symbolic link. Each names the file.
pub fn copy(image: &mut Image, smolfile: &Smolfile, options: &CopyOptions<'_>) -> Result<(), ImageError> {
    if smolfile.copy.is_empty() {
        return Ok(());
    }
    let root = canonical(options.context)?;
    let ignore = read_ignore(&root, smolfile.build.ignore.as_deref())?;
    let accounts = accounts(&image.tree);
    let tree = std::mem::take(&mut image.tree);
    let mut copier = Copier {
        merger: Merger::on(tree, options.limits, Dialect::Root),
        root,
        ignore,
        output: fs::canonicalize(options.output).ok(),
        time: options.time,
        owner: (0, 0),
        mode: None,
    };
    for item in &smolfile.copy {
        let owner = item.owner.as_deref().map(|owner| resolve(owner, &accounts)).transpose();
        let owner = owner.map_err(|what| ImageError::new(ErrorKind::NoMatch, place(&item.from), what))?;
        copier.owner = owner.map_or((0, 0), |user| (user.uid, user.gid));
        copier.mode = item.mode.as_deref().and_then(|mode| u16::from_str_radix(mode, 8).ok());
        copier.item(&item.from, item.to.as_bytes())?;
    }
    image.tree = copier.merger.into_tree();
    Ok(())
}

struct Copier {
    merger: Merger,
    /// The build context, without symbolic links in its own path.
    root: PathBuf,
    ignore: Ignore,
    output: Option<PathBuf>,
    time: Timestamp,
    owner: (u32, u32),
    mode: Option<u16>,
}

impl Copier {
    fn item(&mut self, from: &str, to: &[u8]) -> Result<(), ImageError> {
        let path = canonical(&self.root.join(from)).map_err(|e| {
            let hint = "paths in [[copy]] are relative to the Smolfile's folder";
            if e.kind() == ErrorKind::NotFound { e.with_hint(hint) } else { e }
        })?;
        let Ok(relative) = path.strip_prefix(&self.root).map(Path::to_owned) else {
            return Err(ImageError::new(
                ErrorKind::NoMatch,
                place(from),
                "it leads out of the build context",
            )
            .with_hint("keep the file beside the Smolfile"));
        };
        if self.is_left_out(&path, &relative) {
            return Err(ImageError::new(ErrorKind::NoMatch, place(from), "the ignore file leaves it out"));
        }
        let stat = stat(&path)?;
        if stat.is_dir() {
            self.merger.folder(to).map_err(|e| failed(from, e))?;
            return self.folder(&path, &relative, to);
        }
        let mut target = to.to_vec();
        if to.ends_with(b"/") || self.merger.is_folder(to) {
            let name = Path::new(from).file_name().unwrap_or_default();
            target = join(to, name.as_bytes());
        }
        self.entry(&path, &stat, target)
    }

    /// Copies what is in a folder. It is as deep as the limit on folders lets an image be.
    fn folder(&mut self, path: &Path, relative: &Path, to: &[u8]) -> Result<(), ImageError> {
        for name in names(path)? {
            let file_name = OsStr::from_bytes(&name);
            let (path, relative) = (path.join(file_name), relative.join(file_name));
            let stat = stat(&path)?;
            let left_out = self.is_left_out(&path, &relative);
            if left_out && !(stat.is_dir() && self.ignore.takes_back()) {
                continue;
            }
            let target = join(to, &name);
            if !left_out {
                self.entry(&path, &stat, target.clone())?;
            }
            if stat.is_dir() {
                self.folder(&path, &relative, &target)?;
            }
        }
        Ok(())
    }

    fn is_left_out(&self, path: &Path, relative: &Path) -> bool {
        self.output.as_deref() == Some(path) || self.ignore.leaves_out(relative)
    }

    fn entry(&mut self, path: &Path, stat: &Stat, target: Vec<u8>) -> Result<(), ImageError> {
        let kind = if stat.is_file() {
            self.merger.set_source(Source::Path(path.to_owned()));
            let size = stat.len();
            let data = if size == 0 { vec![] } else { vec![Stored { at: 0, len: size, offset: 0 }] };
            EntryKind::File { size, data }
        } else if stat.is_dir() {
            EntryKind::Directory
        } else if stat.is_symlink() {
            let target = fs::read_link(path).map_err(|e| ImageError::io(path, "cannot read the link", e))?;
            EntryKind::Symlink(target.into_os_string().into_vec())
        } else {
            let what = "it is a socket, a pipe or a device: files, folders and links can be copied";
            return Err(ImageError::unsupported(path.display().to_string(), what)
                .with_hint(format!("list it in {IGNORE_FILE}")));
        };
        let meta = Metadata {
            mode: self.mode_of(stat),
            uid: self.owner.0,
            gid: self.owner.1,
            mtime: self.time,
            ..Metadata::default()
        };
        let shown = path.display().to_string();
        self.merger.apply(Entry { path: target, meta, kind }, 0).map_err(|e| failed(&shown, e))
    }

    /// `mode` where it is given; a folder can then be entered by whoever may read it.
    fn mode_of(&self, stat: &Stat) -> u16 {
        match self.mode {
            Some(mode) if stat.is_dir() => mode | (mode & 0o444) >> 2,
            Some(mode) => mode,
            None => (stat.permissions().mode() & 0o7777) as u16,
        }
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    [folder, b"/", name].concat()
}

fn place(from: &str) -> String {
    format!("[[copy]] from = {from:?}")
}

fn failed(place: &str, error: MergeError) -> ImageError {
    match error {
        MergeError::Corrupt(entry, what) => {
            ImageError::new(ErrorKind::NoMatch, place, format!("it cannot become {entry}: {what}"))
        }
        MergeError::Limit(_, what) => ImageError::limit(place, what),
    }
}

fn canonical(path: &Path) -> Result<PathBuf, ImageError> {
    fs::canonicalize(path).map_err(|e| ImageError::io(path, "cannot find it", e))
}

fn stat(path: &Path) -> Result<Stat, ImageError> {
    fs::symlink_metadata(path).map_err(|e| ImageError::io(path, "cannot read", e))
}

/// The patterns; a file that nobody named may be missing.
fn read_ignore(root: &Path, named: Option<&str>) -> Result<Ignore, ImageError> {
    let path = root.join(named.unwrap_or(IGNORE_FILE));
    let utf8 = |bytes| String::from_utf8(bytes).map_err(std::io::Error::other);
    let text = match read_text_file(&path, IGNORE_MAX).and_then(utf8) {
        Err(e) if e.kind() == IoErrorKind::NotFound && named.is_none() => return Ok(Ignore::default()),
        read => read.map_err(|e| ImageError::io(&path, "cannot read", e))?,
    };
    Ignore::parse(&text).map_err(|(line, what)| {
        ImageError::corrupt(format!("{}, line {line}", path.display()), what)
            .with_hint("patterns are those of a .dockerignore")
    })
}

/// The image's users; what cannot be read has none.
fn accounts(tree: &Tree) -> Accounts {
    let read = |path: &[&[u8]]| tree.read(path, ACCOUNTS_MAX).unwrap_or_default();
    Accounts::new(&read(&[b"etc", b"passwd"]), &read(&[b"etc", b"group"]))
}
