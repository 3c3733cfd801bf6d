//! The Smolfile: what a user writes to describe a machine.
//!
//! [`Smolfile::parse`] takes TOML to checked types in one pass: `reader` hands out values with the
//! places they stand at, `decode` says which keys each section has, `values` what each of them may hold, and
//! `report` draws what was wrong. No key is ever ignored in silence: an unknown one is an error that names
//! the nearest known one. The keys are those of smolvm and some more; `compat` holds
//! the ones of smolvm's that mean nothing here.
//!
//! Nothing outside the file is looked at: whether an image, a path or a kernel exists is found out where
//! it is used.

mod compat;
mod decode;
mod model;
mod nearest;
mod reader;
mod report;
mod scalars;
mod schema;
mod values;

use smolpack_format::read_text_file;
use std::io::ErrorKind;
use std::path::Path;

use toml::de::DeTable;

pub use model::{
    Artifact, Auth, Build, Copy, CpuContract, Dev, Health, KernelChoice, Network, Policy, Ready, Restart,
    Service, Smolfile, Snapshot, SnapshotEnabled, SnapshotStart,
};
pub use report::{Problem, Problems, SmolfileError};
pub use values::{
    Cidr, CommandLine, Cpus, Delay, DiskSize, EnvEntry, HostName, Memory, Port, Secret, ValueError, Volume,
};

use reader::TableReader;
use report::Diagnostics;

/// Far above any real Smolfile; keeps a disk image named by mistake out of memory.
const LONGEST_FILE: u64 = 1 << 20;

impl Smolfile {
    /// Reads a Smolfile's text. `path` is where it came from, for messages.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place. Where the text is not TOML, only that is said.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SmolfileError> {
        let mut out = Diagnostics::default();
        let (table, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            out.push(syntax_error(text, error));
        }
        let file = out.is_empty().then(|| decode::smolfile(TableReader::top(table.get_ref(), &mut out)));
        match file {
            Some(file) if out.is_empty() => Ok(file),
            _ => Err(out.into_problems(text, path).into()),
        }
    }

    /// Reads the Smolfile at `path`.
    ///
    /// # Errors
    /// It cannot be read, is too long, is not text, or says something wrong.
    pub fn load(path: &Path) -> Result<Self, SmolfileError> {
        Self::parse(&read_text(path)?, path)
    }
}

fn read_text(path: &Path) -> Result<String, SmolfileError> {
    let bytes = read_text_file(path, LONGEST_FILE).map_err(|source| match source.kind() {
        ErrorKind::FileTooLarge => SmolfileError::TooLong { path: path.to_owned(), limit: LONGEST_FILE },
        _ => SmolfileError::Read { path: path.to_owned(), source },
    })?;
    String::from_utf8(bytes).map_err(|error| SmolfileError::NotText {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// An error of the TOML parser in our form.
fn syntax_error(text: &str, error: &toml::de::Error) -> Problem {
    let span = error.span().unwrap_or(text.len()..text.len());
    let duplicate = error.message().contains("duplicate key");
    let help = duplicate.then(|| "a key or table can be written once: join the two".to_owned());
    Problem::new("not valid TOML", span, error.message()).help(help)
}

#[cfg(test)]
mod tests;
