//! `smolpack check`: a Smolfile, read as `build` reads it, and nothing else done.

use crate::build::smolfile_at;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use smolpack_builder::smolfile::{Problems, Smolfile, SmolfileError};
use std::fmt;
use std::path::PathBuf;

/// Say what is wrong with a Smolfile
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The Smolfile, or the folder it is in
    #[arg(default_value = ".")]
    context: PathBuf,
}

#[derive(Debug, Serialize)]
struct Checked {
    file: PathBuf,
    ok: bool,
    problems: Vec<Finding>,
}

/// One problem, for programs.
#[derive(Debug, Serialize)]
struct Finding {
    /// From 1.
    line: usize,
    /// Characters, from 1.
    column: usize,
    /// What is wrong, naming the key.
    message: String,
    /// What is wrong at that place.
    label: String,
    help: Option<String>,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is fine", self.file.display())
    }
}

/// Reads the Smolfile and says what is wrong with it: drawn on stderr, or with `--json` on stdout.
///
/// # Errors
/// It cannot be read, or something is wrong with it.
pub fn check(args: &CheckArgs, out: &Output) -> Result<(), CliError> {
    let (file, _) = smolfile_at(&args.context)?;
    match Smolfile::load(&file) {
        Ok(_) => out.data(&Checked { file, ok: true, problems: Vec::new() }),
        Err(SmolfileError::Invalid(problems)) if out.is_json() => {
            let count = problems.list().len();
            out.data(&Checked { file: file.clone(), ok: false, problems: findings(&problems) })?;
            Err(CliError::bad_input(format!("{}: {count} problems", file.display())))
        }
        Err(e) => Err(CliError::smolfile(&e, Output::colour())),
    }
}

fn findings(problems: &Problems) -> Vec<Finding> {
    let finding = |problem| {
        let (line, column) = problems.position(problem);
        Finding {
            line,
            column,
            message: problem.title().to_owned(),
            label: problem.label().to_owned(),
            help: problem.hint().map(str::to_owned),
        }
    };
    problems.list().iter().map(finding).collect()
}
