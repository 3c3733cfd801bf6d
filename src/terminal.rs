//! The user's terminal: its size, and raw mode.

use crate::error::CliError;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use smolpack_guest::protocol::WindowSize;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The size of the terminal on standard output.
///
/// # Errors
/// Where it is no terminal.
pub fn size() -> Result<WindowSize, CliError> {
    let size = tcgetwinsize(io::stdout()).map_err(|e| failed("ask for its size", e))?;
    Ok(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// The terminal's settings while it is in raw mode.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Raw mode: every key goes to the machine as it is, Ctrl-C too. Dropping it restores the terminal.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Switches the terminal on standard input to raw mode.
    ///
    /// # Errors
    /// Where it is no terminal.
    pub fn enter() -> Result<Self, CliError> {
        let before = tcgetattr(io::stdin()).map_err(|e| failed("read its settings", e))?;
        let mut raw = before.clone();
        raw.make_raw();
        *saved() = Some(before);
        let entered = Self(());
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(|e| failed("switch it to raw mode", e))?;
        Ok(entered)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was before raw mode, where it is in that.
pub fn restore() {
    if let Some(before) = saved().take() {
        // A terminal that has gone away needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

fn saved() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(doing: &str, error: rustix::io::Errno) -> CliError {
    CliError::failed(format!("the terminal: cannot {doing}: {error}"))
}
