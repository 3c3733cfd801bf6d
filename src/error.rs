//! Errors at the edge: a message, a hint, and the exit status they stand for.

use smolpack_builder::smolfile::SmolfileError;
use smolpack_format::{Class, FormatError, printable, printable_lines};
use smolpack_registry::{ErrorKind, RegistryError};
use smolpack_runner::chain::chain;
use std::io;
use std::path::Path;

/// Exit status for bad input: a wrong flag, Smolfile, image or artifact.
pub const BAD_INPUT: u8 = 2;

/// Exit status for everything else that went wrong.
pub const FAILED: u8 = 1;

/// Exit status of `boot` for its own failures, so that they differ from the command's.
pub const BOOT_FAILED: u8 = 125;

/// Exit status where the reader of standard output has gone: 128 and the number of SIGPIPE, as a shell says.
pub const READER_GONE: u8 = 128 + 13;

/// The most lines of a message that are printed.
const LINES: usize = 200;

/// What a verb failed with.
#[derive(Debug)]
pub struct CliError {
    /// What failed, on what, and why. May span lines where it shows a place in a file; empty where the
    /// exit status says it all.
    pub message: String,
    /// Whether the message is drawn by ourselves, colours and all, and safe to print as it is.
    pub drawn: bool,
    /// What to do next.
    pub hint: Option<String>,
    /// The process's exit status.
    pub code: u8,
}

impl CliError {
    /// Something outside the input failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), drawn: false, hint: None, code: FAILED }
    }

    /// The input is wrong.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self { message: message.into(), drawn: false, hint: None, code: BAD_INPUT }
    }

    /// The Smolfile is wrong, as a drawing shows.
    #[must_use]
    pub fn smolfile(error: &SmolfileError, colour: bool) -> Self {
        Self { drawn: true, ..Self::bad_input(error.render(colour)) }
    }

    /// The message as it is printed. Lines after the first are set in, so that no text of others passes for a
    /// message of ours.
    #[must_use]
    pub fn shown(&self) -> String {
        let message = self.message.trim_end();
        if self.drawn {
            // The library that draws has dealt with the file's own escapes.
            return message.split('\u{1b}').map(printable_lines).collect::<Vec<_>>().join("\u{1b}");
        }
        let mut lines = message.lines().take(LINES).map(printable);
        let mut shown = lines.next().unwrap_or_default();
        for line in lines {
            shown += if line.starts_with("  ") { "\n" } else { "\n  " };
            shown += &line;
        }
        shown
    }

    /// Standard output cannot be written. Of a reader that has gone nothing is said.
    #[must_use]
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::failed("").code(READER_GONE);
        }
        Self::failed(format!("cannot write to standard output: {error}"))
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the exit status.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl From<RegistryError> for CliError {
    fn from(e: RegistryError) -> Self {
        let is_bad_input = matches!(e.kind, ErrorKind::BadReference | ErrorKind::Corrupt);
        let error = if is_bad_input { Self::bad_input(chain(&e)) } else { Self::failed(chain(&e)) };
        match e.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl CliError {
    /// An artifact cannot be read.
    #[must_use]
    pub fn artifact(path: &Path, error: &FormatError) -> Self {
        let message = format!("{}: {}", path.display(), chain(error));
        match error.class() {
            Class::Io | Class::Usage => Self::failed(message),
            Class::Unsupported => Self::bad_input(message).hint("read it with a newer smolpack"),
            Class::Corrupt => Self::bad_input(message).hint("get the file anew, or build it again"),
            Class::NotSmolmachine => Self::bad_input(message),
        }
    }
}
