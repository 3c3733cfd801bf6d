//! What a registry's failures mean: whether to try again, when, and what to tell the user.

use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::Response;
use serde::Deserialize;

use super::{ANSWER_MAX, Call, bounded, text_header};
use crate::{ErrorKind, RegistryError};

/// No registry's wish to be left alone is heeded for longer.
const PATIENCE: Duration = Duration::from_mins(5);
/// Characters of a registry's own words that are told.
const WORDS: usize = 300;

/// A failed request.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether the same request may succeed later.
    pub(super) transient: bool,
    pub(super) kind: ErrorKind,
    pub(super) what: String,
    pub(super) hint: Option<String>,
    /// The answer's status, where there was one.
    pub(super) status: Option<u16>,
    /// When the registry wants the next request.
    pub(super) after: Option<Duration>,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, transient: bool, what: impl Into<String>) -> Self {
        Self { transient, kind, what: what.into(), hint: None, status: None, after: None }
    }

    /// What came is not what it should be.
    pub(super) fn damaged(transient: bool, what: impl Into<String>) -> Self {
        Self::new(ErrorKind::DigestMismatch, transient, what)
            .hint("the registry, or something on the way to it, damages data; try another one")
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        self.maybe_hint(Some(hint.into()))
    }

    pub(super) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    pub(super) fn into_error(self, place: &str) -> RegistryError {
        let error = RegistryError::new(self.kind, place, self.what);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    /// An answer that is not success.
    pub(super) async fn of_response(response: Response, call: Call<'_>) -> Self {
        let status = response.status().as_u16();
        let after = text_header(response.headers(), "retry-after").and_then(|text| retry_after(&text));
        let body = bounded(response, ANSWER_MAX, &call.repository.host).await.unwrap_or_default();
        let answer = Answer::parse(&body);
        let failure = of_status(status, &answer, call);
        match after {
            Some(after) if after > PATIENCE => {
                let what = format!("{}, and wants no request for {} s", failure.what, after.as_secs());
                Self { status: Some(status), transient: false, what, ..failure }
            }
            after => Self { status: Some(status), after, ..failure },
        }
    }

    /// A request that got no answer, or not all of one. What matters stands at the end of the chain.
    pub(super) fn of_connection(error: &(dyn Error + 'static), host: &str) -> Self {
        let text = chain(error);
        let lower = text.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let fatal = |what: &str, hint: String| {
            Self::new(ErrorKind::Network, false, format!("{what} ({text})")).hint(hint)
        };
        if says(&["unknownissuer", "unknown issuer", "self-signed", "self signed"]) {
            let hint = format!("trust the authority of {host}: --ca FILE, or ca in the configuration file");
            return fatal("its certificate is of an authority that is not trusted", hint);
        }
        if says(&["certificate"]) {
            let hint = format!("check the certificate of {host} and this machine's clock");
            return fatal("its certificate is not accepted", hint);
        }
        if says(&["invalidcontenttype", "corrupt message"]) {
            let hint =
                format!("if {host} is meant to be spoken to without TLS, name it: --plain-http {host}");
            return fatal("it does not speak TLS", hint);
        }
        if says(&["dns error", "failed to lookup"]) {
            return fatal("its host's name is not known", "check the name and the network".to_owned());
        }
        if says(&["it redirects"]) {
            return fatal("it cannot be followed", ask(host));
        }
        Self::new(ErrorKind::Network, true, format!("the connection failed: {text}"))
            .hint("check the network, then try again")
    }
}

/// The errors of an answer (OCI Distribution Specification 1.1, "Error Codes").
#[derive(Default)]
struct Answer {
    code: String,
    /// The registry's own words, in brackets, or nothing.
    words: String,
}

impl Answer {
    fn parse(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Envelope {
            errors: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            #[serde(default)]
            code: String,
            #[serde(default)]
            message: String,
        }
        if let Ok(Envelope { errors }) = serde_json::from_slice(body) {
            let texts = errors.iter().map(|item| format!("{}: {}", item.code, item.message));
            let texts = texts.collect::<Vec<_>>().join("; ");
            let code = errors.into_iter().next().map(|item| item.code).unwrap_or_default();
            return Self { code, words: in_brackets(&texts) };
        }
        Self { code: String::new(), words: in_brackets(String::from_utf8_lossy(body).trim()) }
    }
}

fn in_brackets(text: &str) -> String {
    let text: String = text.chars().take(WORDS).collect();
    if text.is_empty() { text } else { format!(" ({text})") }
}

fn of_status(status: u16, Answer { code, words }: &Answer, call: Call<'_>) -> Failure {
    let Call { repository, what, write, .. } = call;
    let host = &repository.host;
    let says = format!("the registry answers {status}{words}");
    match (status, code.as_str()) {
        (429, _) | (_, "TOOMANYREQUESTS") => Failure::new(
            ErrorKind::Network,
            true,
            format!("the registry answers 429 and wants fewer requests{words}"),
        )
        .hint("log in to have a higher limit, or try again later"),
        (401 | 403, _) | (_, "UNAUTHORIZED" | "DENIED") => {
            let may = if write { "write to" } else { "read" };
            let what = format!("the registry wants a login that may {may} {}{words}", repository.name);
            Failure::new(ErrorKind::Unauthorized, false, what).hint(format!(
                "log in with `smolpack login {host}`, or check the name: private and missing look alike"
            ))
        }
        (_, "BLOB_UNKNOWN" | "MANIFEST_BLOB_UNKNOWN") if !write => {
            let what = format!("the registry has the image, but not this part of it{words}");
            Failure::new(ErrorKind::NotFound, false, what)
                .hint("push it again; a layer that may not be distributed must be had elsewhere")
        }
        (_, "NAME_UNKNOWN") => {
            let what = format!("there is no repository {} at {host}{words}", repository.name);
            Failure::new(ErrorKind::NotFound, false, what).hint("check the name")
        }
        (404, _) => {
            let what = format!("there is no such image: {what} in {} at {host}{words}", repository.name);
            Failure::new(ErrorKind::NotFound, false, what).hint("check the name and the tag")
        }
        (408 | 425 | 500..=599, _) => Failure::new(ErrorKind::Network, true, says).hint("try again later"),
        // An upload that the registry has forgotten: it begins anew.
        (_, "BLOB_UPLOAD_UNKNOWN" | "BLOB_UPLOAD_INVALID") => Failure::new(ErrorKind::Network, true, says),
        _ => Failure::new(ErrorKind::Network, false, says).hint(ask(host)),
    }
}

/// `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

pub(super) fn ask(host: &str) -> String {
    format!("ask whoever runs {host}")
}

/// An error and all that caused it, each once.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(retry_after(&later).unwrap() > Duration::from_secs(90));
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn a_registrys_words_are_told_and_bounded() {
        let json = br#"{"errors":[{"code":"DENIED","message":"no"},{"code":"X"}]}"#;
        let answer = Answer::parse(json);
        assert_eq!((answer.code.as_str(), answer.words.as_str()), ("DENIED", " (DENIED: no; X: )"));
        assert!(Answer::parse(&[b'x'; 10_000]).words.len() < 400);
        assert_eq!(Answer::parse(b" ").words, "");
    }
}
