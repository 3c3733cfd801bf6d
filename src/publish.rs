//! Files that appear under their names when they are whole, or not at all.

use smolpack_format::NewFile;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Has `fill` write a file, and puts it at `path`, replacing what is there.
///
/// # Errors
/// What `fill` says, or the file system; `path` is then as it was.
pub fn publish<E: From<io::Error>>(path: &Path, fill: impl FnOnce(&File) -> Result<(), E>) -> Result<(), E> {
    let new = NewFile::create(path).map_err(io::Error::from)?;
    fill(&new.file)?;
    Ok(new.publish().map_err(io::Error::from)?)
}

/// Puts a line of text at `path`.
///
/// # Errors
/// As [`publish`].
pub fn line(path: &Path, text: &str) -> io::Result<()> {
    publish(path, |mut file| writeln!(file, "{text}"))
}
