//! The command line's shape; each verb's arguments stand beside its code.

use crate::error::{BOOT_FAILED, CliError};
use crate::output::{Output, ProgressMode, Verbosity};
use crate::{
    boot, build, cache, check, completion, diff, doctor, explain, export, inspect, kernel, limits, verify,
};
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;

/// Builds machine images and restores them as microVMs, from one file.
///
/// Exit status: 0 success, 1 failure, 2 bad input. `boot` passes the command's own status and uses
/// 125 for its own failures.
#[derive(Debug, Parser)]
#[command(name = "smolpack", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Common {
    /// Print data as one line of JSON
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say what was chosen and how long it took
    #[arg(short, long, global = true)]
    verbose: bool,
    /// How to show long tasks
    #[arg(long, global = true, value_enum, default_value_t, value_name = "MODE")]
    progress: ProgressMode,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Build(build::BuildArgs),
    Explain(explain::ExplainArgs),
    Check(check::CheckArgs),
    Boot(boot::BootArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Diff(diff::DiffArgs),
    #[command(subcommand)]
    Export(export::ExportVerb),
    #[command(subcommand)]
    Kernel(kernel::KernelVerb),
    #[command(subcommand)]
    Cache(cache::CacheVerb),
    /// Say what this host can do, and what mends what it cannot
    Doctor,
    Completion(completion::CompletionArgs),
}

/// Parses the arguments, runs the verb, and gives the exit status.
#[must_use]
pub fn run() -> ExitCode {
    limits::survive_file_limit();
    let cli = Cli::parse();
    let verbosity = match (cli.common.quiet, cli.common.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    let out = &mut Output::new(cli.common.json, verbosity, cli.common.progress);
    let done = match cli.verb {
        Verb::Build(args) => build::build(&args, out).map(|()| 0),
        Verb::Explain(args) => explain::explain(&args, out).map(|()| 0),
        Verb::Check(args) => check::check(&args, out).map(|()| 0),
        Verb::Boot(args) => boot::boot(&args, out).map_err(|e| e.code(BOOT_FAILED)),
        Verb::Inspect(args) => inspect::inspect(&args, out).map(|()| 0),
        Verb::Verify(args) => verify::verify(&args, out).map(|()| 0),
        Verb::Diff(args) => diff::diff(&args, out),
        Verb::Export(verb) => export::export(&verb, out).map(|()| 0),
        Verb::Kernel(verb) => kernel::kernel(&verb, out).map(|()| 0),
        Verb::Cache(verb) => cache::cache(&verb, out).map(|()| 0),
        Verb::Doctor => doctor::doctor(out).map(|()| 0),
        Verb::Completion(args) => completion::completion(&args).map(|()| 0),
    };
    ExitCode::from(done.unwrap_or_else(|e: CliError| {
        out.error(&e);
        e.code
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
