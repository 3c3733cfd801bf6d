//! How registries may be spoken to.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Certificate;
use smolpack_format::read_text_file;

use crate::{Credentials, ErrorKind, RegistryError};

/// No file of certificates is longer, bytes.
const AUTHORITIES_MAX: u64 = 16 << 20;

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

impl RegistryAccess {
    /// The certificates of the files of `authorities`, each of which may hold several.
    pub(crate) fn certificates(&self) -> Result<Vec<Certificate>, RegistryError> {
        let mut found = Vec::new();
        for path in &self.authorities {
            let bytes = read_text_file(path, AUTHORITIES_MAX)
                .map_err(|e| RegistryError::io(path, "cannot read the certificates", e))?;
            let bad = |what: String| {
                RegistryError::new(ErrorKind::Corrupt, path.display().to_string(), what)
                    .hint("name a PEM file, with a line BEGIN CERTIFICATE in it")
            };
            let here = Certificate::from_pem_bundle(&bytes)
                .map_err(|e| bad(format!("its certificates cannot be read: {e}")))?;
            if here.is_empty() {
                return Err(bad("no certificate is in it".to_owned()));
            }
            found.extend(here);
        }
        Ok(found)
    }
}

/// When to try again after a failure that may pass: 429, a server's error, a broken connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts without progress, the first included; at least 1.
    pub attempts: u32,
    /// Before the second attempt; doubles each time, up to a minute.
    pub first_delay: Duration,
    /// A connection on which nothing moves for this long is given up.
    pub stall: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 6, first_delay: Duration::from_millis(500), stall: Duration::from_secs(30) }
    }
}

impl Retry {
    pub(crate) fn delay(&self, failures: u32) -> Duration {
        self.first_delay.saturating_mul(1 << failures.min(16)).min(Duration::from_mins(1))
    }
}
