//! Docker's credential helpers: programs `docker-credential-NAME` that keep logins.
//!
//! They read a server's address, or a login as JSON, on standard input, and answer with JSON or with a line that
//! says what is wrong (docker/docker-credential-helpers, `credentials/credentials.go`).

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{ErrorKind, Login, RegistryError};

/// How long a helper may take; it may ask its user something.
const PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(10);
/// No answer is longer, bytes.
const ANSWER_MAX: u64 = 64 << 10;
/// The user's name that says that the secret is an identity token.
const TOKEN: &str = "<token>";
/// How every helper begins to say that it has no such login.
const NOT_FOUND: &str = "credentials not found";

/// A credential helper.
#[derive(Debug)]
pub(crate) struct Helper(String);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "ServerURL", default)]
    server: String,
    username: String,
    secret: String,
}

impl Helper {
    pub(crate) fn named(name: &str) -> Self {
        Self(format!("docker-credential-{name}"))
    }

    /// The login that is kept for a server.
    pub(crate) fn get(&self, server: &str) -> Result<Option<Login>, RegistryError> {
        let (success, answer) = self.run("get", server.as_bytes())?;
        if !success {
            return if answer.starts_with(NOT_FOUND) { Ok(None) } else { Err(self.refused("get", &answer)) };
        }
        let Entry { username, secret, .. } = serde_json::from_str(&answer)
            .map_err(|e| self.error(format!("what it answers for {server} is no login: {e}")))?;
        Ok(Some(match username.as_str() {
            TOKEN => Login::Identity(secret),
            _ => Login::Password { username, password: secret },
        }))
    }

    fn run(&self, verb: &str, input: &[u8]) -> Result<(bool, String), RegistryError> {
        let failed = |e: io::Error| RegistryError {
            source: Some(e),
            ..self.error(format!("the credential helper cannot run (`{} {verb}`)", self.0))
        };
        let mut command = Command::new(&self.0);
        command.arg(verb).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(failed)?;
        let mut stdin = child.stdin.take();
        let mut stdout = child.stdout.take();
        // Both are short, and a helper reads before it answers; one that goes without reading says why below.
        if let Some(stdin) = &mut stdin {
            let _ = stdin.write_all(input);
        }
        drop(stdin);
        let answer = std::thread::spawn(move || {
            let mut answer = String::new();
            let read = stdout.as_mut().map(|stdout| stdout.take(ANSWER_MAX).read_to_string(&mut answer));
            read.transpose().map(|_| answer)
        });
        let since = Instant::now();
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if since.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(self.error(format!("it did not answer in {} s", PATIENCE.as_secs())));
                }
                None => std::thread::sleep(POLL),
            }
        };
        let answer = answer.join().map_err(|_| self.error("its answer cannot be read"))?.map_err(failed)?;
        Ok((status.success(), answer.trim().to_owned()))
    }

    fn refused(&self, verb: &str, answer: &str) -> RegistryError {
        self.error(format!("`{} {verb}` failed: {answer}", self.0))
    }

    fn error(&self, what: impl Into<String>) -> RegistryError {
        RegistryError::new(ErrorKind::Io, self.0.as_str(), what)
            .hint("mend the helper, or take it out of docker's config.json (credsStore, credHelpers)")
    }
}
