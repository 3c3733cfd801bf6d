//! The end of a console log, for error messages.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// How much of the log is looked at, bytes.
const TAIL: u64 = 4096;

/// The last `count` lines of a console log, each behind a bar and a line end, under a heading; nothing
/// where the log is empty or cannot be read.
#[must_use]
pub fn last_lines(log: &File, count: usize) -> String {
    // What is no file, a terminal say, has shown them already.
    let length = log.metadata().map_or(0, |meta| if meta.is_file() { meta.len() } else { 0 });
    let start = length.saturating_sub(TAIL);
    let mut bytes = vec![0; (length - start) as usize];
    if length == 0 || log.read_exact_at(&mut bytes, start).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(count)..];
    format!("\nits console ended with:\n  | {}", last.join("\n  | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_last_lines_come_under_a_heading_and_an_empty_log_says_nothing() {
        let mut log = tempfile::tempfile().unwrap();
        assert_eq!(last_lines(&log, 2), "");
        log.write_all(b"one\r\ntwo\r\nthree\r\n").unwrap();
        assert_eq!(last_lines(&log, 2), "\nits console ended with:\n  | two\n  | three");
    }
}
