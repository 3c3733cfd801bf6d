//! Signals to this program while a machine runs.
//!
//! SIGINT, SIGTERM and SIGHUP stop the machine: the stream to it is shut, which the waiting thread sees,
//! and everything is torn down in order. SIGWINCH goes on to the command's terminal.

use crate::error::CliError;
use crate::terminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator;
use smolpack_guest::client::Input;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Catches signals from its making on, so that none is lost between the start of a machine and its first
/// answer.
#[derive(Debug)]
pub struct Signals {
    pending: Mutex<Option<iterator::Signals>>,
    received: Arc<AtomicI32>,
}

impl Signals {
    /// Starts catching.
    ///
    /// # Errors
    /// Where the system refuses a handler.
    pub fn catch() -> Result<Self, CliError> {
        let pending = iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH])
            .map_err(|e| CliError::failed(format!("cannot catch signals: {e}")))?;
        Ok(Self { pending: Mutex::new(Some(pending)), received: Arc::default() })
    }

    /// Acts on signals from now on, those that came before included: shuts `stream`, or resizes the
    /// terminal behind `input`.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub fn watch(&self, stream: UnixStream, input: Option<Input>) -> Result<(), CliError> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(mut pending), received) = (pending, Arc::clone(&self.received)) else { return Ok(()) };
        let act = move || {
            for signal in &mut pending {
                if signal == SIGWINCH {
                    if let (Some(input), Ok(size)) = (&input, terminal::size()) {
                        let _ = input.resize(size);
                    }
                } else {
                    received.store(signal, Ordering::Release);
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(act)
            .map(drop)
            .map_err(|e| CliError::failed(format!("cannot start a thread: {e}")))
    }

    /// The exit status for the signal that stopped the machine, 128 and its number, if one did.
    #[must_use]
    pub fn received(&self) -> Option<u8> {
        let signal = self.received.load(Ordering::Acquire);
        (signal != 0).then(|| 128 + signal as u8)
    }
}
