//! Waits for every child: those of an exec, whose status somebody wants, and orphans.
//!
//! One thread reaps. It only peeks (`WNOWAIT`) until it holds the table's lock, which a spawn holds
//! from fork to registration; so no status is lost, and none is taken from a spawn that failed. Signals
//! are sent under the same lock, so none can hit a process that inherited the number of one reaped.

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, pidfd_open, waitid,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::Exit;

type Table = HashMap<Pid, Sender<Exit>>;

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

    /// Starts a command, which should lead a process group of its own.
    ///
    /// # Errors
    /// Those of `Command::spawn`.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut table = self.table();
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (sender, status) = channel();
        table.insert(pid, sender);
        self.shared.1.notify_one();
        // Not reaped while the table is locked, so the number is still this child's.
        let ended = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = kill_process(pid, Signal::KILL);
        })?;
        Ok(Child { pid, ended, status, reaper: self.clone() })
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
        if let Some(waiting) = table.remove(&child) {
            // Nobody waits any more where the stream has gone.
            let _ = waiting.send(exit(&status));
        }
    }
}

/// A started command, leader of its process group.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    ended: OwnedFd,
    status: Receiver<Exit>,
    reaper: Reaper,
}

impl Child {
    /// A descriptor that becomes readable when the command has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for the end. The status can be had once.
    ///
    /// # Errors
    /// It was had before.
    pub fn wait(&self) -> io::Result<Exit> {
        self.status.recv().map_err(|_| io::Error::other("the command's status was taken before"))
    }

    /// Sends signal `number` to the command's process group. One that has ended, and a number that is
    /// no signal, are passed over: there is nothing the command could be told.
    pub fn signal_group(&self, number: i32) {
        let table = self.reaper.table();
        if table.contains_key(&self.pid) {
            // SAFETY: no memory is involved; the kernel checks the number.
            unsafe { libc::kill(-self.pid.as_raw_nonzero().get(), number) };
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
