//! Waits for every child: those of an exec, whose status somebody wants, and orphans.
//!
//! One thread reaps. It only peeks (`WNOWAIT`) until it holds the table's lock, which a spawn holds
//! from fork to registration; so no status is lost, and none is taken from a spawn that failed.

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};
use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::Exit;

type Table = HashMap<u32, Sender<Exit>>;

/// Reaps children and hands out their statuses.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    shared: Arc<(Mutex<Table>, Condvar)>,
}

impl Reaper {
    /// Starts the thread that reaps. One a process: it takes every child.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let reaper = Self::default();
        let own = reaper.clone();
        std::thread::Builder::new().name("reaper".into()).stack_size(64 << 10).spawn(move || own.run())?;
        Ok(reaper)
    }

    /// Starts a command; its end arrives through the receiver.
    ///
    /// # Errors
    /// Those of `Command::spawn`.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, Receiver<Exit>)> {
        let mut table = self.table();
        let child = command.spawn()?;
        let (sender, receiver) = channel();
        table.insert(child.id(), sender);
        self.shared.1.notify_one();
        Ok((child, receiver))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            match ended_child() {
                Ok(pid) => self.reap(pid),
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => self.wait_for_a_child(),
                Err(_) => {}
            }
        }
    }

    /// Without children there are no orphans to come either, so only a spawn ends this.
    fn wait_for_a_child(&self) {
        let mut table = self.table();
        while table.is_empty() {
            table = self.shared.1.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn reap(&self, pid: i32) {
        let mut table = self.table();
        let Some(child) = Pid::from_raw(pid) else { return };
        // Gone already where it was a spawn that failed, which std waits for itself.
        let Ok(Some(status)) = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
        else {
            return;
        };
        if let Some(waiting) = table.remove(&pid.unsigned_abs()) {
            // Nobody waits any more where the stream has gone.
            let _ = waiting.send(exit(&status));
        }
    }
}

/// Waits until some child has ended, and leaves it as it is. (rustix does not tell which child.)
fn ended_child() -> io::Result<i32> {
    // SAFETY: all-zero is a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` outlives the call, which writes it.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a successful waitid fills in the fields of SIGCHLD.
    Ok(unsafe { info.si_pid() })
}

fn exit(status: &WaitIdStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code as u8),
        (_, Some(signal)) => Exit::Signal(signal),
        _ => Exit::Signal(0),
    }
}
