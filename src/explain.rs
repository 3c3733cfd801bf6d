//! `smolpack explain`: why set-up commands ran, or did not.

use crate::build::smolfile_at;
use crate::error::CliError;
use crate::output::Output;
use crate::paths;
use clap::Args;
use serde::Serialize;
use smolpack_builder::build::{SetupReport, StepReport};
use smolpack_format::printable;
use std::fmt;
use std::path::PathBuf;

/// Say why set-up commands of the last build ran, or did not
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The Smolfile, or the folder it is in
    #[arg(default_value = ".")]
    context: PathBuf,
}

#[derive(Debug, Serialize)]
struct Explained {
    steps: Vec<StepReport>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            let what = if step.cached { "cached" } else { "ran" };
            writeln!(f, "{}  {}", number + 1, printable(&step.command))?;
            writeln!(f, "   {what}: {}", printable(&step.why))?;
            if step.log.exists() {
                writeln!(f, "   output: {}", step.log.display())?;
            }
        }
        Ok(())
    }
}

/// Tells what the last build of a Smolfile did with its set-up commands.
///
/// # Errors
/// It was never built by this user, or what was kept of that cannot be read.
pub fn explain(args: &ExplainArgs, out: &mut Output) -> Result<(), CliError> {
    let (path, context) = smolfile_at(&args.context)?;
    let report = SetupReport::load(&paths::cache()?, &context)
        .map_err(|e| CliError::failed(format!("cannot read what the last build left: {e}")))?;
    let Some(SetupReport { steps }) = report else {
        return Err(CliError::failed(format!("{} has run no set-up commands here", path.display()))
            .hint("`smolpack build`, if it has `init`; see `build --dry-run`"));
    };
    out.data(&Explained { steps })
}
