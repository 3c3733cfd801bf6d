//! Where a set-up command's output goes: the progress, line by line, and the step's log.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};

use crate::image::StepDraft;
use crate::progress::Progress;

/// Lines that are told with a failure.
const LAST_LINES: usize = 12;
/// A line that grows longer is told in pieces, bytes.
const LONGEST_LINE: usize = 4096;

/// What standard output and standard error share.
pub(super) struct Transcript<'a> {
    progress: &'a mut dyn Progress,
    pub(super) log: StepDraft,
    /// Why the log could not be written on; the command is not to suffer from it.
    pub(super) failed: Option<io::Error>,
    last: VecDeque<String>,
}

impl<'a> Transcript<'a> {
    pub(super) fn new(progress: &'a mut dyn Progress, log: StepDraft) -> Self {
        Self { progress, log, failed: None, last: VecDeque::new() }
    }

    /// The last lines, each behind a bar and a line end.
    pub(super) fn last_lines(&self) -> String {
        self.last.iter().flat_map(|line| ["\n  | ", line.as_str()]).collect()
    }

    fn line(&mut self, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        self.progress.output(line);
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }
}

/// One of a command's two outputs.
pub(super) struct Lines<'t, 'a> {
    transcript: &'t RefCell<Transcript<'a>>,
    /// The beginning of a line.
    begun: Vec<u8>,
}

impl<'t, 'a> Lines<'t, 'a> {
    pub(super) fn new(transcript: &'t RefCell<Transcript<'a>>) -> Self {
        Self { transcript, begun: Vec::new() }
    }
}

impl Write for Lines<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut transcript = self.transcript.borrow_mut();
        if let Err(e) = transcript.log.write_all(bytes) {
            transcript.failed.get_or_insert(e);
        }
        self.begun.extend_from_slice(bytes);
        let mut done = 0;
        for line in self.begun.split_inclusive(|byte| *byte == b'\n') {
            if line.ends_with(b"\n") || line.len() >= LONGEST_LINE {
                transcript.line(line);
                done += line.len();
            }
        }
        self.begun.drain(..done);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lines<'_, '_> {
    /// A last line without its end.
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            self.transcript.borrow_mut().line(&self.begun);
        }
    }
}
