//! `smolpack boot`: a machine from an artifact, for as long as one command.

use crate::embedded;
use crate::error::{CliError, chain};
use crate::output::Output;
use clap::Args;
use smolpack_format::{Artifact, Manifest};
use smolpack_guest::protocol::Exec;
use smolpack_runner::control::{Launch, Start};
use std::path::PathBuf;

/// Restore a machine, or boot it cold, and run a command
///
/// Without a command the image's entrypoint and cmd run. The exit status is the command's, 128 + N
/// where signal N ended it, and 125 for failures of smolpack's own.
#[derive(Debug, Args)]
pub struct BootArgs {
    /// The `.smolmachine`
    pub file: PathBuf,
    /// The command and its arguments
    #[arg(trailing_var_arg = true)]
    pub command: Vec<String>,
    /// Pass standard input to the command
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Set a variable: K=V, or K for this environment's value
    #[arg(short, long, value_name = "K=V")]
    pub env: Vec<String>,
    /// Working folder inside the machine
    #[arg(short, long, value_name = "FOLDER")]
    pub workdir: Option<String>,
    /// User inside the machine: name or uid, with :group or :gid if wanted
    #[arg(short, long)]
    pub user: Option<String>,
    /// Boot cold even where there is a snapshot
    #[arg(long, conflicts_with = "require_snapshot")]
    pub cold: bool,
    /// Fail where the snapshot is missing or does not fit this host
    #[arg(long)]
    pub require_snapshot: bool,
    /// Write the guest's console here
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
}
