//! Who the user is to a registry, as Docker's `config.json` says it: in the file, or by a credential helper.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::helper::Helper;
use crate::{ErrorKind, RegistryError};

/// Docker Hub has several names; this is the one used here, and the one that logins are kept under.
const DOCKER_HUB: (&str, &str) = ("docker.io", "https://index.docker.io/v1/");

/// A user's right to use a registry. The secret stays out of debug output.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A name and a password or access token.
    Password {
        /// The user's name.
        username: String,
        /// The password or access token.
        password: String,
    },
    /// A token that gets others (the refresh token of OAuth 2).
    Identity(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { username, .. } => {
                f.debug_struct("Password").field("username", username).finish_non_exhaustive()
            }
            Self::Identity(_) => f.debug_struct("Identity").finish_non_exhaustive(),
        }
    }
}

/// Logins by registry, `HOST` or `HOST:PORT`, and the helpers that keep others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    logins: BTreeMap<String, Login>,
    /// By registry.
    helpers: BTreeMap<String, String>,
    /// For all others.
    store: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl Credentials {
    /// Reads a Docker `config.json`; `place` is its path, for messages.
    ///
    /// # Errors
    /// Where it is no JSON, or a login in it is not as Docker writes it.
    pub fn from_docker_config(bytes: &[u8], place: &str) -> Result<Self, RegistryError> {
        let corrupt = |what: String| RegistryError::new(ErrorKind::Corrupt, place, what);
        let config: DockerConfig = serde_json::from_slice(bytes)
            .map_err(|e| corrupt(format!("its JSON is not as it should be: {e}")))?;
        let hosts = |(server, name): (String, String)| (host_of(&server), name);
        let mut credentials = Self {
            helpers: config.cred_helpers.into_iter().map(hosts).collect(),
            store: config.creds_store.filter(|name| !name.is_empty()),
            logins: BTreeMap::new(),
        };
        for (server, auth) in config.auths {
            let bad = |()| {
                corrupt(format!("the login for {server} is not USER:PASSWORD in base64"))
                    .hint(format!("log in again: smolpack login {server}"))
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

    /// The login for a registry, where there is one. A helper is asked only here.
    ///
    /// # Errors
    /// The registry's helper fails.
    pub fn login(&self, registry: &str) -> Result<Option<Login>, RegistryError> {
        let host = host_of(registry);
        match self.helper(&host) {
            Some(helper) => match helper.get(&server_of(&host))? {
                Some(login) => Ok(Some(login)),
                None => Ok(self.logins.get(&host).cloned()),
            },
            None => Ok(self.logins.get(&host).cloned()),
        }
    }

    fn helper(&self, host: &str) -> Option<Helper> {
        self.helpers.get(host).or(self.store.as_ref()).map(|name| Helper::named(name))
    }
}

fn login(entry: DockerAuth) -> Result<Option<Login>, ()> {
    if let Some(token) = entry.identitytoken.filter(|token| !token.is_empty()) {
        return Ok(Some(Login::Identity(token)));
    }
    match (entry.auth.filter(|auth| !auth.is_empty()), entry.username, entry.password) {
        (Some(auth), _, _) => decode(&auth).ok_or(()).map(Some),
        (None, Some(username), Some(password)) => Ok(Some(Login::Password { username, password })),
        _ => Ok(None),
    }
}

fn decode(auth: &str) -> Option<Login> {
    let bytes = STANDARD.decode(auth.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (username, password) = text.trim_end_matches('\0').split_once(':')?;
    Some(Login::Password { username: username.into(), password: password.into() })
}

/// `https://index.docker.io/v1/` and the like, without scheme and path.
fn host_of(server: &str) -> String {
    let bare = server.strip_prefix("https://").or(server.strip_prefix("http://")).unwrap_or(server);
    let host = bare.split('/').next().unwrap_or(bare);
    match host {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.0.to_owned(),
        host => host.to_owned(),
    }
}

/// What Docker keeps a registry's login under.
fn server_of(host: &str) -> String {
    if host == DOCKER_HUB.0 { DOCKER_HUB.1.to_owned() } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(username: &str, password: &str) -> Login {
        Login::Password { username: username.into(), password: password.into() }
    }

    #[test]
    fn from_docker_config_reads_every_form() {
        let json = br#"{"auths":{
            "https://index.docker.io/v1/":{"auth":"dXNlcjpwYTpzcw=="},
            "ghcr.io":{"username":"u","password":"p"},
            "token.example":{"auth":"dTpw","identitytoken":"abc"},
            "helped.example":{}}}"#;
        let credentials = Credentials::from_docker_config(json, "config.json").unwrap();
        let get = |host| credentials.login(host).unwrap();
        assert_eq!(get("docker.io"), Some(password("user", "pa:ss")));
        assert_eq!(get("index.docker.io"), get("docker.io"));
        assert_eq!(get("https://ghcr.io/v2/"), Some(password("u", "p")));
        assert_eq!(get("token.example"), Some(Login::Identity("abc".into())));
        assert_eq!(get("helped.example"), None);
        assert!(!format!("{credentials:?}").contains("pa:ss"));
    }

    #[test]
    fn from_docker_config_names_the_server_of_a_bad_login() {
        let error = Credentials::from_docker_config(br#"{"auths":{"a.example":{"auth":"%"}}}"#, "c.json");
        assert!(error.unwrap_err().to_string().contains("a.example"));
    }
}
