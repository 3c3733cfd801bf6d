//! Content digests as OCI writes them: `sha256:HEX` or `sha512:HEX`.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

/// A checked digest: a known algorithm and as many lower-case hexadecimal digits as it needs. So it
/// is safe as a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Reads `ALGORITHM:HEX`.
    ///
    /// # Errors
    /// Says which part is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (algorithm, hex) =
            text.split_once(':').ok_or_else(|| format!("{text:?} is no digest: no colon in it"))?;
        let digits = match algorithm {
            "sha256" => 64,
            "sha512" => 128,
            _ => {
                return Err(format!(
                    "digest algorithm {algorithm:?} is not supported (sha256 and sha512 are)"
                ));
            }
        };
        let is_hex = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if hex.len() != digits || !is_hex {
            return Err(format!("{text:?} is no digest: {digits} lower-case hexadecimal digits must follow"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::like(None, bytes)
    }

    /// The digest of `bytes` by the algorithm of another one, SHA-256 where there is none.
    #[must_use]
    pub fn like(other: Option<&Self>, bytes: &[u8]) -> Self {
        let mut hasher = other.map_or_else(Hasher::sha256, Hasher::like);
        hasher.update(bytes);
        hasher.finish()
    }

    /// `sha256` or `sha512`.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        self.0.split_once(':').map_or("", |(algorithm, _)| algorithm)
    }

    /// The digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, hex)| hex)
    }

    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for messages.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.get(..19).unwrap_or(&self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Takes bytes and gives their digest.
#[derive(Clone, Debug)]
pub enum Hasher {
    /// Of SHA-256.
    Sha256(Sha256),
    /// Of SHA-512.
    Sha512(Box<Sha512>),
}

impl Hasher {
    /// A hasher of SHA-256.
    #[must_use]
    pub fn sha256() -> Self {
        Self::Sha256(Sha256::new())
    }

    /// A hasher whose result can be compared with `digest`.
    #[must_use]
    pub fn like(digest: &Digest) -> Self {
        match digest.algorithm() {
            "sha512" => Self::Sha512(Box::default()),
            _ => Self::sha256(),
        }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// The digest of all that came.
    #[must_use]
    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => Digest(format!("sha256:{}", hex(&hasher.finalize()))),
            Self::Sha512(hasher) => Digest(format!("sha512:{}", hex(&hasher.finalize()))),
        }
    }
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_is_the_known_digest() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::parse(empty).unwrap(), Digest::of(b""));
    }

    #[test]
    fn parse_refuses_what_is_no_digest() {
        let upper = format!("sha256:{}", "A".repeat(64));
        let path = format!("sha256:{}/..", "a".repeat(61));
        for text in ["", "sha256", "sha256:", "sha256:abc", "md5:abc", &upper, &path] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
    }
}
