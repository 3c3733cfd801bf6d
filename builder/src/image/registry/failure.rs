//! What a registry's failures mean: whether to try again, and what to tell the user.

use std::error::Error;

use oci_client::errors::{OciDistributionError, OciErrorCode};

use super::super::error::{ErrorKind, ImageError};

/// A failed request.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether the same request may succeed later.
    pub(super) transient: bool,
    pub(super) kind: ErrorKind,
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, transient: bool, what: impl Into<String>) -> Self {
        Self { transient, kind, what: what.into(), hint: None }
    }

    /// What came is not what it should be.
    pub(super) fn damaged(transient: bool, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::DigestMismatch, transient, what)
            .hint("the registry, or something on the way to it, damages data; try another one")
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn into_error(self, place: &str) -> ImageError {
        let error = ImageError::new(self.kind, place, self.what);
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Sorts what the client reports. `host` is for the hints.
    pub(super) fn of(error: &OciDistributionError, host: &str) -> Self {
        match error {
            OciDistributionError::UnauthorizedError { .. }
            | OciDistributionError::AuthenticationFailure(_) => unauthorized(host),
            OciDistributionError::ServerError { code, message, .. } => status(*code, message, host),
            OciDistributionError::RegistryError { envelope, .. } => {
                let texts: Vec<String> = envelope.errors.iter().map(|e| e.message.clone()).collect();
                envelope.errors.first().map_or_else(
                    || {
                        Self::new(
                            ErrorKind::Network,
                            false,
                            "the registry reports an error without saying which",
                        )
                    },
                    |first| code(&first.code, &texts.join("; "), host),
                )
            }
            OciDistributionError::ImageManifestNotFoundError(_) => not_found(host),
            OciDistributionError::DigestError(error) => {
                Self::damaged(true, format!("the registry sent other data: {error}"))
            }
            OciDistributionError::RequestError(_) | OciDistributionError::IoError(_) => {
                connection(error, host)
            }
            other => Self::new(ErrorKind::Network, false, chain(other)),
        }
    }

    /// A stream that broke off.
    pub(super) fn of_stream(error: &std::io::Error, host: &str) -> Self {
        let text = chain(error);
        if text.contains("Invalid digest") {
            return Self::damaged(true, format!("the registry sent other data: {text}"));
        }
        connection(error, host)
    }
}

fn unauthorized(host: &str) -> Failure {
    Failure::new(ErrorKind::Unauthorized, false, "the registry wants a login that may read this")
        .hint(format!("log in with `docker login {host}`, or check the name: private and missing look alike"))
}

fn not_found(host: &str) -> Failure {
    Failure::new(ErrorKind::NotFound, false, format!("there is no such image at {host}"))
        .hint("check the name and the tag")
}

fn status(code: u16, message: &str, host: &str) -> Failure {
    let detail: String = message.chars().take(200).collect();
    match code {
        401 | 403 => unauthorized(host),
        404 => not_found(host),
        408 | 425 | 429 | 500..=599 => Failure::new(
            ErrorKind::Network,
            true,
            format!("the registry answers {code} {}", detail.escape_debug()),
        )
        .hint("try again later"),
        _ => Failure::new(
            ErrorKind::Network,
            false,
            format!("the registry answers {code} {}", detail.escape_debug()),
        )
        .hint(format!("ask whoever runs {host}")),
    }
}

fn code(code: &OciErrorCode, text: &str, host: &str) -> Failure {
    match code {
        OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound => not_found(host),
        OciErrorCode::BlobUnknown | OciErrorCode::ManifestBlobUnknown => {
            Failure::new(ErrorKind::NotFound, false, "the registry has the image, but not this part of it")
                .hint("push the image again; a layer that may not be distributed must be had elsewhere")
        }
        OciErrorCode::Unauthorized | OciErrorCode::Denied => unauthorized(host),
        OciErrorCode::Toomanyrequests => {
            Failure::new(ErrorKind::Network, true, format!("the registry wants fewer requests: {text}"))
                .hint("log in to have a higher limit, or try again later")
        }
        code => Failure::new(ErrorKind::Network, false, format!("the registry reports {code:?}: {text}"))
            .hint(format!("ask whoever runs {host}")),
    }
}

/// A request that got no answer, or not all of one. What matters stands at the end of the chain.
fn connection(error: &(dyn Error + 'static), host: &str) -> Failure {
    let text = chain(error);
    let lower = text.to_lowercase();
    let fatal = |what: &str, hint: String| {
        Failure::new(ErrorKind::Network, false, format!("{what} ({text})")).hint(hint)
    };
    if lower.contains("unknownissuer")
        || lower.contains("unknown issuer")
        || lower.contains("self-signed")
        || lower.contains("self signed")
    {
        return fatal(
            "its certificate is of an authority that is not trusted",
            format!("name the authority's certificate file for {host}"),
        );
    }
    if lower.contains("invalid peer certificate") || lower.contains("certificate") {
        return fatal(
            "its certificate is not accepted",
            format!("check the certificate of {host} and this machine's clock"),
        );
    }
    if lower.contains("invalidcontenttype") || lower.contains("corrupt message") {
        return fatal(
            "it does not speak TLS",
            format!("if {host} is meant to be spoken to without TLS, name it as such"),
        );
    }
    if lower.contains("dns error") || lower.contains("failed to lookup") {
        return fatal("its host's name is not known", "check the name and the network".to_owned());
    }
    Failure::new(ErrorKind::Network, true, format!("the connection failed: {text}"))
        .hint("check the network, then try again")
}

/// An error and all that caused it, each once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}
