//! Who the user is to a registry: without a login first, then as the registry's challenge wants it
//! (RFC 7235; the distribution project's token specification, with `OAuth2` for identity tokens).

use base64::Engine as _;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, Url};
use serde::Deserialize;

use super::failure::{self, Failure};
use super::{ANSWER_MAX, Call, Client, bounded};
use crate::{ErrorKind, Login};

const CLIENT_ID: &str = "smolpack";

/// What a registry wants.
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Client<'_> {
    /// Gets the authorization that a refused request asks for, for the next one.
    pub(super) async fn authorize(&self, call: Call<'_>, refused: Response) -> Result<(), Failure> {
        let host = &call.repository.host;
        let Some(challenge) = challenge(&refused) else {
            return Err(Failure::of_response(refused, call).await);
        };
        let login = self.access.credentials.login(host).map_err(|e| {
            let failure = Failure::new(e.kind, false, format!("{}: {}", e.place, e.what));
            failure.maybe_hint(e.hint)
        })?;
        let value = match (challenge, login) {
            (Challenge::Basic, Some(Login::Password { username, password })) => basic(&username, &password),
            (Challenge::Basic, _) => return Err(Failure::of_response(refused, call).await),
            (Challenge::Bearer { realm, service }, login) => {
                let token = self.token(call, &realm, service.as_deref(), login).await?;
                format!("Bearer {token}")
            }
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            Failure::new(ErrorKind::Unauthorized, false, "the login or token has characters it may not have")
        })?;
        value.set_sensitive(true);
        self.authorizations.borrow_mut().insert(call.key(), value);
        Ok(())
    }

    /// A token from the place that the registry names.
    async fn token(
        &self,
        call: Call<'_>,
        realm: &str,
        service: Option<&str>,
        login: Option<Login>,
    ) -> Result<String, Failure> {
        let host = &call.repository.host;
        let failed = |e: reqwest::Error| Failure::of_connection(&e, host);
        let mut url = self.realm(host, realm)?;
        let mut pairs: Vec<(&str, String)> = Vec::new();
        pairs.extend(service.map(|service| ("service", service.to_owned())));
        let request = if let Some(Login::Identity(token)) = login {
            pairs.extend([("scope", call.scopes().join(" ")), ("grant_type", "refresh_token".to_owned())]);
            pairs.extend([("client_id", CLIENT_ID.to_owned()), ("refresh_token", token)]);
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            self.http.post(url).header("content-type", "application/x-www-form-urlencoded").body(form)
        } else {
            pairs.extend(call.scopes().into_iter().map(|scope| ("scope", scope)));
            if let Some(Login::Password { username, .. }) = &login {
                pairs.push(("account", username.clone()));
            }
            url.query_pairs_mut().extend_pairs(pairs);
            match login {
                Some(Login::Password { username, password }) => {
                    self.http.get(url).basic_auth(username, Some(password))
                }
                _ => self.http.get(url),
            }
        };
        let response = request.send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(Failure::of_response(response, call).await);
        }
        let body = bounded(response, ANSWER_MAX, host).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&body).ok();
        answer.and_then(|answer| answer.token.or(answer.access_token)).ok_or_else(|| {
            Failure::new(ErrorKind::Network, false, "its token service answers without a token")
        })
    }

    /// The token service's address. It gets the login, so it must be as safe to speak to as the registry.
    fn realm(&self, host: &str, realm: &str) -> Result<Url, Failure> {
        let bad = |what: &str| {
            let what = format!("its token service {realm:?} {what}");
            Failure::new(ErrorKind::Network, false, what).hint(failure::ask(host))
        };
        let url = Url::parse(realm).map_err(|_| bad("has no address"))?;
        match url.scheme() {
            "https" => Ok(url),
            "http" if self.is_plain(host) => Ok(url),
            _ => Err(bad("is not spoken to with TLS")),
        }
    }
}

fn basic(username: &str, password: &str) -> String {
    let pair = format!("{username}:{password}");
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// The challenge to meet: a token where there is a choice.
fn challenge(response: &Response) -> Option<Challenge> {
    let headers = response.headers().get_all(WWW_AUTHENTICATE);
    let mut basic = None;
    for header in headers.into_iter().filter_map(|value| value.to_str().ok()) {
        for challenge in http_auth::parse_challenges(header).unwrap_or_default() {
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            } else if challenge.scheme.eq_ignore_ascii_case("bearer") {
                let get = |name: &str| {
                    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_unescaped())
                };
                if let Some(realm) = get("realm") {
                    return Some(Challenge::Bearer { realm, service: get("service") });
                }
            }
        }
    }
    basic
}
