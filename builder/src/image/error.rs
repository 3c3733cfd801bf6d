//! What can go wrong between a name and a tree: a kind for the exit code, the place, and what to do.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// The sort of an [`ImageError`]; stable, for exit codes and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing is there: no such path, repository, tag or blob.
    NotFound,
    /// Something is there, but it is no image.
    NotAnImage,
    /// The name is neither a path nor a registry reference.
    BadReference,
    /// The image exists, but not for this platform or tag, or several fit.
    NoMatch,
    /// Data that breaks its own rules: a damaged tar, bad JSON, a truncated archive.
    Corrupt,
    /// Data that is not what its digest says.
    DigestMismatch,
    /// Data in a form that smolpack does not read.
    Unsupported,
    /// A bound on entries, sizes or depth was passed.
    Limit,
    /// The registry wants other credentials.
    Unauthorized,
    /// The registry or the way to it failed.
    Network,
    /// The operating system reported an error on a local file.
    Io,
}

/// Why an image could not be had. Displays as `PLACE: WHAT`; [`ImageError::hint`] says what to do.
#[derive(Debug)]
pub struct ImageError {
    kind: ErrorKind,
    place: String,
    what: String,
    hint: Option<String>,
    source: Option<io::Error>,
}

impl ImageError {
    pub(super) fn new(kind: ErrorKind, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { kind, place: place.into(), what: what.into(), hint: None, source: None }
    }

    /// A failed operation on a local file; `doing` reads "cannot open", "cannot read" and the like.
    pub(super) fn io(path: &Path, doing: &str, source: io::Error) -> Self {
        Self::io_at(path.display().to_string(), doing, source)
    }

    /// As [`ImageError::io`], where the place is more than a path.
    pub(super) fn io_at(place: impl Into<String>, doing: &str, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        let hint = match source.kind() {
            io::ErrorKind::StorageFull => Some("free some space, or name another cache folder".to_owned()),
            io::ErrorKind::PermissionDenied => Some("run as a user who may read it".to_owned()),
            _ => None,
        };
        Self { kind, place: place.into(), what: doing.to_owned(), hint, source: Some(source) }
    }

    pub(super) fn corrupt(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, place, what)
    }

    pub(super) fn unsupported(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, place, what)
    }

    pub(super) fn limit(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, place, what)
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn with_source(self, source: Option<io::Error>) -> Self {
        Self { source, ..self }
    }

    /// The sort of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the user can do about it, where there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl Error for ImageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|e| e as &(dyn Error + 'static))
    }
}

/// A name from an archive for a message: readable, on one line, at most 200 characters.
pub(super) fn show(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name).escape_debug().to_string();
    if text.chars().count() <= 200 {
        return text;
    }
    text.chars().take(200).chain("...".chars()).collect()
}
