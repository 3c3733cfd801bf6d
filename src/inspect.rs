//! `smolpack inspect`: what a machine is and what its file holds.

use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use smolpack_format::{Artifact, Manifest, SectionEntry, printable};
use std::fmt;
use std::path::PathBuf;

/// Say what a machine is and what its file holds
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The `.smolmachine` or `.smolcheckpoint`
    file: PathBuf,
}

#[derive(Debug, Serialize)]
struct Inspection {
    digest: String,
    manifest: Manifest,
    sections: Vec<SectionLine>,
}

/// A part of an artifact.
#[derive(Debug, Serialize)]
pub(crate) struct SectionLine {
    kind: String,
    /// Logical bytes.
    length: u64,
    /// Bytes in the file.
    stored: u64,
    chunks: u64,
    digest: String,
}

/// Prints the manifest and the sections.
///
/// # Errors
/// Where the file is no artifact, or one that this version cannot read.
pub fn inspect(args: &InspectArgs, out: &mut Output) -> Result<(), CliError> {
    let artifact = Artifact::open(&args.file).map_err(|e| CliError::artifact(&args.file, &e))?;
    out.data(&Inspection {
        digest: artifact.digest().to_string(),
        sections: sections(&artifact),
        manifest: artifact.manifest().clone(),
    })
}

/// What is in the file.
pub(crate) fn sections(artifact: &Artifact) -> Vec<SectionLine> {
    let line = |section: &SectionEntry| SectionLine {
        kind: section.kind.to_string(),
        length: section.length,
        stored: section.stored,
        chunks: section.chunks,
        digest: section.digest.to_string(),
    };
    artifact.sections().iter().map(line).collect()
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.manifest;
        let mut line = |name: &str, value: &str| {
            if value.is_empty() { Ok(()) } else { writeln!(f, "{name:<11}{}", printable(value)) }
        };
        line("name", m.name.as_deref().unwrap_or_default())?;
        line("digest", &self.digest)?;
        if let Some(image) = &m.image {
            let digest = image.digest.map(|d| format!(" ({d})")).unwrap_or_default();
            line("image", &format!("{}{digest}", image.reference))?;
        }
        line("platform", &format!("{}/{}", m.platform.os, m.platform.architecture))?;
        line("cpus", &m.cpus.to_string())?;
        line("memory", &format!("{} MiB", m.memory_mib))?;
        line("disk", &size(m.disk_bytes))?;
        if let Some(kernel) = &m.kernel {
            line("kernel", &kernel.version)?;
        }
        line("entrypoint", &words(&m.entrypoint))?;
        line("cmd", &words(&m.cmd))?;
        line("env", &m.env.join(" "))?;
        line("user", m.user.as_deref().unwrap_or_default())?;
        line("workdir", m.workdir.as_deref().unwrap_or_default())?;
        line("network", &network(m))?;
        line(
            "snapshot",
            &m.snapshot
                .as_ref()
                .map_or("none: boots cold".to_owned(), |s| format!("{} on {}", s.cpu_vendor, s.backend)),
        )?;
        writeln!(f, "\n{:<11}{:>12}{:>12}{:>8}  digest", "section", "length", "stored", "chunks")?;
        for s in &self.sections {
            let (length, stored) = (size(s.length), size(s.stored));
            writeln!(f, "{:<11}{length:>12}{stored:>12}{:>8}  {}", s.kind, s.chunks, s.digest)?;
        }
        Ok(())
    }
}

fn network(m: &Manifest) -> String {
    let n = &m.network;
    if !n.enabled {
        return "off".to_owned();
    }
    let allowed: Vec<&str> = n.allow_hosts.iter().chain(&n.allow_cidrs).map(String::as_str).collect();
    if allowed.is_empty() { "on".to_owned() } else { format!("only {}", allowed.join(" ")) }
}

/// A command as one could type it.
fn words(argv: &[String]) -> String {
    let quoted = argv.iter().map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

pub(crate) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (1024, "KiB"),
        0x10_0000..0x4000_0000 => (0x10_0000, "MiB"),
        _ => (0x4000_0000, "GiB"),
    };
    format!("{:.1} {name}", bytes as f64 / f64::from(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_so_that_a_shell_reads_them_back() {
        let argv = ["sh", "-c", "echo it's", ""].map(String::from);
        assert_eq!(words(&argv), r"sh -c 'echo it'\''s' ''");
    }

    #[test]
    fn sizes_are_in_the_largest_unit_that_fits() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(10 << 30), "10.0 GiB");
    }
}
