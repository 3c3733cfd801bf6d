//! `smolpack completion`: completions for a shell.

use crate::cli::Cli;
use crate::error::CliError;
use crate::output::Output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Which shell
    shell: Shell,
}

/// Prints them.
///
/// # Errors
/// Where stdout cannot be written.
pub fn completion(args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "smolpack", &mut script);
    Output::bytes(&script)
}
