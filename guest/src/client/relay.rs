//! A command whose output goes to where writing may block: a pipe, a terminal, a file on a slow disk.

use super::{ClientError, Input, Session, lock};
use crate::protocol::{Exit, Frame, Kind, WINDOW};
use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

/// How long a command may go on after its output could no longer be written.
const CLOSED_GRACE: Duration = Duration::from_secs(5);
/// How long its end may take after it was killed.
const KILLED_GRACE: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;

/// An output that is written in a thread of its own.
struct Output<'a> {
    kind: Kind,
    to: &'a mut (dyn Write + Send),
    /// What waits to be written, bounded by the window.
    pieces: Receiver<Vec<u8>>,
    waiting: &'a Mutex<usize>,
    input: Input,
}

impl Session {
    /// Passes the command's output on until it ends, standard output and standard error for themselves:
    /// one that takes nothing holds up neither the other nor the command's input.
    ///
    /// Where an output cannot be written, the command finds it closed; goes it on for 5 s after that, it is
    /// killed.
    ///
    /// # Errors
    /// As with [`Session::wait`].
    pub fn relay(
        self,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Exit, ClientError> {
        let waiting = [Mutex::new(0), Mutex::new(0)];
        let ((to_stdout, from_stdout), (to_stderr, from_stderr)) = (channel(), channel());
        let input = self.input();
        let output = |kind, to, pieces, waiting| Output { kind, to, pieces, waiting, input: input.clone() };
        let stdout = output(Kind::Stdout, stdout, from_stdout, &waiting[0]);
        let stderr = output(Kind::Stderr, stderr, from_stderr, &waiting[1]);
        scope(|scope| {
            let started = [stdout, stderr].map(|output| Builder::new().spawn_scoped(scope, || output.run()));
            let threads = started.into_iter().collect::<Result<Vec<_>, _>>().map_err(ClientError::Thread)?;
            let ended = self.receive(|kind, bytes| match kind {
                Kind::Stderr => hand_over(bytes, &to_stderr, &waiting[1]),
                _ => hand_over(bytes, &to_stdout, &waiting[0]),
            });
            drop((to_stdout, to_stderr));
            let written = threads.into_iter().map(|thread| thread.join().unwrap_or(Ok(())));
            written.collect::<Result<(), _>>()?;
            ended
        })
    }
}

fn hand_over(bytes: Vec<u8>, to: &Sender<Vec<u8>>, waiting: &Mutex<usize>) -> Result<(), ClientError> {
    let mut waiting = lock(waiting);
    *waiting += bytes.len();
    if *waiting > WINDOW as usize {
        let message = "the agent sent more output than its window has room for";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message).into());
    }
    // The thread goes on until this end is closed.
    let _ = to.send(bytes);
    Ok(())
}

impl Output<'_> {
    /// Writes all that comes.
    fn run(self) -> Result<(), ClientError> {
        while let Ok(bytes) = self.pieces.recv() {
            if let Err(source) = self.to.write_all(&bytes).and_then(|()| self.to.flush()) {
                self.close();
                return Err(ClientError::Output { stderr: self.kind == Kind::Stderr, source });
            }
            *lock(self.waiting) -= bytes.len();
            self.input.took(self.kind, bytes.len());
        }
        Ok(())
    }

    /// Has the command find this output closed, and sees to it that it ends.
    fn close(&self) {
        let _ = self.input.send(&Frame { kind: self.kind, payload: Vec::new() });
        if self.ends_within(CLOSED_GRACE) {
            return;
        }
        let _ = self.input.signal(SIGKILL);
        if !self.ends_within(KILLED_GRACE) {
            let _ = lock(&self.input.0.stream).shutdown(Shutdown::Both);
        }
    }

    /// Drops what still comes, until the command's end or for that long.
    fn ends_within(&self, grace: Duration) -> bool {
        let deadline = Instant::now() + grace;
        loop {
            match self.pieces.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => *lock(self.waiting) -= bytes.len(),
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}
