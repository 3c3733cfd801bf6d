//! Files that appear under their names when they are whole, or not at all.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Has `fill` write a file, and puts it at `path`, replacing what is there.
///
/// # Errors
/// What `fill` says, or the file system; `path` is then as it was.
pub fn publish<E: From<io::Error>>(path: &Path, fill: impl FnOnce(&File) -> Result<(), E>) -> Result<(), E> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::Builder::new()
        .prefix(".smolpack-")
        .permissions(Permissions::from_mode(0o666)) // less the umask
        .tempfile_in(folder)?;
    fill(file.as_file())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The name too is to survive a power cut.
    Ok(File::open(folder)?.sync_all()?)
}

/// Puts a line of text at `path`.
///
/// # Errors
/// As [`publish`].
pub fn line(path: &Path, text: &str) -> io::Result<()> {
    publish(path, |mut file| writeln!(file, "{text}"))
}
