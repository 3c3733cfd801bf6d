//! Image sources and layers: from what the user names to a tree of files and a configuration.
//!
//! [`detect`] says what a text names, [`load`] reads it. Bytes that come with a digest are checked
//! against it before anything in them is interpreted. Compressed layers are decompressed once, into the
//! caller's cache folder, by digest; plain ones are used where they lie. The tree points into these
//! files, so a loaded image takes memory by its entries, not by its bytes.
//!
//! Nothing here reads the environment or a home folder: cache, credentials, certificates and the hosts
//! that may be spoken to without TLS come from the caller.

mod archive;
mod cache;
mod config;
mod copy;
mod error;
mod folder;
mod gzip;
mod layers;
mod layout;
mod limits;
mod manifest;
mod merge;
mod platform;
mod progress;
mod region;
mod registry;
mod source;
mod spool;
mod steps;
mod tar;
mod upkeep;

use std::path::Path;

use crate::progress::Progress;
use crate::tree::Tree;
use cache::Cache;
use progress::Reporter;

pub use config::ImageConfig;
pub use copy::{CopyOptions, copy};
pub use error::{ErrorKind, ImageError};
pub use limits::Limits;
pub use platform::Platform;
pub use smolpack_registry::{Credentials, Digest, Login, Reference, RegistryAccess, Retry};
pub use source::{ImageSource, Location, detect};
pub use steps::{Changes, StepCache, StepDraft, lay_on};
pub use upkeep::{CachedFile, cached_files, prune_cache};

/// An image, read and merged.
#[derive(Debug)]
pub struct Image {
    /// As the user gave it; see [`ImageSource::reference`].
    pub reference: String,
    /// Of the image's manifest; of a docker-save archive, of the image's configuration, which names
    /// its layers; of a root tar, of the file as given. A root folder has none: its disk's will do.
    pub digest: Option<Digest>,
    /// What the image says of itself; empty for root folders and tars.
    pub config: ImageConfig,
    /// Its files.
    pub tree: Tree,
}

/// What [`load`] needs beside the source.
#[derive(Clone, Debug)]
pub struct LoadOptions<'a> {
    /// Which build of a multi-platform image.
    pub platform: Platform,
    /// The user's cache folder; made where missing.
    pub cache: &'a Path,
    /// Credentials and the like for registries.
    pub registry: &'a RegistryAccess,
    /// Bounds.
    pub limits: Limits,
}

/// Reads an image.
///
/// # Errors
/// See [`ErrorKind`]; each names the layer and the entry where that applies.
pub fn load(
    source: &ImageSource,
    options: &LoadOptions<'_>,
    progress: &mut dyn Progress,
) -> Result<Image, ImageError> {
    let reporter = Reporter::new(progress);
    let cache = Cache::open(options.cache);
    let context = Context { options, cache: &cache, reporter: &reporter };
    let Parts { digest, config, tree } = match &source.location {
        Location::Folder(path) => folder::load(path, &context),
        Location::OciLayout { path, tag } => layout::load(path, tag.as_deref(), &context),
        Location::Archive { path, tag } => archive::load_file(path, tag.as_deref(), &context),
        Location::Stdin => archive::load_stream(&mut std::io::stdin().lock(), &context),
        Location::Registry(reference) => registry::load(reference, &context),
    }?;
    Ok(Image { reference: source.reference.clone(), digest, config, tree })
}

/// What every way to an image uses.
struct Context<'a> {
    options: &'a LoadOptions<'a>,
    cache: &'a Cache,
    reporter: &'a Reporter<'a>,
}

/// An [`Image`] without its name.
struct Parts {
    digest: Option<Digest>,
    config: ImageConfig,
    tree: Tree,
}
