//! What two artifacts differ in: what the machine is, the sections, and the files on its disk.

mod attributes;
mod files;

use serde::Serialize;
use serde_json::Value;
use smolpack_format::{Artifact, Digest, FormatError, SectionKind, printable};
use std::collections::{BTreeMap, HashSet};

pub use files::{FileChange, FileDifference};

/// What they differ in; nothing where all lists are empty.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Keys of the manifest, `kernel.version` and the like.
    pub manifest: Vec<KeyDifference>,
    /// Sections that are not the same.
    pub sections: Vec<SectionDifference>,
    /// Files of the disk, in the order of their paths.
    pub files: Vec<FileDifference>,
}

/// A key of the manifest.
#[derive(Debug, Serialize)]
pub struct KeyDifference {
    /// Its path, parts joined by dots.
    pub key: String,
    /// The first artifact's value; null where it has none.
    pub a: Value,
    /// The second's.
    pub b: Value,
}

/// A section.
#[derive(Debug, Serialize)]
pub struct SectionDifference {
    /// Which.
    pub kind: String,
    /// Bytes in the first file; none where it has no such section.
    pub a_bytes: Option<u64>,
    /// Bytes in the second.
    pub b_bytes: Option<u64>,
    /// Bytes of the second in chunks that the first does not have: what a transfer would cost.
    pub new_bytes: u64,
}

impl Comparison {
    /// Whether there is no difference.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.manifest.is_empty() && self.sections.is_empty() && self.files.is_empty()
    }

    /// The differences, a line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let keys = self.manifest.iter().map(|key| format!("{}: {} to {}", key.key, key.a, key.b));
        let sections = self.sections.iter().map(|section| {
            let bytes =
                |bytes: Option<u64>| bytes.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
            let (a, b) = (bytes(section.a_bytes), bytes(section.b_bytes));
            format!("section {}: {a} to {b}, {} bytes in new chunks", section.kind, section.new_bytes)
        });
        let files = self.files.iter().map(|file| match file.change {
            FileChange::Added => format!("+ {}", file.path),
            FileChange::Removed => format!("- {}", file.path),
            FileChange::Changed => format!("~ {}: {}", file.path, file.what.join(", ")),
        });
        keys.chain(sections).chain(files).map(|line| printable(&line)).collect()
    }
}

/// Why two artifacts cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// One of them is damaged.
    #[error("{which} artifact: {source}")]
    Format {
        /// `first` or `second`.
        which: &'static str,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A disk is no file system that can be read.
    #[error("{which} artifact's disk: {why}")]
    Disk {
        /// `first` or `second`.
        which: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// Compares two artifacts. Files are looked at only where the disks' digests differ.
///
/// # Errors
/// One of them cannot be read.
pub fn compare(a: &Artifact, b: &Artifact) -> Result<Comparison, CompareError> {
    let sections = sections(a, b)?;
    let disk = SectionKind::Disk.to_string();
    let files =
        if sections.iter().any(|section| section.kind == disk) { files::compare(a, b)? } else { vec![] };
    Ok(Comparison { manifest: manifests(a, b), sections, files })
}

fn manifests(a: &Artifact, b: &Artifact) -> Vec<KeyDifference> {
    let flat = |artifact: &Artifact| {
        let mut keys = BTreeMap::new();
        flatten("", serde_json::to_value(artifact.manifest()).unwrap_or_default(), &mut keys);
        // They are compared by themselves.
        keys.remove("sections");
        keys
    };
    let (mut a, mut b) = (flat(a), flat(b));
    let keys: std::collections::BTreeSet<String> = a.keys().chain(b.keys()).cloned().collect();
    let pairs = keys.into_iter().map(|key| {
        let (a, b) = (a.remove(&key).unwrap_or_default(), b.remove(&key).unwrap_or_default());
        KeyDifference { key, a, b }
    });
    pairs.filter(|pair| pair.a != pair.b).collect()
}

/// Tables by their keys; lists are values.
fn flatten(prefix: &str, value: Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                flatten(&if prefix.is_empty() { key } else { format!("{prefix}.{key}") }, value, into);
            }
        }
        value => drop(into.insert(prefix.to_owned(), value)),
    }
}

fn sections(a: &Artifact, b: &Artifact) -> Result<Vec<SectionDifference>, CompareError> {
    let mut differences = Vec::new();
    let kinds = a.sections().iter().chain(b.sections()).map(|section| section.kind);
    let mut seen = HashSet::new();
    for kind in kinds.filter(|kind| seen.insert(kind.to_string())) {
        let entry =
            |artifact: &Artifact| artifact.sections().iter().find(|section| section.kind == kind).cloned();
        let (one, two) = (entry(a), entry(b));
        if one.as_ref().map(|s| s.digest) == two.as_ref().map(|s| s.digest) {
            continue;
        }
        let known: HashSet<Digest> =
            chunks(a, kind, "first")?.into_iter().map(|(digest, _)| digest).collect();
        let new = chunks(b, kind, "second")?.into_iter().filter(|(digest, _)| !known.contains(digest));
        differences.push(SectionDifference {
            kind: kind.to_string(),
            a_bytes: one.map(|section| section.stored),
            b_bytes: two.map(|section| section.stored),
            new_bytes: new.map(|(_, bytes)| bytes).sum(),
        });
    }
    Ok(differences)
}

/// Digest and length of every chunk with bytes of its own.
fn chunks(
    artifact: &Artifact,
    kind: SectionKind,
    which: &'static str,
) -> Result<Vec<(Digest, u64)>, CompareError> {
    let section = artifact.section(kind).map_err(|source| CompareError::Format { which, source })?;
    let chunks = section.iter().flat_map(smolpack_format::Section::chunks);
    Ok(chunks.filter(|chunk| chunk.digest != Digest::NONE).map(|chunk| (chunk.digest, chunk.len)).collect())
}
