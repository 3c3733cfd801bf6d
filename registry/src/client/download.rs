//! Blobs on their way here: however often the connection breaks, each byte comes once.

use bytes::Bytes;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};

use super::failure::Failure;
use super::{Call, Client, Repository, text_header};
use crate::{Digest, ErrorKind, RegistryError};

/// Takes a blob's bytes in order.
#[expect(async_fn_in_trait, reason = "everything here lives on one thread")]
pub trait Sink {
    /// Bytes taken so far; the next ones go on from there.
    fn position(&self) -> u64;
    /// Takes the next bytes.
    ///
    /// # Errors
    /// They cannot be kept, or cannot be right whatever follows.
    async fn take(&mut self, bytes: Bytes) -> Result<(), RegistryError>;
    /// Forgets what came: position 0.
    ///
    /// # Errors
    /// It cannot.
    fn restart(&mut self) -> Result<(), RegistryError>;
    /// Whether what came is the blob.
    fn is_whole(&self) -> bool;
}

/// A blob's bytes as they come, from some position on.
#[derive(Debug)]
pub struct Body {
    response: Response,
    /// The first byte's position in the blob.
    from: u64,
}

impl Client<'_> {
    /// Fetches what is missing of a blob of `size` bytes, in as many requests as that takes as long as each brings
    /// some.
    ///
    /// # Errors
    /// It is not there, or not what its digest says; the sink's; the registry or the way to it fails.
    pub async fn download(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
        sink: &mut impl Sink,
    ) -> Result<(), RegistryError> {
        let place = format!("{repository}, blob {}", digest.short());
        let (mut failures, mut from_start) = (0, sink.position() == 0);
        loop {
            let before = sink.position();
            let missing = before < size || (before == 0 && !sink.is_whole());
            let attempt =
                if missing { self.fetch_rest(repository, digest, size, sink).await? } else { Ok(()) };
            let failure = match attempt {
                Ok(()) if sink.is_whole() => return Ok(()),
                Ok(()) => {
                    let failure = Failure::damaged(!from_start, "what came is not what its digest says");
                    // What an earlier download left may be at fault; what came in one piece is not.
                    sink.restart()?;
                    from_start = true;
                    failure
                }
                Err(failure) => failure,
            };
            failures = if sink.position() > before { 1 } else { failures + 1 };
            self.give_up_or_wait(failure, failures, &place).await?;
        }
    }

    /// One request for what is missing. The outer error is the sink's, the inner one the registry's.
    async fn fetch_rest(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
        sink: &mut impl Sink,
    ) -> Result<Result<(), Failure>, RegistryError> {
        let mut body = match self.blob(repository, digest, sink.position()).await {
            Ok(body) => body,
            Err(failure) => return Ok(Err(failure)),
        };
        if body.from != sink.position() {
            sink.restart()?;
        }
        loop {
            match body.next(&repository.host).await {
                Err(failure) => return Ok(Err(failure)),
                Ok(None) => break,
                Ok(Some(bytes)) if sink.position() + bytes.len() as u64 > size => {
                    sink.restart()?;
                    let what = format!("more came than the {size} bytes it should have");
                    return Ok(Err(Failure::damaged(false, what)));
                }
                Ok(Some(bytes)) => sink.take(bytes).await?,
            }
        }
        if sink.position() < size {
            let what = format!("the registry sent {} of {size} bytes", sink.position());
            return Ok(Err(Failure::new(ErrorKind::Network, true, what)));
        }
        Ok(Ok(()))
    }

    /// Asks for a blob from a position on. A registry may send all of it all the same.
    async fn blob(&self, repository: &Repository, digest: &Digest, from: u64) -> Result<Body, Failure> {
        let call = Call { repository, what: digest.short(), write: false, from: None };
        let url = self.url(repository, &format!("blobs/{digest}"));
        let url = url.map_err(|e| Failure::new(e.kind, false, e.what))?;
        let request = || {
            let request = self.http.get(url.clone());
            if from == 0 { request } else { request.header(RANGE, format!("bytes={from}-")) }
        };
        let response = self.send(call, request).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Ok(Body { response, from: 0 });
        }
        let range = text_header(response.headers(), CONTENT_RANGE.as_str());
        let start =
            range.as_deref().and_then(|text| text.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
        if start != Some(from) {
            let what = format!("the registry answers with another part than was asked for ({range:?})");
            return Err(Failure::new(ErrorKind::Network, false, what));
        }
        Ok(Body { response, from })
    }
}

impl Body {
    async fn next(&mut self, host: &str) -> Result<Option<Bytes>, Failure> {
        self.response.chunk().await.map_err(|e| Failure::of_connection(&e, host))
    }
}
