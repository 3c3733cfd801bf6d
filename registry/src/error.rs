//! Errors of registries: what failed, where, and what to do about it.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// What sort of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The text is no reference.
    BadReference,
    /// There is no such repository, tag, manifest or blob.
    NotFound,
    /// The registry wants other credentials.
    Unauthorized,
    /// The registry or the way to it failed.
    Network,
    /// Data that breaks its own rules.
    Corrupt,
    /// Data that is not what its digest says.
    DigestMismatch,
    /// A bound was passed.
    Limit,
    /// The operating system reported an error.
    Io,
}

/// Why a registry did not do what was asked. Displays as `PLACE: WHAT`; [`RegistryError::hint`] says what to do.
#[derive(Debug)]
pub struct RegistryError {
    /// The sort of error.
    pub kind: ErrorKind,
    /// The reference, blob or file.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What the user can do about it, where there is something to say.
    pub hint: Option<String>,
    /// What the operating system said.
    pub source: Option<io::Error>,
}

impl RegistryError {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { kind, place: place.into(), what: what.into(), hint: None, source: None }
    }

    /// A failed operation on a local file; `doing` reads "cannot open", "cannot read" and the like.
    #[must_use]
    pub fn io(path: &Path, doing: &str, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::new(ErrorKind::Io, path.display().to_string(), doing) }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl Error for RegistryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e as &(dyn Error + 'static))
    }
}
