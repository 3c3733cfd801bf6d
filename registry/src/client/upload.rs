//! Blobs on their way to a registry: what is there is not sent, and each is sent in one piece where the registry
//! takes that.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION};
use reqwest::{Response, StatusCode, Url};

use super::failure::{self, Failure};
use super::{Call, Client, Repository, text_header};
use crate::{Digest, ErrorKind, RegistryError};

/// Bytes read at once.
const STEP: u64 = 256 << 10;
/// Bytes in one piece of a blob that has to be sent in pieces; a widely used registry takes no more.
const PIECE: u64 = 4 << 20;
/// How long a registry may take to store what was sent.
pub(super) const COMMIT: Duration = Duration::from_mins(5);

/// A blob's bytes, which can be read more than once.
#[derive(Clone, Debug)]
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// In a file: the first byte's place, and how many there are.
    File(Arc<File>, u64, u64),
}

impl Content {
    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, _, len) => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// At most `len` bytes from a position on.
    fn read(&self, at: u64, len: u64) -> io::Result<Bytes> {
        let len = len.min(self.len() - at);
        match self {
            Self::Memory(bytes) => Ok(bytes.slice(at as usize..(at + len) as usize)),
            Self::File(file, start, _) => {
                let mut buffer = vec![0; len as usize];
                file.read_exact_at(&mut buffer, start + at)?;
                Ok(buffer.into())
            }
        }
    }

    /// The bytes from `at` to `end` as a request's body, which counts what was taken of it.
    fn body(&self, at: u64, end: u64, sent: &Arc<AtomicU64>) -> reqwest::Body {
        let state = (self.clone(), at, Arc::clone(sent));
        reqwest::Body::wrap_stream(stream::unfold(state, move |(content, at, sent)| async move {
            if at >= end {
                return None;
            }
            let part = content.read(at, STEP.min(end - at));
            let next = at + part.as_ref().map_or(end, |part| part.len() as u64);
            sent.fetch_add(next - at, Ordering::Relaxed);
            Some((part, (content, next, sent)))
        }))
    }
}

/// Where an upload goes on.
enum Begun {
    /// The registry had the blob elsewhere and needs nothing.
    Mounted,
    At(Url),
}

impl Client<'_> {
    /// Sends a blob to a repository. `from` is a repository of the same registry that may have it.
    ///
    /// # Errors
    /// The registry or the way to it fails, or does not take it.
    pub async fn upload(
        &self,
        repository: &Repository,
        digest: &Digest,
        content: &Content,
        from: Option<&str>,
    ) -> Result<(), RegistryError> {
        let place = format!("{repository}, blob {}", digest.short());
        let call = Call { repository, what: "an upload", write: true, from };
        self.retrying(&place, async || {
            let Begun::At(url) = self.begin(call, digest).await? else { return Ok(()) };
            match self.put_whole(call, url, digest, content).await {
                // Too much at once, or no such way: in pieces then, from a new beginning.
                Err(failure) if matches!(failure.status, Some(405 | 411 | 413 | 416 | 501)) => {
                    let Begun::At(url) = self.begin(call, digest).await? else { return Ok(()) };
                    self.put_pieces(call, url, digest, content).await
                }
                done => done,
            }
        })
        .await
    }

    /// Has a registry take a blob over from another of its repositories; whether it did.
    ///
    /// # Errors
    /// The registry or the way to it fails.
    pub async fn mount(
        &self,
        repository: &Repository,
        digest: &Digest,
        from: &str,
    ) -> Result<bool, RegistryError> {
        let place = format!("{repository}, blob {}", digest.short());
        let call = Call { repository, what: "an upload", write: true, from: Some(from) };
        // An upload that was begun instead is left to end by itself.
        self.retrying(&place, async || Ok(matches!(self.begin(call, digest).await?, Begun::Mounted))).await
    }

    async fn begin(&self, call: Call<'_>, digest: &Digest) -> Result<Begun, Failure> {
        let url = self.url(call.repository, "blobs/uploads/");
        let mut url = url.map_err(|e| Failure::new(e.kind, false, e.what))?;
        if let Some(from) = call.from {
            url.query_pairs_mut().append_pair("mount", digest.as_str()).append_pair("from", from);
        }
        let request = || self.http.post(url.clone()).header(CONTENT_LENGTH, 0);
        let response = self.send(call, request).await?;
        if response.status() == StatusCode::CREATED {
            return Ok(Begun::Mounted);
        }
        self.location(call, &response).map(Begun::At)
    }

    /// Where the next request of an upload goes.
    fn location(&self, call: Call<'_>, response: &Response) -> Result<Url, Failure> {
        let host = &call.repository.host;
        let bad = |what: &str| Failure::new(ErrorKind::Network, false, what).hint(failure::ask(host));
        let location = text_header(response.headers(), LOCATION.as_str());
        let location = location.ok_or_else(|| bad("it does not say where an upload goes"))?;
        let url = response.url().join(&location).map_err(|_| bad("it says an upload goes to no address"))?;
        if url.scheme() != "https" && !self.is_plain(host) {
            return Err(bad("it says an upload goes to an address without TLS"));
        }
        Ok(url)
    }

    async fn put_whole(
        &self,
        call: Call<'_>,
        mut url: Url,
        digest: &Digest,
        content: &Content,
    ) -> Result<(), Failure> {
        url.query_pairs_mut().append_pair("digest", digest.as_str());
        let len = content.len();
        let sent = Arc::new(AtomicU64::new(0));
        let request = || {
            sent.store(0, Ordering::Relaxed);
            let request = self.uploads.put(url.clone()).header(CONTENT_TYPE, "application/octet-stream");
            request.header(CONTENT_LENGTH, len).body(content.body(0, len, &sent))
        };
        self.moving(&sent, len, self.send(call, request)).await.map(drop)
    }

    async fn put_pieces(
        &self,
        call: Call<'_>,
        mut url: Url,
        digest: &Digest,
        content: &Content,
    ) -> Result<(), Failure> {
        let len = content.len();
        let mut at = 0;
        while at < len {
            let end = (at + PIECE).min(len);
            let sent = Arc::new(AtomicU64::new(0));
            let request = || {
                let request =
                    self.uploads.patch(url.clone()).header(CONTENT_TYPE, "application/octet-stream");
                let request = request.header(CONTENT_RANGE, format!("{at}-{}", end - 1));
                request.header(CONTENT_LENGTH, end - at).body(content.body(at, end, &sent))
            };
            let response = self.moving(&sent, end - at, self.send(call, request)).await?;
            url = self.location(call, &response)?;
            at = end;
        }
        url.query_pairs_mut().append_pair("digest", digest.as_str());
        let request = || self.uploads.put(url.clone()).header(CONTENT_LENGTH, 0).timeout(COMMIT);
        self.send(call, request).await.map(drop)
    }

    /// Waits for an answer for as long as the body moves.
    async fn moving(
        &self,
        sent: &AtomicU64,
        len: u64,
        answer: impl Future<Output = Result<Response, Failure>>,
    ) -> Result<Response, Failure> {
        let mut answer = std::pin::pin!(answer);
        loop {
            let now = sent.load(Ordering::Relaxed);
            let patience =
                if now >= len { COMMIT.max(self.access.retry.stall) } else { self.access.retry.stall };
            tokio::select! {
                done = &mut answer => return done,
                () = tokio::time::sleep(patience) => {
                    if sent.load(Ordering::Relaxed) == now {
                        let what = format!("the upload stands still after {now} of {len} bytes");
                        return Err(Failure::new(ErrorKind::Network, true, what));
                    }
                }
            }
        }
    }
}
