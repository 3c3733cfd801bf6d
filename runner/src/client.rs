//! Starting a runner process and talking to it.
//!
//! The program comes out of memory (embedded in the caller) or from a path. It gets a process group of
//! its own, so that Ctrl-C in a terminal reaches the caller only, which then decides; it ends by itself
//! when the caller's end of the control socket closes, however the caller dies. (A parent-death signal
//! would not do: the kernel sends it when the thread that started the process ends.)

use crate::control::{Ended, Event, Failed, Launch, Request, Started};
use crate::ipc::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where the runner's program is.
#[derive(Clone, Debug)]
pub enum RunnerProgram {
    /// In memory.
    Embedded(&'static [u8]),
    /// In a file.
    Path(PathBuf),
}

/// A runner process, before or while it runs a machine. Dropping it ends both and leaves no zombie.
#[derive(Debug)]
pub struct Runner {
    channel: Channel,
    pid: u32,
    /// To be ended and waited for; none once it has been let go.
    child: Option<Child>,
}

/// Why the runner did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The program could not be started.
    #[error("cannot start the runner")]
    Spawn(#[source] io::Error),
    /// The control socket broke.
    #[error("cannot talk to the runner")]
    Talk(#[source] io::Error),
    /// What the artifact says of the machine is longer than any machine needs.
    #[error("the machine's settings are too long for the runner")]
    TooLong(#[source] io::Error),
    /// The runner says why it cannot go on.
    #[error("{}", .0.message)]
    Failed(Failed),
    /// The machine ended before it did what was asked.
    #[error("the machine ended ({0:?}) before it was done")]
    Ended(Ended),
    /// The runner vanished.
    #[error("the runner ended without a word; it was killed, or this is a defect in it")]
    Vanished,
    /// The runner said something it should not have.
    #[error("the runner answered out of turn: {0}")]
    OutOfTurn(String),
}

impl ClientError {
    /// What the user can do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Failed(failed) => failed.hint.as_deref(),
            _ => None,
        }
    }
}

impl RunnerProgram {
    /// Starts a runner process; it waits to be told what to run.
    ///
    /// # Errors
    /// The program is missing, or the host gives no process.
    pub fn spawn(&self) -> Result<Runner, ClientError> {
        self.try_spawn().map_err(ClientError::Spawn)
    }

    fn try_spawn(&self) -> io::Result<Runner> {
        let (channel, theirs) = Channel::pair()?;
        // Kept until the program has been started from it.
        let (_memory, path) = match self {
            Self::Path(path) => (None, path.clone()),
            Self::Embedded(bytes) => {
                let memory = in_memory(bytes)?;
                let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
                (Some(memory), path.into())
            }
        };
        let mut command = Command::new(path);
        command
            .arg0("smolpack-runner")
            .env_clear()
            .envs(std::env::var_os("TMPDIR").map(|folder| ("TMPDIR", folder)))
            .stdin(OwnedFd::from(theirs)) // which is `CONTROL_FD`
            .stdout(Stdio::null())
            .process_group(0);
        let child = command.spawn()?;
        Ok(Runner { channel, pid: child.id(), child: Some(child) })
    }
}

/// A copy of the program in memory, to be executed.
fn in_memory(program: &[u8]) -> io::Result<File> {
    // Hosts that forbid executing such files by default want it said; older kernels do not know the flag.
    let flags = MemfdFlags::CLOEXEC;
    let fd = memfd_create("smolpack-runner", flags | MemfdFlags::EXEC)
        .or_else(|_| memfd_create("smolpack-runner", flags))?;
    let mut file = File::from(fd);
    file.write_all(program)?;
    Ok(file)
}

impl Runner {
    /// Starts the machine and waits until its CPUs run.
    ///
    /// # Errors
    /// [`ClientError::Failed`] says what is wrong with the artifact, the host or the request.
    pub fn launch(&self, launch: Launch, artifact: &File, console: &File) -> Result<Started, ClientError> {
        self.send(&Request::Launch(launch), &[artifact.as_fd(), console.as_fd()])?;
        match self.event()? {
            Event::Started(started) => Ok(started),
            other => Err(unexpected(other)),
        }
    }

    /// Opens a stream to a vsock port in the guest; it reads as closed where the guest refuses.
    ///
    /// # Errors
    /// The runner is gone.
    pub fn connect(&self, port: u32) -> Result<UnixStream, ClientError> {
        let (ours, theirs) = UnixStream::pair().map_err(ClientError::Talk)?;
        self.send(&Request::Connect { port }, &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Writes a snapshot into an empty file, which must be open for reading and writing. The machine is
    /// over after this.
    ///
    /// # Errors
    /// The machine ended first, or the snapshot cannot be written.
    pub fn snapshot(&self, file: &File) -> Result<(), ClientError> {
        self.send(&Request::Snapshot, &[file.as_fd()])?;
        match self.event()? {
            Event::SnapshotTaken => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for the machine's end; [`Runner::wait`] says when it came.
    ///
    /// # Errors
    /// The runner is gone already.
    pub fn kill(&self) -> Result<(), ClientError> {
        self.send(&Request::Kill, &[])
    }

    /// Waits for the machine's end.
    ///
    /// # Errors
    /// It cannot go on, and why.
    pub fn wait(&self) -> Result<Ended, ClientError> {
        match self.event()? {
            Event::Ended(ended) => Ok(ended),
            other => Err(unexpected(other)),
        }
    }

    /// Waits for the machine's end, but no longer than that; `None` where it lives on.
    ///
    /// # Errors
    /// As [`Runner::wait`].
    pub fn ended_within(&self, limit: Duration) -> Result<Option<Ended>, ClientError> {
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        let found = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()));
        match found.map_err(|e| ClientError::Talk(e.into()))? {
            0 => Ok(None),
            _ => self.wait().map(Some),
        }
    }

    /// Lets go without waiting: the runner ends by itself, as it does when this process dies. For callers
    /// about to exit; taking the VM apart takes the kernel some ten milliseconds.
    pub fn abandon(mut self) {
        self.child = None;
    }

    /// The runner's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        match self.channel.send(request, fds) {
            // It may have said why before it went.
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(self.event().map_or_else(|e| e, unexpected))
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Err(ClientError::TooLong(e)),
            sent => sent.map_err(ClientError::Talk),
        }
    }

    fn event(&self) -> Result<Event, ClientError> {
        let received = self.channel.receive().map_err(ClientError::Talk)?;
        received.map(|(event, _)| event).ok_or(ClientError::Vanished)
    }
}

/// The control socket: readable when the machine ended. For callers that wait for several things.
impl AsFd for Runner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only where the process is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn unexpected(event: Event) -> ClientError {
    match event {
        Event::Failed(failed) => ClientError::Failed(failed),
        Event::Ended(ended) => ClientError::Ended(ended),
        other => ClientError::OutOfTurn(format!("{other:?}")),
    }
}
