//! The snapshot of a new machine: boot it, wait for its agent, quiesce, capture.

use smolpack_format::Artifact;
use smolpack_guest::client;
use smolpack_guest::protocol::{Exec, Request};
use std::fs::File;

use super::BuildError;
use super::machine::{Machine, MachineFailure, MachineOptions};
use crate::progress::Progress;

/// Boots the artifact in `cold` and writes its snapshot to `into`, an empty file.
pub(super) fn take(
    options: &MachineOptions<'_>,
    cold: &File,
    into: File,
    progress: &mut dyn Progress,
) -> Result<Artifact, BuildError> {
    progress.phase("booting", None);
    let none = |why| BuildError::Snapshot { why, console: String::new() };
    let machine = Machine::new(options).map_err(none)?;
    capture(&machine, cold, &into, progress)
        .map_err(|why| BuildError::Snapshot { why, console: machine.console() })?;
    Ok(Artifact::from_file(into)?)
}

fn capture(
    machine: &Machine,
    cold: &File,
    into: &File,
    progress: &mut dyn Progress,
) -> Result<(), MachineFailure> {
    machine.boot(cold, "")?;
    progress.phase("snapshot", None);
    rehearse(machine)?;
    machine.ask(&Request::Quiesce)?;
    machine.snapshot(into)
}

/// Runs a shell that does nothing, where the image has one: the first command of a restored machine then
/// finds shell, C library and all that starting it takes in memory. Before, nothing was read from the disk.
fn rehearse(machine: &Machine) -> Result<(), MachineFailure> {
    let stream = machine.connect()?;
    stream.set_read_timeout(Some(machine.timeout()))?;
    let shell = Exec { argv: ["/bin/sh", "-c", ":"].map(Into::into).into(), ..Exec::default() };
    // An image without a shell is as good; a machine that ended shows at the next request.
    let _ = client::run(stream, shell);
    Ok(())
}
