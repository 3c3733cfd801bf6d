//! Signals to this program while a machine runs.
//!
//! SIGINT, SIGTERM and SIGHUP end the program whatever it waits for, unless they were ignored at its start,
//! as nohup and the shell's `&` do. The machine goes with it: the runner ends when the control socket does.
//! SIGWINCH goes on to the command's terminal.

use crate::error::CliError;
use crate::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use smolpack_guest::client::Input;
use std::os::raw::c_int;
use std::process::exit;

/// Has the signals that end a program end this one from now on: with the terminal as it was, and with 128
/// and the signal's number as exit status.
///
/// # Errors
/// The system refuses a handler or a thread.
pub fn catch() -> Result<(), CliError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let heeded: Vec<c_int> =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(&status, signal)).collect();
    on_each(&heeded, |signal| {
        terminal::restore();
        exit(128 + signal);
    })
}

/// Tells the command of each new size of the terminal.
///
/// # Errors
/// The system refuses a handler or a thread.
pub fn pass_resizes_on(input: Input) -> Result<(), CliError> {
    on_each(&[SIGWINCH], move |_| {
        if let Ok(size) = terminal::size() {
            // A machine that is gone shows where its output is read.
            let _ = input.resize(size);
        }
    })
}

fn on_each(signals: &[c_int], act: impl Fn(c_int) + Send + 'static) -> Result<(), CliError> {
    let mut signals =
        Signals::new(signals).map_err(|e| CliError::failed(format!("cannot catch signals: {e}")))?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.forever().for_each(act))
        .map(drop)
        .map_err(|e| CliError::failed(format!("cannot start a thread: {e}")))
}

/// What `/proc/self/status` says of a signal (`SigIgn` in proc(5), a mask in hexadecimal).
fn is_ignored(status: &str, signal: c_int) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_told_by_their_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
    }
}
