//! All that the program prints, in one place: data to stdout, everything else to stderr.

use crate::error::CliError;
use crate::limits;
use crate::progress::Bars;
use clap::ValueEnum;
use serde::Serialize;
use smolpack_format::{printable, printable_json, printable_lines};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors alone.
    Quiet,
    /// What a user wants to know.
    Normal,
    /// Timings and choices as well.
    Verbose,
}

/// How long tasks are shown on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// Bars on a terminal, lines elsewhere
    #[default]
    Auto,
    /// Bars
    Tty,
    /// A line for each phase
    Plain,
    /// An event a line, as JSON (docs/ci.md)
    Json,
}

/// The program's voice.
#[derive(Debug)]
pub struct Output {
    json: bool,
    verbosity: Verbosity,
    progress: ProgressMode,
}

impl Output {
    /// Decides once how the program speaks.
    #[must_use]
    pub fn new(json: bool, verbosity: Verbosity, progress: ProgressMode) -> Self {
        Self { json, verbosity, progress }
    }

    /// Whether data is for programs.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// The verb's data: its `Display` as text, or the same as one line of JSON.
    ///
    /// # Errors
    /// Where stdout cannot be written.
    pub fn data<T: Serialize + Display>(&self, value: &T) -> Result<(), CliError> {
        let text = if self.json {
            let json = serde_json::to_string(value);
            printable_json(&json.map_err(|e| CliError::failed(format!("cannot express as JSON: {e}")))?)
        } else {
            printable_lines(&value.to_string())
        };
        Self::bytes(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
    }

    /// Data that is what it is.
    ///
    /// # Errors
    /// Where stdout cannot be written.
    pub fn bytes(bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|e| CliError::output(&e))
    }

    /// A line a user wants to know; not said with `--quiet`.
    pub fn note(&self, line: impl Display) {
        self.say(Verbosity::Normal, &format!("smolpack: {}", printable(&line.to_string())));
    }

    /// A line that a command of the machine wrote; not said with `--quiet`.
    pub fn quote(&self, line: &str) {
        self.say(Verbosity::Normal, &format!("  | {}", printable(line)));
    }

    /// A line for the curious, said with `--verbose`.
    pub fn detail(&self, line: impl Display) {
        self.say(Verbosity::Verbose, &format!("smolpack: {}", printable(&line.to_string())));
    }

    /// An error and its hint; always said.
    pub fn error(&self, error: &CliError) {
        if error.message.is_empty() {
            return;
        }
        self.say(Verbosity::Quiet, &format!("smolpack: {}", error.shown()));
        if let Some(hint) = limits::hint(&error.message).as_ref().or(error.hint.as_ref()) {
            self.say(Verbosity::Quiet, &format!("  try: {}", printable(hint)));
        }
    }

    /// Whether messages may have colour: they go to a terminal that shows it, and nobody asked for none.
    #[must_use]
    pub fn colour() -> bool {
        let unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        io::stderr().is_terminal() && unset("NO_COLOR") && !dumb
    }

    /// What went wrong without being the end of it, whatever the verbosity.
    pub fn complain(line: impl Display) {
        // Nobody is left to tell where stderr is gone.
        let _ = writeln!(io::stderr(), "smolpack: {}", printable(&line.to_string()));
    }

    fn say(&self, level: Verbosity, line: &str) {
        if self.verbosity >= level {
            // Nobody is left to tell where stderr is gone.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// A line for a program that follows a long task, whatever the verbosity.
    pub(crate) fn event(&self, event: &impl Serialize) {
        if let Ok(line) = serde_json::to_string(event) {
            self.say(Verbosity::Quiet, &printable_json(&line));
        }
    }

    /// Follows a long task, in the way the user chose.
    #[must_use]
    pub fn progress(&self) -> Bars<'_> {
        let mode = match self.progress {
            ProgressMode::Auto if io::stderr().is_terminal() => ProgressMode::Tty,
            ProgressMode::Auto => ProgressMode::Plain,
            chosen => chosen,
        };
        Bars::new(self, mode, self.verbosity == Verbosity::Quiet)
    }
}
