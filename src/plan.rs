//! `smolpack build --dry-run`: what a build would do, from what can be known without doing it.

use crate::error::CliError;
use crate::inspect::size;
use serde::Serialize;
use smolpack_builder::build::{KernelFrom, Request};
use smolpack_builder::image::Location;
use smolpack_format::printable;
use std::fmt;
use std::path::PathBuf;

/// What would be done.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    image: String,
    /// Folder, OCI layout, archive, standard input or registry.
    source: &'static str,
    /// The kernel's version; none where it would be imported or fetched first.
    kernel: Option<String>,
    /// Where the kernel comes from.
    kernel_from: &'static str,
    copies: Vec<Copy>,
    /// Set-up commands, whether they have to run or not.
    init: Vec<String>,
    cpus: u32,
    memory_mib: u64,
    disk_bytes: u64,
    snapshot: bool,
    output: PathBuf,
}

#[derive(Debug, Serialize)]
struct Copy {
    from: String,
    to: String,
}

/// Plans a build.
///
/// # Errors
/// What the build would stop at before it begins: keys this version cannot build, a kernel that is not there.
pub(crate) fn plan(request: &Request<'_>) -> Result<Plan, CliError> {
    let spec = request.spec;
    request.check()?;
    let (kernel, kernel_from) = match request.kernel()? {
        KernelFrom::File(_) => (None, "the file that the Smolfile names"),
        KernelFrom::Kept(kernel) => (Some(kernel.version().to_owned()), "kept"),
        KernelFrom::Debian => (None, "fetched from Debian"),
    };
    let copy =
        |copy: &smolpack_builder::smolfile::Copy| Copy { from: copy.from.clone(), to: copy.to.clone() };
    Ok(Plan {
        image: request.source.reference.clone(),
        source: match &request.source.location {
            Location::Folder(_) => "root folder",
            Location::OciLayout { .. } => "OCI layout",
            Location::Archive { .. } => "archive",
            Location::Stdin => "archive on standard input",
            Location::Registry(_) => "registry",
        },
        kernel,
        kernel_from,
        copies: spec.smolfile.copy.iter().map(copy).collect(),
        init: spec.smolfile.init.clone(),
        cpus: spec.cpus(),
        memory_mib: spec.memory_mib(),
        disk_bytes: spec.disk_bytes(),
        snapshot: request.snapshot,
        output: request.output.to_owned(),
    })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "image     {} ({})", printable(&self.image), self.source)?;
        for Copy { from, to } in &self.copies {
            writeln!(f, "copy      {} to {}", printable(from), printable(to))?;
        }
        for command in &self.init {
            writeln!(f, "set-up    {}", printable(command))?;
        }
        match &self.kernel {
            Some(version) => writeln!(f, "kernel    {version} ({})", self.kernel_from)?,
            None => writeln!(f, "kernel    {}", self.kernel_from)?,
        }
        writeln!(f, "machine   {} CPUs, {} MiB, disk {}", self.cpus, self.memory_mib, size(self.disk_bytes))?;
        writeln!(f, "snapshot  {}", if self.snapshot { "taken" } else { "none: boots cold" })?;
        write!(f, "output    {}", self.output.display())
    }
}
