//! Environment entries and references to secrets.

use std::str::FromStr;

use schemars::JsonSchema;

use super::{HostPath, ValueError, text_schema};

/// A name the environment can hold: not empty, no `=`, no white space, no control character.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EnvName(pub(crate) String);

impl FromStr for EnvName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new("the variable's name is empty").help("write `NAME=VALUE`"));
        }
        if let Some(bad) = text.chars().find(|c| c.is_whitespace() || c.is_control() || *c == '=') {
            return Err(ValueError::new(format!("a variable's name cannot contain {bad:?}")));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    EnvName,
    "the name of an environment variable",
    "The name of an environment variable.",
    r"^[^=\s]+$",
    "DATABASE_URL"
);

/// One entry of `env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvEntry {
    /// `NAME=VALUE`, split at the first `=`; it travels in the artifact.
    Set(String, String),
    /// A bare `NAME`: the value is the booting host's. Only the name travels.
    FromHost(String),
}

impl EnvEntry {
    /// Splits at the first `=`: the value may be empty and may contain `=`.
    ///
    /// # Errors
    /// There is no name, or a NUL character.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl FromStr for EnvEntry {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.contains('\0') {
            return Err(ValueError::new("an environment entry cannot contain a NUL character"));
        }
        let Some((name, value)) = text.split_once('=') else {
            return bare(text);
        };
        let EnvName(name) = name.parse()?;
        Ok(Self::Set(name, value.to_owned()))
    }
}

/// A bare name must look like one: anything else is most likely a value that lost its name.
fn bare(text: &str) -> Result<EnvEntry, ValueError> {
    let EnvName(name) = text.parse()?;
    let identifier = |c: char| c == '_' || c.is_ascii_alphanumeric();
    if text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(identifier) {
        return Err(ValueError::new("neither `NAME=VALUE` nor a variable's name")
            .help("a bare name, of letters, digits and `_`, takes its value from the host"));
    }
    Ok(EnvEntry::FromHost(name))
}

text_schema!(
    EnvEntry,
    "a string such as \"PORT=8080\"",
    "`NAME=VALUE`, or a bare `NAME` whose value the booting host supplies.",
    r"^([^=\s]+=[\s\S]*|[A-Za-z_][A-Za-z0-9_]*)$",
    "PORT=8080"
);

/// Where the booting host finds a secret. The value itself is never in the file.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Secret {
    /// In this environment variable of the host.
    FromEnv(#[schemars(with = "EnvName")] String),
    /// In this file of the host: an absolute path, or one below `~`.
    FromFile(#[schemars(with = "HostPath")] String),
}
