//! The snapshot of a new machine: boot it, wait for its agent, quiesce, capture.

use smolpack_format::Artifact;
use smolpack_guest::client::{self, ClientError as AgentError};
use smolpack_guest::protocol::{AGENT_PORT, Exec, Request};
use smolpack_runner::client::{ClientError, Runner, RunnerProgram};
use smolpack_runner::console::last_lines;
use smolpack_runner::control::{Launch, Start};
use std::fs::File;
use std::time::Duration;

use super::BuildError;
use crate::progress::Progress;

/// How to boot a machine for its snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOptions<'a> {
    /// The runner.
    pub runner: &'a RunnerProgram,
    /// How long the agent may take to answer.
    pub timeout: Duration,
}

impl SnapshotOptions<'_> {
    /// Boots the artifact in `cold` and writes its snapshot to `into`, an empty file.
    pub(super) fn take(
        &self,
        cold: &File,
        into: File,
        progress: &mut dyn Progress,
    ) -> Result<Artifact, BuildError> {
        let console = tempfile::tempfile()?;
        self.boot_and_capture(cold, &into, &console, progress)
            .map_err(|why| BuildError::Snapshot { why, console: last_lines(&console, 12) })?;
        Ok(Artifact::from_file(into)?)
    }

    fn boot_and_capture(
        &self,
        cold: &File,
        into: &File,
        console: &File,
        progress: &mut dyn Progress,
    ) -> Result<(), SnapshotFailure> {
        progress.phase("booting", None);
        let artifact = Artifact::from_file(cold.try_clone()?)?;
        let runner = self.runner.spawn()?;
        runner.launch(Launch::new(Start::Cold, artifact.manifest()), cold, console)?;
        self.ask(&runner, &Request::Ping)?;
        progress.phase("snapshot", None);
        self.rehearse(&runner)?;
        self.ask(&runner, &Request::Quiesce)?;
        Ok(runner.snapshot(into)?)
    }

    /// Runs a shell that does nothing, where the image has one: the first command of a restored machine then
    /// finds shell, C library and all that starting it takes in memory. Before, nothing was read from the disk.
    fn rehearse(&self, runner: &Runner) -> Result<(), SnapshotFailure> {
        let stream = runner.connect(AGENT_PORT)?;
        stream.set_read_timeout(Some(self.timeout))?;
        let shell = Exec { argv: ["/bin/sh", "-c", ":"].map(str::to_owned).into(), ..Exec::default() };
        // An image without a shell is as good; a machine that ended shows at the next request.
        let _ = client::run(stream, shell);
        Ok(())
    }

    fn ask(&self, runner: &Runner, request: &Request) -> Result<(), SnapshotFailure> {
        let stream = runner.connect(AGENT_PORT)?;
        stream.set_read_timeout(Some(self.timeout))?;
        match client::ask(stream, request) {
            Ok(()) => Ok(()),
            Err(AgentError::Stream(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                Err(SnapshotFailure::Timeout(self.timeout))
            }
            // The stream breaks when the machine ends: that is the news.
            Err(AgentError::Stream(e)) => match runner.wait() {
                Ok(ended) => Err(ClientError::Ended(ended).into()),
                Err(ClientError::Talk(_)) => Err(AgentError::Stream(e).into()),
                Err(other) => Err(other.into()),
            },
            Err(e) => Err(e.into()),
        }
    }
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFailure {
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
    Format(#[from] smolpack_format::FormatError),
}
