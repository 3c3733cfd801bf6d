//! Values that check themselves.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

/// A number, or a string: what many keys take.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither a whole number nor a string")]
enum NumberOrText {
    Number(i64),
    Text(String),
}

/// Implements `Deserialize` by a function from `Raw` and gives the schema.
macro_rules! checked {
    ($name:ident, $raw:ty, $parse:expr, $schema:tt) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <$raw>::deserialize(deserializer)?;
                let parse: fn($raw) -> Result<Self, String> = $parse;
                parse(raw).map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// Virtual CPUs, 1 to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus(pub u32);

checked!(
    Cpus,
    i64,
    |number| match u32::try_from(number) {
        Ok(cpus @ 1..=32) => Ok(Self(cpus)),
        _ => Err(format!("a machine cannot have {number} CPUs; give 1 to 32")),
    },
    { "type": "integer", "minimum": 1, "maximum": 32, "default": 2 }
);

/// Guest memory, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

impl Memory {
    const MIN: u64 = 64;
    const MAX: u64 = 1 << 20;

    /// A number of MiB, or a size with its unit.
    ///
    /// # Errors
    /// Says what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(mib) => Self::checked(mib),
            Err(_) => Self::of_bytes(size(text)?),
        }
    }

    fn of_bytes(bytes: u64) -> Result<Self, String> {
        if !bytes.is_multiple_of(1 << 20) {
            return Err("memory must be a whole number of MiB; give it as \"512MiB\"".into());
        }
        Self::checked(bytes >> 20)
    }

    fn checked(mib: u64) -> Result<Self, String> {
        if (Self::MIN..=Self::MAX).contains(&mib) {
            Ok(Self(mib))
        } else {
            Err(format!("{mib} MiB of memory; give at least {} MiB and at most 1 TiB", Self::MIN))
        }
    }
}

checked!(
    Memory,
    NumberOrText,
    |raw| match raw {
        NumberOrText::Number(mib) => Self::checked(u64::try_from(mib).unwrap_or(0)),
        NumberOrText::Text(text) => Self::of_bytes(size(&text)?),
    },
    { "type": ["integer", "string"], "description": "MiB, or a size such as \"512MiB\"", "default": 512 }
);

/// Room on the root disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskSize(pub u64);

impl DiskSize {
    const MIN: u64 = 16 << 20;
    const MAX: u64 = (16 << 40) - (1 << 20);

    /// A number of GiB, or a size with its unit.
    ///
    /// # Errors
    /// Says what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<u64>() {
            Ok(gib) => Self::checked(gib.saturating_mul(1 << 30)),
            Err(_) => Self::checked(size(text)?),
        }
    }

    fn checked(bytes: u64) -> Result<Self, String> {
        if (Self::MIN..=Self::MAX).contains(&bytes) {
            // The disk is made of whole MiB: the group layout and every host's block size fit that.
            Ok(Self(bytes.next_multiple_of(1 << 20)))
        } else {
            Err("a disk of that size is not possible; give 16 MiB to less than 16 TiB, as a number of GiB or \"500MiB\"".into())
        }
    }
}

checked!(
    DiskSize,
    NumberOrText,
    |raw| match raw {
        NumberOrText::Number(gib) => Self::checked(u64::try_from(gib).unwrap_or(0).saturating_mul(1 << 30)),
        NumberOrText::Text(text) => Self::checked(size(&text)?),
    },
    { "type": ["integer", "string"], "description": "GiB, or a size such as \"500MiB\"" }
);

/// Bytes from `512MiB`, `2GiB`, `500MB`, `1.5G` and the like; a plain number is bytes.
fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size; write it as \"512MiB\" or \"2GiB\"");
    let text_trimmed = text.trim();
    let split = text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (number, unit) = text_trimmed.split_at(split);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(bad);
    }
    match number.parse::<f64>() {
        Ok(number) if number * (unit as f64) < (1_u64 << 53) as f64 => Ok((number * unit as f64) as u64),
        _ => Err(bad()),
    }
}

/// `K=V`, or `K` for the value on the host that boots the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvEntry {
    /// A name and its value.
    Set(String, String),
    /// A name whose value the host gives.
    FromHost(String),
}

impl EnvEntry {
    /// Splits at the first `=`.
    ///
    /// # Errors
    /// Where there is no name, or a zero byte.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('\0') {
            return Err("an environment variable cannot hold a zero byte".into());
        }
        match text.split_once('=') {
            Some(("", _)) => Err(format!("{text:?} has no name; write it as \"NAME=value\"")),
            None if text.is_empty() => Err("an empty variable; write it as \"NAME=value\"".into()),
            Some((name, value)) => Ok(Self::Set(name.into(), value.into())),
            None => Ok(Self::FromHost(text.into())),
        }
    }
}

checked!(EnvEntry, String, |text| Self::parse(&text), {
    "type": "string", "description": "`K=V`, or `K` for the booting host's value", "pattern": "^[^=]+"
});

/// `PORT`, `HOST:GUEST`, `IP:HOST:GUEST`, each with `/tcp` or `/udp` where wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Address of the host to listen on; 127.0.0.1 where absent.
    pub ip: Option<IpAddr>,
    /// The host's port.
    pub host: u16,
    /// The machine's port.
    pub guest: u16,
    /// UDP rather than TCP.
    pub udp: bool,
}

