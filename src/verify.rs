//! `smolpack verify`: every byte of an artifact, checked.

use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use smolpack_builder::progress::Progress;
use std::fmt;
use std::path::PathBuf;

/// Check every byte of an artifact
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The `.smolmachine` or `.smolcheckpoint`
    file: PathBuf,
}

/// What was checked.
#[derive(Debug, Serialize)]
struct Verified {
    digest: String,
    bytes: u64,
    sections: usize,
    chunks: u64,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { digest, bytes, sections, chunks } = self;
        write!(f, "{digest}: {bytes} bytes in {sections} sections and {chunks} chunks are as they should be")
    }
}

/// Checks the file and says what was checked.
///
/// # Errors
/// The first thing that is wrong, with its section and offset.
pub fn verify(args: &VerifyArgs, out: &mut Output) -> Result<(), CliError> {
    let mut bars = out.progress();
    let total = std::fs::metadata(&args.file).map(|m| m.len()).ok();
    bars.phase("verifying", total);
    let mut before = 0;
    let report = smolpack_format::verify(&args.file, &mut |done, _| {
        bars.advance(done.saturating_sub(before));
        before = done;
    })
    .map_err(|e| CliError::artifact(&args.file, &e))?;
    drop(bars);
    out.data(&Verified {
        digest: report.digest.to_string(),
        bytes: report.bytes,
        sections: report.sections,
        chunks: report.chunks,
    })
}
