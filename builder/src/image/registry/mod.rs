//! Images in registries: manifests and blobs come through the registry client into the cache, verified.
//!
//! What is left to do here is the cache, several blobs at once, and the choice of a platform with its variant.
//! The asynchronous runtime that the client needs lives and ends in this module, on the calling thread.

mod partial;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use smolpack_registry::{Client, Digest, Reference, RegistryError, Repository, runtime};
use tokio::runtime::Runtime;

use super::cache::Shelf;
use super::error::{ErrorKind, ImageError};
use super::manifest::{Blob, Blobs, Descriptor, check_size, check_small, read_small};
use super::{Context, Parts, layers};
use partial::Partial;

/// Blobs fetched at once.
const AT_ONCE: usize = 4;

/// Reads an image from its registry.
pub(super) fn load(reference: &Reference, context: &Context<'_>) -> Result<Parts, ImageError> {
    let note = |line: &str| context.reporter.note(line);
    let runtime =
        runtime().map_err(|e| ImageError::io_at(reference.whole(), "cannot start a network runtime", e))?;
    let client = Client::new(context.options.registry, &note)?;
    let registry = Registry { runtime, client, reference, repository: Repository::from(reference), context };
    context.reporter.phase("resolve", None);
    let start = registry.start()?;
    layers::load(&registry, &start, context)
}

struct Registry<'r, 'a> {
    runtime: Runtime,
    client: Client<'r>,
    reference: &'r Reference,
    repository: Repository,
    context: &'r Context<'a>,
}

impl Registry<'_, '_> {
    fn place(&self, blob: &Descriptor) -> String {
        format!("{}, blob {}", self.reference.whole(), blob.digest.short())
    }

    /// The descriptor of what the reference names. A reference with a digest that the cache holds needs
    /// no registry.
    fn start(&self) -> Result<Descriptor, ImageError> {
        if let Some(digest) = self.reference.digest() {
            let digest = Digest::parse(digest)
                .map_err(|why| ImageError::new(ErrorKind::BadReference, self.reference.whole(), why))?;
            if let Some(kept) = self.context.cache.find(Shelf::Blobs, &digest)? {
                return Ok(descriptor(digest, kept.len));
            }
        }
        self.runtime.block_on(self.manifest(self.reference))
    }

    /// Fetches a manifest or index into the cache.
    async fn manifest(&self, reference: &Reference) -> Result<Descriptor, ImageError> {
        let manifest = self.client.manifest(reference, self.context.options.limits.json_bytes).await?;
        let mut partial = Partial::take(self.context.cache, &manifest.digest).await?;
        partial.fill(&manifest.bytes)?;
        partial.publish(self.context.cache)?;
        Ok(descriptor(manifest.digest, manifest.bytes.len() as u64))
    }

    /// Fetches a blob into the cache, unless it is there.
    async fn fetch(&self, blob: &Descriptor) -> Result<(), ImageError> {
        let cache = self.context.cache;
        let is_kept = || Ok::<_, ImageError>(cache.find(Shelf::Blobs, &blob.digest)?.is_some());
        if is_kept()? {
            return Ok(());
        }
        let partial = Partial::take(cache, &blob.digest).await?;
        // Another build may have finished it while this one waited.
        if is_kept()? {
            partial.discard();
            return Ok(());
        }
        self.context.reporter.advance(partial.len());
        let mut followed = partial.followed(self.context.reporter);
        self.client.download(&self.repository, &blob.digest, blob.size, &mut followed).await?;
        followed.partial.publish(cache)
    }

    fn kept(&self, blob: &Descriptor) -> Result<super::region::Region, ImageError> {
        let kept = self.context.cache.find(Shelf::Blobs, &blob.digest)?;
        kept.ok_or_else(|| {
            ImageError::new(ErrorKind::NotFound, self.place(blob), "it was removed from the cache meanwhile")
                .with_hint("run the same command again")
        })
    }
}

impl Blobs for Registry<'_, '_> {
    fn small(&self, blob: &Descriptor) -> Result<Vec<u8>, ImageError> {
        check_small(blob, &self.context.options.limits)?;
        if self.context.cache.find(Shelf::Blobs, &blob.digest)?.is_none() {
            self.runtime.block_on(async {
                // Manifests are served under another address than other blobs.
                if blob.is_manifest() {
                    let reference = self.reference.clone_with_digest(blob.digest.as_str().to_owned());
                    self.manifest(&reference).await.map(drop)
                } else {
                    self.fetch(blob).await
                }
            })?;
        }
        read_small(&self.kept(blob)?, blob, &self.context.options.limits)
    }

    fn prepare(&self, blobs: &[&Descriptor]) -> Result<(), ImageError> {
        let mut blobs = blobs.to_vec();
        // An image may hold the same layer twice, and two fetches of one blob would wait for each other.
        blobs.sort_by_key(|blob| &blob.digest);
        blobs.dedup_by_key(|blob| &blob.digest);
        self.context.reporter.phase("fetch", Some(blobs.iter().map(|blob| blob.size).sum()));
        let fetches = stream::iter(blobs).map(|blob| self.fetch(blob)).buffer_unordered(AT_ONCE);
        self.runtime.block_on(fetches.try_collect::<()>())
    }

    fn open(&self, blob: &Descriptor) -> Result<Blob, ImageError> {
        let region = self.kept(blob)?;
        check_size(&region, blob, &self.place(blob))?;
        Ok(Blob { region, verified: true })
    }
}

fn descriptor(digest: Digest, size: u64) -> Descriptor {
    Descriptor { media_type: String::new(), digest, size, platform: None, annotations: None }
}

impl From<RegistryError> for ImageError {
    fn from(error: RegistryError) -> Self {
        use smolpack_registry::ErrorKind as From;
        let kind = match error.kind {
            From::BadReference => ErrorKind::BadReference,
            From::NotFound => ErrorKind::NotFound,
            From::Unauthorized => ErrorKind::Unauthorized,
            From::Network => ErrorKind::Network,
            From::Corrupt => ErrorKind::Corrupt,
            From::DigestMismatch => ErrorKind::DigestMismatch,
            From::Limit => ErrorKind::Limit,
            From::Io => ErrorKind::Io,
        };
        let image = Self::new(kind, error.place, error.what).with_source(error.source);
        match error.hint {
            Some(hint) => image.with_hint(hint),
            None => image,
        }
    }
}