impl Port {
    fn parse(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not a port; write \"8080\", \"8080:80\" or \"127.0.0.1:8080:80/udp\"");
        let (ports, udp) = match text.rsplit_once('/') {
            None => (text, false),
            Some((ports, "tcp")) => (ports, false),
            Some((ports, "udp")) => (ports, true),
            Some(_) => return Err(bad()),
        };
        let port = |text: &str| match text.parse::<u16>() {
            Ok(number) if number > 0 && text.bytes().all(|b| b.is_ascii_digit()) => Ok(number),
            _ => Err(bad()),
        };
        let mut parts = ports.rsplitn(3, ':');
        let guest = port(parts.next().ok_or_else(bad)?)?;
        let host = parts.next().map_or(Ok(guest), port)?;
        let ip = parts.next().map(|ip| ip.trim_start_matches('[').trim_end_matches(']').parse());
        Ok(Self { ip: ip.transpose().map_err(|_| bad())?, host, guest, udp })
    }
}

checked!(
    Port,
    NumberOrText,
    |raw| match raw {
        NumberOrText::Number(number) => Self::parse(&number.to_string()),
        NumberOrText::Text(text) => Self::parse(&text),
    },
    { "type": ["integer", "string"], "description": "`PORT`, `HOST:GUEST` or `IP:HOST:GUEST`, with `/udp` where wanted" }
);

/// `HOST:GUEST[:ro]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The host's path; may begin with `~`.
    pub host: String,
    /// The machine's path, absolute.
    pub guest: String,
    /// The machine may not write.
    pub read_only: bool,
}

/// Where a mount would hide what the machine lives on.
const SYSTEM: [&str; 11] =
    ["/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"];

impl Volume {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a volume; write \"HOST:GUEST\" or \"HOST:GUEST:ro\"");
        let (paths, read_only) = match text.strip_suffix(":ro") {
            Some(paths) => (paths, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        let (host, guest) = paths.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || !guest.starts_with('/') {
            return Err(bad());
        }
        let parts: Vec<&str> = guest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") {
            return Err(format!("{text:?} leads upwards; give the machine's path without \"..\""));
        }
        let guest = format!("/{}", parts.join("/"));
        let below = |root: &str| guest.starts_with(root) && guest[root.len()..].starts_with('/');
        if SYSTEM.contains(&guest.as_str()) || ["/dev", "/proc", "/sys"].into_iter().any(below) {
            return Err(format!(
                "{text:?} would hide {guest}, a system folder of the machine; mount it elsewhere"
            ));
        }
        Ok(Self { host: host.into(), guest, read_only })
    }
}

checked!(Volume, String, |text| Self::parse(&text), {
    "type": "string", "description": "`HOST:GUEST`, with `:ro` where the machine may not write"
});

/// An address range, such as `10.0.0.0/8`; a bare address is the range of it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Cidr(pub String);

impl Cidr {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{text:?} is not an address range: {why}; write it as \"10.0.0.0/8\"");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad("that is no IP address"))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(text) => {
                text.parse().ok().filter(|n| *n <= bits).ok_or_else(|| bad("the prefix is too long"))?
            }
        };
        let number = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        if number.checked_shl(prefix).is_some_and(|host| host != 0) {
            return Err(bad("the address has bits beyond the prefix"));
        }
        Ok(Self(format!("{address}/{prefix}")))
    }
}

checked!(Cidr, String, |text| Self::parse(&text), {
    "type": "string", "description": "an address range such as `10.0.0.0/8`"
});

/// A host's name, with a leading `*.` for all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

checked!(
    HostName,
    String,
    |text| {
        let name = text.strip_prefix("*.").unwrap_or(&text);
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if name.len() <= 253 && name.split('.').all(label) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(format!("{text:?} is not a host name; write \"example.com\" or \"*.example.com\", without scheme, port or path"))
        }
    },
    { "type": "string", "description": "a host name; `*.example.com` is all below it" }
);

/// A time span: `30s`, `1m30s`, `500ms`; a number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub Duration);

impl Delay {
    /// Whole milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

checked!(
    Delay,
    NumberOrText,
    |raw| match raw {
        NumberOrText::Number(seconds) => u64::try_from(seconds)
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .map_err(|_| "a time span cannot be negative; write it as \"30s\"".into()),
        NumberOrText::Text(text) => humantime::parse_duration(&text)
            .map(Self)
            .map_err(|e| format!("{text:?} is not a time span ({e}); write it as \"30s\", \"1m30s\" or \"500ms\"")),
    },
    { "type": ["integer", "string"], "description": "seconds, or a time span such as `1m30s`" }
);

/// A command as a list of words; a string is run by `/bin/sh -c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "neither a list of words nor a string")]
enum WordsOrText {
    Words(Vec<String>),
    Text(String),
}

checked!(
    CommandLine,
    WordsOrText,
    |raw| match raw {
        WordsOrText::Words(words) if words.first().is_none_or(String::is_empty) => {
            Err("an empty command; give the program and its arguments".into())
        }
        WordsOrText::Words(words) => Ok(Self(words)),
        WordsOrText::Text(text) => Ok(Self(vec!["/bin/sh".into(), "-c".into(), text])),
    },
    { "type": ["array", "string"], "items": { "type": "string" }, "description": "words, or a string for `/bin/sh -c`" }
);

/// A key that asks for what smolpack does not do; asking for nothing is fine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsupported;

checked!(
    Unsupported,
    toml::Value,
    |value| match value {
        toml::Value::Boolean(false) | toml::Value::Integer(0) => Ok(Self),
        toml::Value::String(text) if text.is_empty() || text == "none" => Ok(Self),
        toml::Value::Array(list) if list.is_empty() => Ok(Self),
        toml::Value::Table(table) if table.is_empty() => Ok(Self),
        _ => Err("smolpack does not support this key; remove it, or set it to false".into()),
    },
    { "enum": [false, 0, "", "none"], "deprecated": true }
);

/// A key that is accepted and changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored;

checked!(Ignored, toml::Value, |_| Ok(Self), { "deprecated": true });
