//! The artifact that a machine runs from: opened once, and looked at again when something went wrong.

use crate::error::CliError;
use smolpack_format::{Artifact, open_file};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// An artifact's file as it was when it was opened. A machine maps its memory from there, so it must stay
/// as it is; a new file under the same name does no harm.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
    artifact: Artifact,
    before: (u64, Option<SystemTime>),
}

impl Source {
    /// Opens an artifact.
    ///
    /// # Errors
    /// It cannot be opened, or is none.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let unreadable = |e: io::Error| CliError::failed(format!("cannot open {}: {e}", path.display()));
        let file = open_file(path).map_err(unreadable)?;
        let before = stamp(&file.metadata().map_err(unreadable)?);
        let artifact = Artifact::from_file(file.try_clone().map_err(unreadable)?)
            .map_err(|e| CliError::artifact(path, &e))?;
        Ok(Self { path: path.to_owned(), file, artifact, before })
    }

    /// What the user calls it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What is in it.
    #[must_use]
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// What happened to the file since it was opened, if anything did.
    #[must_use]
    pub fn change(&self) -> Option<String> {
        let path = self.path.display();
        let now = match self.file.metadata() {
            Ok(metadata) => stamp(&metadata),
            Err(e) => return Some(format!("{path} cannot be looked at any more: {e}")),
        };
        let (was, is) = (self.before.0, now.0);
        match () {
            () if now == self.before => None,
            () if was > is => {
                Some(format!("{path} was truncated while the machine ran: it had {was} bytes, now {is}"))
            }
            () => Some(format!("{path} was overwritten while the machine ran")),
        }
    }
}

fn stamp(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}
