//! `smolpack diff`: what two artifacts differ in.

use crate::error::{CliError, FAILED};
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use smolpack_builder::compare::{Comparison, compare};
use smolpack_format::Artifact;
use std::fmt;
use std::path::{Path, PathBuf};

/// Say what two artifacts differ in: settings, sections, files
///
/// Exit status: 0 they are the same, 1 they differ, 2 one of them cannot be read.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The first `.smolmachine`
    a: PathBuf,
    /// The second
    b: PathBuf,
}

#[derive(Debug, Serialize)]
struct Difference {
    same: bool,
    #[serde(flatten)]
    comparison: Comparison,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.same {
            return writeln!(f, "the same");
        }
        self.comparison.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Compares and says what differs; gives the exit status.
///
/// # Errors
/// One of them cannot be read.
pub fn diff(args: &DiffArgs, out: &Output) -> Result<u8, CliError> {
    let open = |path: &Path| Artifact::open(path).map_err(|e| CliError::artifact(path, &e));
    let comparison =
        compare(&open(&args.a)?, &open(&args.b)?).map_err(|e| CliError::bad_input(e.to_string()))?;
    let same = comparison.is_empty();
    out.data(&Difference { same, comparison })?;
    Ok(if same { 0 } else { FAILED })
}
