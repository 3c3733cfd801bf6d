//! A client of the distribution protocol (OCI Distribution Specification 1.1).
//!
//! A request that fails in a way that may pass is made again, later each time, or when the registry says so
//! (`Retry-After`). Answers are bounded; data that comes with a digest is checked against it.

mod auth;
mod download;
mod failure;
mod upload;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use oci_spec::distribution::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};

use crate::{Digest, ErrorKind, RegistryAccess, RegistryError};
pub use download::{Body, Sink};
use failure::Failure;
pub use upload::Content;

const CONNECT: Duration = Duration::from_secs(15);
const REDIRECTS: usize = 5;
/// No answer that is not a manifest or a blob is longer, bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// What an image's manifest may be.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";
/// Docker Hub's name in references, and where its registry is.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// A repository at a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    /// The registry, `HOST` or `HOST:PORT`.
    pub host: String,
    /// The repository's name there.
    pub name: String,
}

impl From<&Reference> for Repository {
    fn from(reference: &Reference) -> Self {
        Self { host: reference.registry().to_owned(), name: reference.repository().to_owned() }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.name)
    }
}

/// A manifest or an index, as it is in the registry.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its bytes, checked against their digest where there was one to check against.
    pub bytes: Vec<u8>,
    /// What the registry says it is.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
}

/// What a request is about, for its authorization and its errors.
#[derive(Clone, Copy, Debug)]
struct Call<'c> {
    repository: &'c Repository,
    /// What is asked for: a tag, a digest, or what is done.
    what: &'c str,
    write: bool,
    /// A repository of the same registry that is read from.
    from: Option<&'c str>,
}

/// Speaks to registries. Lives on one thread; its futures may run at once there.
pub struct Client<'a> {
    http: reqwest::Client,
    /// Without the time-out of reads, which would run while a body is sent.
    uploads: reqwest::Client,
    access: &'a RegistryAccess,
    note: &'a dyn Fn(&str),
    /// By host and scope.
    authorizations: RefCell<HashMap<(String, String), HeaderValue>>,
}

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("access", &self.access).finish_non_exhaustive()
    }
}

impl<'a> Client<'a> {
    /// A client; `note` is told of what goes wrong and is tried again.
    ///
    /// # Errors
    /// The certificates of `access` cannot be read.
    pub fn new(access: &'a RegistryAccess, note: &'a dyn Fn(&str)) -> Result<Self, RegistryError> {
        let certificates = access.certificates()?;
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("smolpack/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT)
                .redirect(Policy::custom(redirect))
                .tls_certs_merge(certificates.clone())
        };
        let failed = |e: reqwest::Error| {
            RegistryError::new(ErrorKind::Network, "the network", failure::chain(&e))
                .hint("check the certificates and the proxy that this machine names")
        };
        Ok(Self {
            http: builder().read_timeout(access.retry.stall).build().map_err(failed)?,
            uploads: builder().build().map_err(failed)?,
            access,
            note,
            authorizations: RefCell::default(),
        })
    }

    /// Fetches a manifest or index of at most `max` bytes.
    ///
    /// # Errors
    /// It is not there, too long, not what its digest says; or the registry or the way to it fails.
    pub async fn manifest(&self, reference: &Reference, max: u64) -> Result<Manifest, RegistryError> {
        let repository = Repository::from(reference);
        let name = reference.digest().or(reference.tag()).unwrap_or("latest");
        let expected = reference.digest().map(Digest::parse).transpose();
        let expected =
            expected.map_err(|why| RegistryError::new(ErrorKind::BadReference, reference.whole(), why))?;
        let call = Call { repository: &repository, what: name, write: false, from: None };
        let url = self.url(&repository, &format!("manifests/{name}"))?;
        self.retrying(&reference.whole(), async || {
            let request = || self.http.get(url.clone()).header(ACCEPT, MANIFESTS);
            let response = self.send(call, request).await?;
            let media_type = text_header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or_default();
            let said = text_header(response.headers(), "docker-content-digest");
            let bytes = bounded(response, max, &repository.host).await?;
            // Where the name is no digest, the registry may still say one.
            let said = said.and_then(|text| Digest::parse(&text).ok());
            let digest = Digest::like(expected.as_ref().or(said.as_ref()), &bytes);
            if let Some(wanted) = expected.as_ref().or(said.as_ref()).filter(|wanted| **wanted != digest) {
                return Err(Failure::damaged(true, format!("the registry sent {digest}, not {wanted}")));
            }
            Ok(Manifest { bytes, media_type, digest })
        })
        .await
    }

