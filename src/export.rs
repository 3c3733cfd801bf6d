//! `smolpack export`: parts of an artifact as plain files.

use crate::error::CliError;
use crate::output::Output;
use crate::publish::publish;
use clap::{Args, Subcommand};
use serde::Serialize;
use smolpack_builder::progress::Progress;
use smolpack_builder::sink::{BlockSink, FileSink};
use smolpack_format::{Artifact, ChunkData, FormatError, Section, SectionKind};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// Hand out parts of an artifact
#[derive(Debug, Subcommand)]
pub enum ExportVerb {
    /// Write the root disk as an ext4 image, as it was built
    ///
    /// What the machine wrote before its snapshot is not in it. The file is sparse.
    Disk(DiskArgs),
}

/// Of `export disk`.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// The `.smolmachine`
    file: PathBuf,
    /// Where the image goes; replaced where it exists
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Debug, Serialize)]
struct Exported {
    file: PathBuf,
    bytes: u64,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {} bytes", self.file.display(), self.bytes)
    }
}

/// Writes what was asked for.
///
/// # Errors
/// The artifact is damaged or has no such part, or the file cannot be written; it is then as it was.
pub fn export(verb: &ExportVerb, out: &mut Output) -> Result<(), CliError> {
    let ExportVerb::Disk(args) = verb;
    let broken = |e: FormatError| CliError::artifact(&args.file, &e);
    let artifact = Artifact::open(&args.file).map_err(broken)?;
    let disk = artifact.section(SectionKind::Disk).map_err(broken)?.ok_or_else(|| {
        CliError::bad_input(format!("{} has no disk", args.file.display()))
            .hint("a checkpoint holds what changed alone: name the machine it was taken of")
    })?;
    let mut bars = out.progress();
    bars.phase("disk", Some(disk.len()));
    publish(&args.output, |file| write(&disk, file, &mut bars)).map_err(|e| match e {
        Failure::Artifact(e) => broken(e),
        Failure::Output(e) => CliError::failed(format!("cannot write {}: {e}", args.output.display())),
    })?;
    drop(bars);
    out.data(&Exported { file: args.output.clone(), bytes: disk.len() })
}

enum Failure {
    Artifact(FormatError),
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Output(e)
    }
}

/// Copies chunk after chunk, each verified.
fn write(section: &Section, file: &File, progress: &mut dyn Progress) -> Result<(), Failure> {
    let mut sink = FileSink::new(file.try_clone()?);
    let mut bytes = Vec::new();
    for (i, chunk) in section.chunks().iter().enumerate() {
        if chunk.data == ChunkData::Zero {
            sink.zeros(chunk.len)?;
        } else {
            section.read_chunk(i, &mut bytes).map_err(Failure::Artifact)?;
            sink.data(&bytes)?;
        }
        progress.advance(chunk.len);
    }
    Ok(file.set_len(section.len())?)
}
