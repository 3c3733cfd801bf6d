//! Which of an image's builds to take.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Operating system, architecture and, where it matters, its variant: `linux/arm64/v8`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// As Go names it: `amd64`, `arm64`.
    pub architecture: String,
    /// As Go names it: `v8`, `v3`.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on this machine's architecture.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// How well `offered` serves a request for `self`: `None` not at all, lower is better.
    ///
    /// Without a variant asked for, the one that every machine of the architecture runs is best.
    pub(super) fn rank(&self, offered: &Platform) -> Option<u8> {
        if self.os != offered.os || self.architecture != offered.architecture {
            return None;
        }
        let (wanted, offered) = (self.effective_variant(), offered.effective_variant());
        match (wanted, offered) {
            (wanted, offered) if wanted == offered => Some(0),
            (Some(_), None) => Some(1),
            (None, Some(_)) => Some(2),
            _ => None,
        }
    }

    /// The variant, without those that say only what the architecture does.
    fn effective_variant(&self) -> Option<&str> {
        let variant = self.variant.as_deref().filter(|v| !v.is_empty());
        variant
            .filter(|v| !matches!((self.architecture.as_str(), *v), ("amd64", "v1") | ("arm64", "v8" | "8")))
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(format!("{text:?} is no platform; write one as linux/amd64 or linux/arm64/v8")),
        };
        if os.is_empty() || architecture.is_empty() || variant.as_deref() == Some("") {
            return Err(format!("{text:?} is no platform: a part of it is empty"));
        }
        Ok(Self { os: os.into(), architecture: architecture.into(), variant })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().filter(|v| !v.is_empty()).try_for_each(|variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(wanted: &str, offered: &str) -> Option<u8> {
        wanted.parse::<Platform>().unwrap().rank(&offered.parse().unwrap())
    }

    #[test]
    fn rank_prefers_what_runs_everywhere_unless_a_variant_is_asked_for() {
        assert_eq!(rank("linux/amd64", "linux/amd64"), Some(0));
        assert_eq!(rank("linux/amd64", "linux/amd64/v1"), Some(0));
        assert_eq!(rank("linux/amd64", "linux/amd64/v3"), Some(2));
        assert_eq!(rank("linux/amd64/v3", "linux/amd64/v3"), Some(0));
        assert_eq!(rank("linux/amd64/v3", "linux/amd64"), Some(1));
        assert_eq!(rank("linux/amd64/v3", "linux/amd64/v2"), None);
        assert_eq!(rank("linux/arm64", "linux/arm64/v8"), Some(0));
        assert_eq!(rank("linux/arm64", "linux/amd64"), None);
        assert_eq!(rank("linux/amd64", "windows/amd64"), None);
    }

    #[test]
    fn parse_refuses_what_is_no_platform() {
        for text in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/amd64/"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }
}
