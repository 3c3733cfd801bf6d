//! Who the user is to a registry, as Docker's `config.json` says it.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use serde::Deserialize;

use super::super::error::ImageError;
use super::super::manifest::json;

/// Docker Hub has several names; this is the one used here.
const DOCKER_HUB: &str = "docker.io";

/// A user's name and password at a registry. The password stays out of debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub username: String,
    /// The password or access token.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Logins by registry, `HOST` or `HOST:PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    logins: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// Reads the `auths` of a Docker `config.json`; `place` is its path, for messages. Entries without a
    /// login in them (credential helpers keep those) are left out.
    ///
    /// # Errors
    /// Where it is no JSON, or a login in it is not as Docker writes it.
    pub fn from_docker_config(bytes: &[u8], place: &str) -> Result<Self, ImageError> {
        let config: DockerConfig = json(bytes, place)?;
        let mut credentials = Self::default();
        for (server, auth) in config.auths {
            let bad = |()| {
                ImageError::corrupt(place, format!("the login for {server} is not USER:PASSWORD in base64"))
                    .with_hint(format!("log in again: docker login {server}"))
            };
            if let Some(login) = login(auth).map_err(bad)? {
                credentials.insert(&server, login);
            }
        }
        Ok(credentials)
    }

    /// Adds a login for a registry, replacing an earlier one.
    pub fn insert(&mut self, registry: &str, login: Login) {
        self.logins.insert(host_of(registry), login);
    }

    /// The login for a registry, where there is one.
    #[must_use]
    pub fn get(&self, registry: &str) -> Option<&Login> {
        self.logins.get(&host_of(registry))
    }
}

fn login(entry: DockerAuth) -> Result<Option<Login>, ()> {
    match (entry.auth.filter(|auth| !auth.is_empty()), entry.username, entry.password) {
        (Some(auth), _, _) => decode(&auth).ok_or(()).map(Some),
        (None, Some(username), Some(password)) => Ok(Some(Login { username, password })),
        _ => Ok(None),
    }
}

fn decode(auth: &str) -> Option<Login> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (username, password) = text.trim_end_matches('\0').split_once(':')?;
    Some(Login { username: username.into(), password: password.into() })
}

/// `https://index.docker.io/v1/` and the like, without scheme and path.
fn host_of(server: &str) -> String {
    let bare = server.strip_prefix("https://").or(server.strip_prefix("http://")).unwrap_or(server);
    let host = bare.split('/').next().unwrap_or(bare);
    match host {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_docker_config_reads_every_form_and_passes_over_helpers() {
        let json = br#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"dXNlcjpwYTpzcw=="},
            "ghcr.io":{"username":"u","password":"p"},
            "helped.example":{}},"credsStore":"desktop"}"#;
        let credentials = Credentials::from_docker_config(json, "config.json").unwrap();
        let hub = credentials.get("docker.io").unwrap();
        assert_eq!((hub.username.as_str(), hub.password.as_str()), ("user", "pa:ss"));
        assert_eq!(credentials.get("index.docker.io"), Some(hub));
        assert_eq!(credentials.get("https://ghcr.io/v2/").unwrap().password, "p");
        assert_eq!(credentials.get("helped.example"), None);
        assert!(!format!("{credentials:?}").contains("pa:ss"));
    }

    #[test]
    fn from_docker_config_names_the_server_of_a_bad_login() {
        let error = Credentials::from_docker_config(br#"{"auths":{"a.example":{"auth":"%"}}}"#, "c.json");
        assert!(error.unwrap_err().to_string().contains("a.example"));
    }
}
