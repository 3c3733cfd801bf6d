//! Opening what a user names: a path may lead to anything, and opening or reading some of it never ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

/// How long a pipe may keep its reader waiting: whoever writes a text writes it at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a regular file for reading, and never waits for somebody to write it.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind => Err(wrong_kind(kind)),
    }
}

/// Reads a text: a regular file of at most `limit` bytes, or as much from a pipe, such as `<(command)` of a
/// shell.
///
/// # Errors
/// It cannot be opened or read, is neither file nor pipe or too long, or a pipe is silent for 10 s.
pub fn read_text_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let kind = file.metadata()?.file_type();
    let mut bytes = Vec::new();
    if kind.is_file() {
        (&file).take(limit + 1).read_to_end(&mut bytes)?;
    } else if kind.is_fifo() {
        Patient(&file).take(limit + 1).read_to_end(&mut bytes)?;
    } else {
        return Err(wrong_kind(kind));
    }
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {limit} bytes")));
    }
    Ok(bytes)
}

/// The folder that a path's last part lies in.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What a file is called that is not regular.
#[must_use]
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        kind if kind.is_symlink() => "a symbolic link",
        _ => "a regular file",
    }
}

/// Does not wait, as an ordinary open of a named pipe or of some devices does.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

fn wrong_kind(kind: FileType) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("it is {}, not a file", kind_name(kind)))
}

/// A pipe whose writer has [`PATIENCE`] for each piece.
struct Patient<'a>(&'a File);

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A pipe that nobody has opened for writing yet reads as ended; poll waits for somebody.
        let patience = Timespec::try_from(PATIENCE).ok();
        let mut fds = [PollFd::new(self.0, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut fds, patience.as_ref()))? == 0 {
            let message = format!("nothing was written to it for {} s", PATIENCE.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, message));
        }
        self.0.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkfifoat;
    use std::io::Write;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, expected) in [
            (pipe.as_path(), "a named pipe"),
            (folder.path(), "a folder"),
            (Path::new("/dev/zero"), "a device"),
            (&socket, "No such device"),
            (Path::new("no-such-file"), "No such file"),
        ] {
            let said = open_file(path).unwrap_err().to_string();
            assert!(said.contains(expected), "{}: {said}", path.display());
        }
        assert!(read_text_file(Path::new("/dev/zero"), 10).is_err());
        let file = folder.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_text_file(&file, 10).unwrap(), b"0123456789");
        assert_eq!(read_text_file(&file, 9).unwrap_err().kind(), ErrorKind::FileTooLarge);
        open_file(&file).unwrap();
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
        let writer = pipe.clone();
        std::thread::spawn(move || {
            let mut file = std::fs::OpenOptions::new().write(true).open(writer).unwrap();
            for _ in 0..3 {
                file.write_all(b"some ").unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(read_text_file(&pipe, 100).unwrap(), b"some some some ");
    }
}
