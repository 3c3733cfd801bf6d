//! `smolpack kernel`: the guest kernels of this user.

use crate::error::CliError;
use crate::output::Output;
use crate::paths;
use clap::{Args, Subcommand};
use serde::Serialize;
use smolpack_builder::kernel::{Kernel, KernelError, KernelStore};
use smolpack_runner::chain::chain;
use std::fmt;
use std::path::PathBuf;

/// Import, fetch, list and remove guest kernels
#[derive(Debug, Subcommand)]
pub enum KernelVerb {
    /// Import a kernel: an ELF vmlinux, a bzImage, or a Debian kernel package with its modules
    Import(ImportArgs),
    /// Fetch Debian's cloud kernel through apt, which verifies it
    Fetch,
    /// List the kernels at hand; the first is the one a build takes
    List,
    /// Remove a kernel
    Rm(RemoveArgs),
}

/// What to import.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The kernel's file
    file: PathBuf,
}

/// What to remove.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Its digest, the first digits of it, or its version
    reference: String,
}

#[derive(Debug, Serialize)]
struct KernelLine {
    digest: String,
    version: String,
    modules: usize,
}

impl KernelLine {
    fn of(kernel: &Kernel) -> Self {
        Self {
            digest: kernel.digest().to_owned(),
            version: kernel.version().to_owned(),
            modules: kernel.record().modules.len(),
        }
    }
}

impl fmt::Display for KernelLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.trim_start_matches("sha256:");
        write!(f, "{:.12}  {}  {} modules", digest, self.version, self.modules)
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct KernelList(Vec<KernelLine>);

impl fmt::Display for KernelList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Runs one of the verbs.
///
/// # Errors
/// Where the file is no kernel (bad input), or the store, apt or the disk fails.
pub fn kernel(verb: &KernelVerb, out: &mut Output) -> Result<(), CliError> {
    let store = KernelStore::open(&paths::data()?)?;
    match verb {
        KernelVerb::Import(args) => {
            let kernel = store.import(&args.file)?;
            out.data(&KernelLine::of(&kernel))
        }
        KernelVerb::Fetch => {
            let kernel = store.fetch(&mut out.progress())?;
            out.data(&KernelLine::of(&kernel))
        }
        KernelVerb::List => {
            let kernels = store.list()?;
            if kernels.is_empty() {
                out.note("no kernel yet; `smolpack kernel fetch` gets one");
            }
            out.data(&KernelList(kernels.iter().map(KernelLine::of).collect()))
        }
        KernelVerb::Rm(args) => {
            let removed = store.remove(&args.reference)?;
            out.note(format_args!("removed {removed}"));
            Ok(())
        }
    }
}

impl From<KernelError> for CliError {
    fn from(e: KernelError) -> Self {
        let text = chain(&e);
        if e.is_bad_input() { Self::bad_input(text) } else { Self::failed(text) }
    }
}