    /// Puts a manifest or index under a reference's tag, or its digest where it has none.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn put_manifest(
        &self,
        reference: &Reference,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        let repository = Repository::from(reference);
        let digest = Digest::of(bytes);
        let name = reference.tag().unwrap_or(digest.as_str());
        let call = Call { repository: &repository, what: name, write: true, from: None };
        let url = self.url(&repository, &format!("manifests/{name}"))?;
        self.retrying(&reference.whole(), async || {
            let request = || {
                let request = self.uploads.put(url.clone()).header(CONTENT_TYPE, media_type);
                request.timeout(upload::COMMIT).body(bytes.to_vec())
            };
            self.send(call, request).await.map(drop)
        })
        .await
    }

    /// The length of a blob, where the repository has it.
    ///
    /// # Errors
    /// The registry or the way to it fails.
    pub async fn blob_size(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<u64>, RegistryError> {
        // Asked of a repository that will be written to, mostly.
        let call = Call { repository, what: digest.short(), write: true, from: None };
        let url = self.url(repository, &format!("blobs/{digest}"))?;
        let place = format!("{repository}, blob {}", digest.short());
        self.retrying(&place, async || match self.send(call, || self.http.head(url.clone())).await {
            Ok(response) => {
                let length = text_header(response.headers(), CONTENT_LENGTH.as_str());
                Ok(Some(length.and_then(|text| text.parse().ok()).unwrap_or(0)))
            }
            Err(failure) if failure.kind == ErrorKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        })
        .await
    }

    /// One request, made again once with the authorization that the registry asks for.
    async fn send(&self, call: Call<'_>, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        let response = self.once(call, request()).await?;
        let response = if response.status() == StatusCode::UNAUTHORIZED {
            self.authorize(call, response).await?;
            self.once(call, request()).await?
        } else {
            response
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Failure::of_response(response, call).await)
    }

    async fn once(&self, call: Call<'_>, request: RequestBuilder) -> Result<Response, Failure> {
        let failed = |e: reqwest::Error| Failure::of_connection(&e, &call.repository.host);
        let mut request = request.build().map_err(failed)?;
        // An upload may go on at another host, which has no business with the login of this one.
        if self.is_own(call.repository, request.url())
            && let Some(value) = self.authorizations.borrow().get(&call.key())
        {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        let bears_body = matches!(*request.method(), Method::PUT | Method::PATCH);
        let http = if bears_body { &self.uploads } else { &self.http };
        http.execute(request).await.map_err(failed)
    }

    /// Calls until it succeeds, fails for good, or has failed too often.
    async fn retrying<T>(
        &self,
        place: &str,
        mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, RegistryError> {
        let mut failures = 0;
        loop {
            let failure = match attempt().await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            failures += 1;
            self.give_up_or_wait(failure, failures, place).await?;
        }
    }

    /// Waits before the next attempt, after so many failures in a row; an error where there is to be none.
    async fn give_up_or_wait(
        &self,
        failure: Failure,
        failures: u32,
        place: &str,
    ) -> Result<(), RegistryError> {
        let retry = self.access.retry;
        if !failure.transient || failures >= retry.attempts {
            return Err(failure.into_error(place));
        }
        let delay = failure.after.unwrap_or_else(|| retry.delay(failures - 1));
        (self.note)(&format!("{place}: {}; trying again in {:.1} s", failure.what, delay.as_secs_f64()));
        tokio::time::sleep(delay).await;
        Ok(())
    }

    fn url(&self, repository: &Repository, path: &str) -> Result<Url, RegistryError> {
        let text = format!("{}/v2/{}/{path}", self.origin(&repository.host), repository.name);
        Url::parse(&text).map_err(|e| {
            RegistryError::new(ErrorKind::BadReference, repository.to_string(), format!("no address: {e}"))
        })
    }

    fn origin(&self, host: &str) -> String {
        let scheme = if self.is_plain(host) { "http" } else { "https" };
        let host = if host == DOCKER_HUB.0 { DOCKER_HUB.1 } else { host };
        format!("{scheme}://{host}")
    }

    fn is_plain(&self, host: &str) -> bool {
        self.access.plain_http.iter().any(|plain| plain == host)
    }

    /// Whether an address is the registry's own.
    fn is_own(&self, repository: &Repository, url: &Url) -> bool {
        Url::parse(&self.origin(&repository.host)).is_ok_and(|own| own.origin() == url.origin())
    }
}

impl Call<'_> {
    fn key(&self) -> (String, String) {
        (self.repository.host.clone(), self.scopes().join(" "))
    }

    fn scopes(&self) -> Vec<String> {
        let actions = if self.write { "pull,push" } else { "pull" };
        let mut scopes = vec![format!("repository:{}:{actions}", self.repository.name)];
        scopes.extend(self.from.map(|name| format!("repository:{name}:pull")));
        scopes
    }
}

/// Follows some redirects, never to an address without TLS. The library keeps authorization from other hosts.
fn redirect(attempt: Attempt<'_>) -> Action {
    let was_safe = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    if was_safe && attempt.url().scheme() != "https" {
        return attempt.error("it redirects to an address without TLS");
    }
    if attempt.previous().len() > REDIRECTS {
        return attempt.error("it redirects too often");
    }
    attempt.follow()
}

/// A header, where it is text.
fn text_header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// A body, whole, of at most `max` bytes.
async fn bounded(mut response: Response, max: u64, host: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|e| Failure::of_connection(&e, host))? {
        if (bytes.len() + part.len()) as u64 > max {
            let what = format!("the registry answers with more than the {max} bytes that may be");
            return Err(Failure::new(ErrorKind::Limit, false, what));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}
