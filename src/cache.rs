//! `smolpack cache`: the layers and blobs kept from one build to the next.

use crate::error::CliError;
use crate::inspect::size;
use crate::output::Output;
use crate::paths;
use clap::Subcommand;
use serde::Serialize;
use smolpack_builder::build::BuildError;
use smolpack_builder::image::{CachedFile, ImageError, cached_files, prune_cache};
use smolpack_builder::progress::Progress;
use smolpack_builder::smolfile::DiskSize;
use std::fmt;
use std::time::SystemTime;

/// Look after what builds keep: image layers and blobs
#[derive(Debug, Subcommand)]
pub enum CacheVerb {
    /// List what is kept, the least recently used first
    Ls,
    /// Check every file, and remove what is damaged
    Verify,
    /// Remove what has not been used for the longest time; what a build is using stays
    Prune {
        /// Keep this much: GiB, or a size such as 500MiB
        #[arg(long, value_name = "SIZE", value_parser = |text: &str| DiskSize::parse(text))]
        keep: Option<DiskSize>,
    },
}

#[derive(Debug, Serialize)]
struct Listing {
    /// What the files are: kept, damaged or removed.
    state: &'static str,
    files: Vec<Line>,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Line {
    kind: &'static str,
    digest: String,
    bytes: u64,
    /// Seconds since 1970.
    used: u64,
}

impl Listing {
    fn new(state: &'static str, files: &[CachedFile]) -> Self {
        let seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let line = |file: &CachedFile| Line {
            kind: file.shelf,
            digest: file.digest.to_string(),
            bytes: file.bytes,
            used: seconds(file.used),
        };
        Self { state, files: files.iter().map(line).collect(), bytes: files.iter().map(|f| f.bytes).sum() }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { kind, digest, bytes, .. } in &self.files {
            writeln!(f, "{kind:<9}{:>12}  {digest}", size(*bytes))?;
        }
        write!(f, "{} files {}, {}", self.files.len(), self.state, size(self.bytes))
    }
}

/// Does it and says what there was to say.
///
/// # Errors
/// The cache cannot be read or changed; of `verify`, something was damaged.
pub fn cache(verb: &CacheVerb, out: &Output) -> Result<(), CliError> {
    let root = paths::cache()?;
    let failed = |e: ImageError| CliError::from(BuildError::from(e));
    match verb {
        CacheVerb::Ls => out.data(&Listing::new("kept", &cached_files(&root).map_err(failed)?)),
        CacheVerb::Prune { keep } => {
            let keep = keep.map_or(0, |keep| keep.0);
            out.data(&Listing::new("removed", &prune_cache(&root, keep).map_err(failed)?))
        }
        CacheVerb::Verify => {
            let files = cached_files(&root).map_err(failed)?;
            let mut bars = out.progress();
            bars.phase("verifying", Some(files.iter().map(|file| file.bytes).sum()));
            let mut damaged = Vec::new();
            for file in files {
                if !file.is_whole(&mut |bytes| bars.advance(bytes)).map_err(failed)? {
                    file.remove().map_err(failed)?;
                    damaged.push(file);
                }
            }
            drop(bars);
            out.data(&Listing::new("damaged", &damaged))?;
            if damaged.is_empty() {
                return Ok(());
            }
            Err(CliError::failed(format!("{} files of the cache were damaged", damaged.len()))
                .hint("they are removed: the next build fetches them again"))
        }
    }
}
