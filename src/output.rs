//! All that the program prints, in one place: data to stdout, everything else to stderr.

use crate::error::CliError;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use smolpack_builder::progress::Progress;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

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

/// The program's voice.
#[derive(Debug)]
pub struct Output {
    json: bool,
    verbosity: Verbosity,
}

impl Output {
    /// Decides once how the program speaks.
    #[must_use]
    pub fn new(json: bool, verbosity: Verbosity) -> Self {
        Self { json, verbosity }
    }

    /// The verb's data: its `Display` as text, or the same as one line of JSON.
    ///
    /// # Errors
    /// Where stdout cannot be written. A reader that has gone is no error.
    pub fn data<T: Serialize + Display>(&self, value: &T) -> Result<(), CliError> {
        let text = if self.json {
            serde_json::to_string(value)
                .map_err(|e| CliError::failed(format!("cannot express as JSON: {e}")))?
        } else {
            value.to_string()
        };
        match writeln!(io::stdout(), "{}", text.trim_end_matches('\n')) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::failed(format!("cannot write to stdout: {e}")))
            }
            _ => Ok(()),
        }
    }

    /// A line a user wants to know; not said with `--quiet`.
    pub fn note(&self, line: impl Display) {
        self.say(Verbosity::Normal, &format!("smolpack: {line}"));
    }

    /// A line for the curious, said with `--verbose`.
    pub fn detail(&self, line: impl Display) {
        self.say(Verbosity::Verbose, &format!("smolpack: {line}"));
    }

    /// An error and its hint; always said.
    pub fn error(&self, error: &CliError) {
        self.say(Verbosity::Quiet, &format!("smolpack: {}", error.message.trim_end()));
        if let Some(hint) = &error.hint {
            self.say(Verbosity::Quiet, &format!("  try: {hint}"));
        }
    }

    /// Whether messages may have colour: they go to a terminal that shows it, and nobody asked for none.
    #[must_use]
    pub fn colour() -> bool {
        let unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        io::stderr().is_terminal() && unset("NO_COLOR") && !dumb
    }

    /// Why a machine could not start the user's command, said as a shell would: the status says the rest.
    pub fn command_failed(message: &str) {
        let _ = writeln!(io::stderr(), "smolpack: {message}");
    }

    fn say(&self, level: Verbosity, line: &str) {
        if self.verbosity >= level {
            // Nobody is left to tell where stderr is gone.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// Shows a long task: bars on a terminal, a line for each phase elsewhere, nothing when quiet.
    #[must_use]
    pub fn progress(&self) -> Bars<'_> {
        Bars { out: self, bar: None, phase: None, timings: Vec::new() }
    }
}

/// Progress of a long task on stderr.
#[derive(Debug)]
pub struct Bars<'a> {
    out: &'a Output,
    bar: Option<ProgressBar>,
    phase: Option<(String, Instant)>,
    timings: Vec<(String, Duration)>,
}

impl Bars<'_> {
    /// Ends the last phase and gives every phase's time, in order.
    #[must_use]
    pub fn finish(mut self) -> Vec<(String, Duration)> {
        self.end_phase();
        std::mem::take(&mut self.timings)
    }

    fn end_phase(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if let Some((name, since)) = self.phase.take() {
            self.out.detail(format_args!("{name} took {:.2} s", since.elapsed().as_secs_f64()));
            self.timings.push((name, since.elapsed()));
        }
    }
}

impl Drop for Bars<'_> {
    fn drop(&mut self) {
        self.end_phase();
    }
}

impl Progress for Bars<'_> {
    fn phase(&mut self, name: &str, total: Option<u64>) {
        self.end_phase();
        self.phase = Some((name.to_owned(), Instant::now()));
        if self.out.verbosity == Verbosity::Quiet {
            return;
        }
        if io::stderr().is_terminal() {
            let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            let template = if total.is_some() {
                "{msg:>12} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}"
            } else {
                "{msg:>12} {spinner} {elapsed}"
            };
            // The templates are constants; were one wrong, the default style would do.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(250));
            self.bar = Some(bar);
        } else {
            self.out.note(name);
        }
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn note(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.out.note(line)),
            None => self.out.note(line),
        }
    }
}
