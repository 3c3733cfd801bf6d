//! Where a container is written, or any file that must appear whole: a file of the caller's, or a new one
//! that appears under its name complete or not at all.
//!
//! A new file has no name while it is written (`O_TMPFILE`), so a writer that is killed leaves nothing
//! behind. Where the file system cannot do that it is a hidden file beside the final name, removed
//! unless published.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::{FormatError, Part, folder_of, kind_name};

/// A file being written. Unless it is published it leaves no trace.
#[derive(Debug)]
pub struct NewFile {
    /// Open for reading and writing.
    pub file: File,
    target: Option<Target>,
}

/// Where a new file will appear.
#[derive(Debug)]
struct Target {
    folder: File,
    name: OsString,
    /// The file's name until it is published; it has none if the file system allows.
    temporary: Option<OsString>,
}

impl NewFile {
    /// A file of the caller's.
    pub(super) fn given(file: File) -> Self {
        Self { file, target: None }
    }

    /// A new file that is to appear at `path`.
    ///
    /// # Errors
    /// `Usage` if the path names no file, or a device or the like; `Io` if its folder does not exist or
    /// cannot be written to.
    pub fn create(path: &Path) -> Result<Self, FormatError> {
        let fail = |what: &str, errno: Errno| {
            FormatError::io(Part::File, None, &format!("cannot {what} {}", path.display()), errno.into())
        };
        let name = path
            .file_name()
            .ok_or_else(|| FormatError::usage(Part::File, format!("{} is no file name", path.display())))?;
        // A device or a pipe would be replaced, not written to.
        if let Some(kind) =
            std::fs::metadata(path).ok().map(|meta| meta.file_type()).filter(|kind| !kind.is_file())
        {
            let message = format!("{} is {}; name a file", path.display(), kind_name(kind));
            return Err(FormatError::usage(Part::File, message));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, folder_of(path), flags, Mode::empty());
        let folder = File::from(folder.map_err(|errno| fail("open the folder of", errno))?);
        let (file, temporary) = unnamed(&folder)
            .or_else(|_| named(&folder, name))
            .map_err(|errno| fail("create a file beside", errno))?;
        Ok(Self { file, target: Some(Target { folder, name: name.to_owned(), temporary }) })
    }

    /// Makes what was written durable, and visible under its name, in place of what has it.
    ///
    /// # Errors
    /// `Io`: there is no room, or the name cannot be given.
    pub fn publish(mut self) -> Result<(), FormatError> {
        let fail = |what: &str, source| FormatError::io(Part::File, None, what, source);
        self.file.sync_all().map_err(|e| fail("cannot write the file to disk", e))?;
        if let Some(target) = &mut self.target {
            target.publish(&self.file).map_err(|e| fail("cannot give the file its name", e.into()))?;
            target.folder.sync_all().map_err(|e| fail("cannot write the folder to disk", e))?;
        }
        Ok(())
    }
}

impl Target {
    /// Links an unnamed file to its final name if that is free; else goes through a temporary name,
    /// as only a rename replaces a file atomically.
    fn publish(&mut self, file: &File) -> Result<(), Errno> {
        if self.temporary.is_none() {
            match link(file, &self.folder, &self.name) {
                Err(Errno::EXIST) => {}
                done => return done,
            }
            let name = temporary_name(&self.name);
            link(file, &self.folder, &name)?;
            self.temporary = Some(name);
        }
        if let Some(name) = &self.temporary {
            renameat(&self.folder, name, &self.folder, &self.name)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // Nobody is left to tell; the name says what the file is.
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

fn mode() -> Mode {
    Mode::from_raw_mode(0o666)
}

/// A file without a name. Giving it one later takes `/proc`.
fn unnamed(folder: &File) -> Result<(File, Option<OsString>), Errno> {
    if !Path::new("/proc/self/fd").exists() {
        return Err(Errno::OPNOTSUPP);
    }
    let file = openat(folder, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode())?;
    Ok((file.into(), None))
}

fn named(folder: &File, name: &OsStr) -> Result<(File, Option<OsString>), Errno> {
    let name = temporary_name(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(folder, &name, flags, mode())?;
    Ok((file.into(), Some(name)))
}

fn link(file: &File, folder: &File, name: &OsStr) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, folder, name, AtFlags::SYMLINK_FOLLOW)
}

/// A hidden name beside the final one that no other writer uses.
fn temporary_name(name: &OsStr) -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut out = OsString::from(".");
    out.push(name);
    out.push(format!(".{}-{count}.partial", std::process::id()));
    out
}
