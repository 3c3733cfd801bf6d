//! A machine that a build boots for itself: for set-up commands, or to be captured.

use smolpack_format::{Artifact, FormatError};
use smolpack_guest::client::{self, ClientError as AgentError};
use smolpack_guest::protocol::{AGENT_PORT, Request};
use smolpack_runner::client::{ClientError, Runner, RunnerProgram};
use smolpack_runner::console::last_lines;
use smolpack_runner::control::{Launch, Start};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Lines of the console that are told with a failure.
const CONSOLE_LINES: usize = 12;

/// How long a machine may take to be over after its stream broke.
const END_GRACE: Duration = Duration::from_secs(1);

/// How a build boots machines.
#[derive(Clone, Copy, Debug)]
pub struct MachineOptions<'a> {
    /// The runner.
    pub runner: &'a RunnerProgram,
    /// How long the agent may take to answer.
    pub timeout: Duration,
}

/// A machine that runs on KVM.
#[derive(Debug)]
pub(super) struct Machine {
    runner: Runner,
    console: File,
    timeout: Duration,
}

impl Machine {
    /// Starts a runner, which waits to be told what to run.
    pub(super) fn new(options: &MachineOptions<'_>) -> Result<Self, MachineFailure> {
        let console = tempfile::tempfile()?;
        Ok(Self { runner: options.runner.spawn()?, console, timeout: options.timeout })
    }

    /// Boots the artifact in `cold`, with these words more for its kernel, and waits for its agent.
    pub(super) fn boot(&self, cold: &File, words: &str) -> Result<(), MachineFailure> {
        let artifact = Artifact::from_file(cold.try_clone()?)?;
        let mut launch = Launch::new(Start::Cold, artifact.manifest());
        if !words.is_empty() {
            launch.cmdline.push(' ');
            launch.cmdline.push_str(words);
        }
        self.runner.launch(launch, cold, &self.console)?;
        self.ask(&Request::Ping)
    }

    /// A stream to the agent.
    pub(super) fn connect(&self) -> Result<UnixStream, MachineFailure> {
        Ok(self.runner.connect(AGENT_PORT)?)
    }

    /// Asks for what is answered once, within the time that the agent has.
    pub(super) fn ask(&self, request: &Request) -> Result<(), MachineFailure> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(self.timeout))?;
        client::ask(stream, request).map_err(|e| self.explain(e))
    }

    /// Why the agent did not answer: a stream breaks when its machine ends, and that is the news.
    pub(super) fn explain(&self, error: AgentError) -> MachineFailure {
        match error {
            AgentError::Stream(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                MachineFailure::Timeout(self.timeout)
            }
            AgentError::Stream(e) => match self.runner.ended_within(END_GRACE) {
                Ok(Some(ended)) => ClientError::Ended(ended).into(),
                Ok(None) | Err(ClientError::Talk(_)) => AgentError::Stream(e).into(),
                Err(other) => other.into(),
            },
            e => e.into(),
        }
    }

    /// How long the agent may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Writes a snapshot to `into`, an empty file; the machine is over after this.
    pub(super) fn snapshot(&self, into: &File) -> Result<(), MachineFailure> {
        Ok(self.runner.snapshot(into)?)
    }

    /// The last lines of its console, under a heading.
    pub(super) fn console(&self) -> String {
        last_lines(&self.console, CONSOLE_LINES)
    }
}

/// Why a machine of the build did not do what it was booted for.
#[derive(Debug, thiserror::Error)]
pub enum MachineFailure {
    /// The runner says why.
    #[error(transparent)]
    Runner(#[from] ClientError),
    /// The agent says why.
    #[error("{0}")]
    Agent(#[from] AgentError),
    /// The machine did not come up.
    #[error("its agent did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The artifact just written.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl MachineFailure {
    /// What to do about it, where that is known.
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Runner(e) => e.hint().map(str::to_owned),
            _ => None,
        }
    }
}
