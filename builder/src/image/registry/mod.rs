//! Images in registries: manifests and blobs come through `oci-client`, into the cache, verified.
//!
//! `oci-client` speaks the protocol and its authentication; what it lacks is here: retries with backoff,
//! going on after a break, several blobs at once, the choice of a platform with its variant, indexes
//! within indexes, and errors that say what lies at the end of their chain. The asynchronous runtime
//! it needs lives and ends in this module, on the calling thread.

mod credentials;
mod failure;
mod partial;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oci_client::Reference;
use oci_client::client::{
    BlobResponse, Certificate, CertificateEncoding, Client, ClientConfig, ClientProtocol,
};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use oci_client::secrets::RegistryAuth;
use smolpack_format::read_text_file;
use tokio::runtime::Runtime;

use super::cache::Shelf;
use super::digest::Digest;
use super::error::{ErrorKind, ImageError};
use super::manifest::{Blob, Blobs, Descriptor, check_size, check_small, read_small};
use super::{Context, Parts, layers};
pub use credentials::{Credentials, Login};
use failure::Failure;
use partial::Partial;

/// Blobs fetched at once.
const AT_ONCE: usize = 4;
/// A connection on which nothing comes for this long is given up.
const STALL: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(15);
/// No file of certificates is longer, bytes.
const AUTHORITIES_MAX: u64 = 16 << 20;

const MANIFESTS: [&str; 4] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];

/// How registries may be spoken to.
#[derive(Clone, Debug, Default)]
pub struct RegistryAccess {
    /// Logins; a registry without one is spoken to anonymously.
    pub credentials: Credentials,
    /// Registries, `HOST:PORT`, that are spoken to without TLS. No others are.
    pub plain_http: Vec<String>,
    /// PEM files of authorities to trust beside the system's.
    pub authorities: Vec<PathBuf>,
    /// How often and how soon to try again.
    pub retry: Retry,
}

/// When to try again after a failure that may pass: 429, a server's error, a broken connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts without progress, the first included; at least 1.
    pub attempts: u32,
    /// Before the second attempt; doubles each time, up to a minute.
    pub first_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 6, first_delay: Duration::from_millis(500) }
    }
}

impl Retry {
    fn delay(&self, failures: u32) -> Duration {
        self.first_delay.saturating_mul(1 << failures.min(16)).min(Duration::from_mins(1))
    }
}

/// Reads an image from its registry.
pub(super) fn load(reference: &Reference, context: &Context<'_>) -> Result<Parts, ImageError> {
    let registry = Registry::new(reference, context)?;
    context.reporter.phase("resolve", None);
    let start = registry.start()?;
    layers::load(&registry, &start, context)
}

struct Registry<'r, 'a> {
    runtime: Runtime,
    client: Client,
    auth: RegistryAuth,
    reference: &'r Reference,
    context: &'r Context<'a>,
}

