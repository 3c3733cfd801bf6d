//! Long tasks, shown on stderr: bars for people at a terminal, lines for logs, events for programs.

use crate::output::{Output, ProgressMode};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use smolpack_builder::progress::Progress;
use smolpack_format::printable;
use std::time::{Duration, Instant};

/// Events of progress come at most this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// What a program that follows a task reads, a line each. Part of the interface: docs/ci.md has it.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'e> {
    /// A phase begins.
    Phase { name: &'e str, total_bytes: Option<u64> },
    /// How far the phase is.
    Progress { name: &'e str, bytes: u64, total_bytes: Option<u64> },
    /// Something a user wants to know.
    Note { text: &'e str },
    /// A line that a set-up command wrote.
    Output { text: &'e str },
    /// A phase has ended.
    Done { name: &'e str, seconds: f64 },
}

/// Progress of a long task.
#[derive(Debug)]
pub struct Bars<'a> {
    out: &'a Output,
    mode: ProgressMode,
    quiet: bool,
    bar: Option<ProgressBar>,
    phase: Option<Phase>,
    timings: Vec<(String, Duration)>,
}

#[derive(Debug)]
struct Phase {
    name: String,
    total: Option<u64>,
    done: u64,
    since: Instant,
    told: Instant,
}

impl<'a> Bars<'a> {
    /// `mode` is not `Auto`; `quiet` shows nothing but events that were asked for.
    pub(crate) fn new(out: &'a Output, mode: ProgressMode, quiet: bool) -> Self {
        Self { out, mode, quiet, bar: None, phase: None, timings: Vec::new() }
    }

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
        let Some(Phase { name, since, .. }) = self.phase.take() else { return };
        let took = since.elapsed();
        if self.mode == ProgressMode::Json {
            self.out.event(&Event::Done { name: &name, seconds: took.as_secs_f64() });
        } else {
            self.out.detail(format_args!("{name} took {:.2} s", took.as_secs_f64()));
        }
        self.timings.push((name, took));
    }
}

impl Bars<'_> {
    fn above_the_bar(&self, say: impl FnOnce(&Output)) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(self.out)),
            None => say(self.out),
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
        let now = Instant::now();
        self.phase = Some(Phase { name: name.to_owned(), total, done: 0, since: now, told: now });
        match self.mode {
            ProgressMode::Json => self.out.event(&Event::Phase { name, total_bytes: total }),
            _ if self.quiet => {}
            ProgressMode::Tty => self.bar = Some(bar(name, total)),
            ProgressMode::Plain | ProgressMode::Auto => self.out.note(name),
        }
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
        let Some(phase) = &mut self.phase else { return };
        phase.done += bytes;
        if self.mode == ProgressMode::Json && phase.told.elapsed() >= EVENT_INTERVAL {
            phase.told = Instant::now();
            let Phase { name, done, total, .. } = &*phase;
            self.out.event(&Event::Progress { name, bytes: *done, total_bytes: *total });
        }
    }

    fn note(&mut self, line: &str) {
        if self.mode == ProgressMode::Json {
            self.out.event(&Event::Note { text: line });
        } else {
            self.above_the_bar(|out| out.note(line));
        }
    }

    fn output(&mut self, line: &str) {
        if self.mode == ProgressMode::Json {
            self.out.event(&Event::Output { text: line });
        } else {
            self.above_the_bar(|out| out.quote(line));
        }
    }
}

fn bar(name: &str, total: Option<u64>) -> ProgressBar {
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
    bar.set_message(printable(name));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