impl<'r, 'a> Registry<'r, 'a> {
    fn new(reference: &'r Reference, context: &'r Context<'a>) -> Result<Self, ImageError> {
        let access = context.options.registry;
        let host = reference.registry();
        let place = || reference.whole();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ImageError::io_at(place(), "cannot start a network runtime", e))?;
        let client = Client::try_from(ClientConfig {
            protocol: ClientProtocol::HttpsExcept(access.plain_http.clone()),
            extra_root_certificates: authorities(&access.authorities)?,
            read_timeout: Some(STALL),
            connect_timeout: Some(CONNECT),
            user_agent: concat!("smolpack/", env!("CARGO_PKG_VERSION")),
            platform_resolver: None,
            ..ClientConfig::default()
        })
        .map_err(|e| Failure::of(&e, host).into_error(&place()))?;
        let auth = access.credentials.get(host).map_or(RegistryAuth::Anonymous, |login| {
            RegistryAuth::Basic(login.username.clone(), login.password.clone())
        });
        runtime.block_on(client.store_auth_if_needed(reference.resolve_registry(), &auth));
        Ok(Self { runtime, client, auth, reference, context })
    }

    fn host(&self) -> &str {
        self.reference.registry()
    }

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
        let place = reference.whole();
        let bytes = self
            .retrying(&place, async || {
                let (bytes, _) = self.client.pull_manifest_raw(reference, &self.auth, &MANIFESTS).await?;
                Ok(bytes)
            })
            .await?;
        let limit = self.context.options.limits.json_bytes;
        if bytes.len() as u64 > limit {
            return Err(ImageError::limit(
                place,
                format!("a manifest of {} bytes (at most {limit})", bytes.len()),
            ));
        }
        let asked = reference.digest().map(Digest::parse).transpose();
        let asked = asked.map_err(|why| ImageError::new(ErrorKind::BadReference, place.as_str(), why))?;
        let digest = asked.unwrap_or_else(|| Digest::of(&bytes));
        let mut partial = Partial::take(self.context.cache, &digest).await?;
        partial.restart()?;
        partial.append(&bytes)?;
        self.keep(partial, &place)?;
        Ok(descriptor(digest, bytes.len() as u64))
    }

    /// Calls until it succeeds, fails for good, or has failed too often.
    async fn retrying<T>(
        &self,
        place: &str,
        mut call: impl AsyncFnMut() -> Result<T, OciDistributionError>,
    ) -> Result<T, ImageError> {
        let retry = self.context.options.registry.retry;
        let mut failures = 0;
        loop {
            let failure = match call().await {
                Ok(value) => return Ok(value),
                Err(error) => Failure::of(&error, self.host()),
            };
            failures += 1;
            if !failure.transient || failures >= retry.attempts {
                return Err(failure.into_error(place));
            }
            self.wait(&failure, failures, place).await;
        }
    }

    async fn wait(&self, failure: &Failure, failures: u32, place: &str) {
        let delay = self.context.options.registry.retry.delay(failures - 1);
        let text = format!("{place}: {}; trying again in {:.1} s", failure.what, delay.as_secs_f64());
        self.context.reporter.note(&text);
        tokio::time::sleep(delay).await;
    }

    /// Fetches a blob into the cache, unless it is there.
    async fn fetch(&self, blob: &Descriptor) -> Result<(), ImageError> {
        let cache = self.context.cache;
        let is_kept = || Ok(cache.find(Shelf::Blobs, &blob.digest)?.is_some());
        if is_kept()? {
            return Ok(());
        }
        let mut partial = Partial::take(cache, &blob.digest).await?;
        // Another build may have finished it while this one waited.
        if is_kept()? {
            partial.discard();
            return Ok(());
        }
        self.complete(&mut partial, blob).await?;
        self.keep(partial, &self.place(blob))
    }

    /// Gets the bytes that are missing, however many attempts that takes as long as each brings some.
    async fn complete(&self, partial: &mut Partial, blob: &Descriptor) -> Result<(), ImageError> {
        let place = self.place(blob);
        let reporter = self.context.reporter;
        reporter.advance(partial.len);
        let retry = self.context.options.registry.retry;
        let (mut failures, mut from_start) = (0, partial.len == 0);
        loop {
            let before = partial.len;
            let result = if before < blob.size || (before == 0 && !partial.is_verified()) {
                self.attempt(partial, blob, &mut |bytes| reporter.advance(bytes)).await?
            } else {
                Ok(())
            };
            let failure = match result {
                Ok(()) if partial.is_verified() => return Ok(()),
                Ok(()) => {
                    let what = "what came is not what its digest says";
                    let failure = Failure::damaged(!from_start, what);
                    // What an earlier build left may be at fault; what came in one piece is not.
                    partial.restart()?;
                    from_start = true;
                    failure
                }
                Err(failure) => failure,
            };
            failures = if partial.len > before { 1 } else { failures + 1 };
            if !failure.transient || failures >= retry.attempts {
                return Err(failure.into_error(&place));
            }
            self.wait(&failure, failures, &place).await;
        }
    }

    /// One request for what is missing. The outer error is of this machine, the inner one of the registry.
    async fn attempt(
        &self,
        partial: &mut Partial,
        blob: &Descriptor,
        advance: &mut dyn FnMut(u64),
    ) -> Result<Result<(), Failure>, ImageError> {
        let digest = blob.digest.as_str();
        let response = if partial.len == 0 {
            self.client.pull_blob_stream(self.reference, digest).await.map(BlobResponse::Full)
        } else {
            self.client.pull_blob_stream_partial(self.reference, digest, partial.len, None).await
        };
        let mut body = match response {
            Ok(BlobResponse::Partial(body)) => body.stream,
            Ok(BlobResponse::Full(body)) => {
                partial.restart()?;
                body.stream
            }
            Err(error) => return Ok(Err(Failure::of(&error, self.host()))),
        };
        while let Some(next) = body.next().await {
            let bytes = match next {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(Failure::of_stream(&error, self.host()))),
            };
            if partial.len + bytes.len() as u64 > blob.size {
                partial.restart()?;
                let what = format!("more came than the {} bytes it should have", blob.size);
                return Ok(Err(Failure::damaged(false, what)));
            }
            partial.append(&bytes)?;
            advance(bytes.len() as u64);
        }
        if partial.len < blob.size {
            let what = format!("the registry sent {} of {} bytes", partial.len, blob.size);
            return Ok(Err(Failure::new(ErrorKind::Network, true, what)));
        }
        Ok(Ok(()))
    }

    /// Checks what came and keeps it.
    fn keep(&self, partial: Partial, place: &str) -> Result<(), ImageError> {
        if partial.is_verified() {
            return partial.publish(self.context.cache);
        }
        partial.discard();
        Err(Failure::damaged(false, "what came is not what its digest says").into_error(place))
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
                if MANIFESTS.contains(&blob.media_type.as_str()) {
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

/// Certificates out of PEM files, each of which may hold several.
fn authorities(paths: &[PathBuf]) -> Result<Vec<Certificate>, ImageError> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut found = Vec::new();
    for path in paths {
        let text = read_text_file(path, AUTHORITIES_MAX)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other))
            .map_err(|e| ImageError::io(path, "cannot read the certificates", e))?;
        let before = found.len();
        found.extend(text.split_inclusive(END).filter_map(|part| {
            let data = part.as_bytes()[part.find(BEGIN)?..].to_vec();
            Some(Certificate { encoding: CertificateEncoding::Pem, data })
        }));
        if found.len() == before {
            return Err(ImageError::corrupt(path.display().to_string(), "no certificate is in it")
                .with_hint("name a PEM file, with a line BEGIN CERTIFICATE in it"));
        }
    }
    Ok(found)
}
