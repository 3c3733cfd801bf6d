//! Reads single values: which TOML types each may be written as.

use toml::de::DeValue;

use super::model::{CpuContract, Policy, SnapshotEnabled, SnapshotStart};
use super::nearest::nearest;
use super::reader::{Decode, Field, decode_text, integer, whole_number};
use super::report::Diagnostics;
use super::values::{
    Cidr, CommandLine, ContextPath, Cpus, DELAY, Delay, DiskSize, EnvEntry, EnvName, FileMode, GuestPath,
    HostName, HostPath, ImageName, KernelCmdline, KernelReference, Memory, OciPlatform, Port,
    ServiceProtocol, UserSpec, ValueError, Volume, port_number,
};

impl Decode for SnapshotEnabled {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let expected = "true, false or \"auto\"";
        match field.value.get_ref() {
            DeValue::Boolean(true) => Some(Self::Required),
            DeValue::Boolean(false) => Some(Self::Off),
            DeValue::String(word) if word == "auto" => Some(Self::Auto),
            DeValue::String(_) => {
                field.refused(ValueError::new(format!("not {expected}")), out);
                None
            }
            _ => {
                field.mistyped(expected, out);
                None
            }
        }
    }
}

impl Decode for Cpus {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let count = whole_number(field, "an integer from 1 to 32", out)?;
        field.checked(Self::new(count), out)
    }
}

impl Decode for Port {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let read = match field.value.get_ref() {
            DeValue::Integer(number) => port_number(integer(number).unwrap_or(-1)).map(|port| Self {
                ip: None,
                host: port,
                guest: port,
                udp: false,
            }),
            _ => field.text("a string such as \"8080:80\", or a port", out)?.parse(),
        };
        field.checked(read, out)
    }
}

impl Decode for Delay {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let read = match field.value.get_ref() {
            DeValue::Integer(seconds) => seconds.to_string().parse(),
            _ => field.text(DELAY, out)?.parse(),
        };
        field.checked(read, out)
    }
}

fn shell(line: String) -> Vec<String> {
    vec!["/bin/sh".into(), "-c".into(), line]
}

impl Decode for CommandLine {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let (words, empty) = match field.value.get_ref() {
            DeValue::String(line) => (shell(String::decode(field, out)?), line.trim().is_empty()),
            DeValue::Array(_) => {
                let words: Vec<String> = Decode::decode(field, out)?;
                let empty = words.first().is_none_or(String::is_empty);
                (words, empty)
            }
            _ => {
                field.mistyped("a list of words, or a string for /bin/sh", out);
                return None;
            }
        };
        if empty {
            field
                .refused(ValueError::new("an empty command").help("name the program and its arguments"), out);
            return None;
        }
        Some(Self(words))
    }
}

impl Decode for Memory {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let read = match field.value.get_ref() {
            DeValue::String(text) => size_text(text, "MiB").and_then(Self::parse),
            _ => {
                Self::from_mib(whole_number(field, "an integer of MiB or a string such as \"512MiB\"", out)?)
            }
        };
        field.checked(read, out)
    }
}

impl Decode for DiskSize {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let read = match field.value.get_ref() {
            DeValue::String(text) => size_text(text, "GiB").and_then(Self::parse),
            _ => Self::from_gib(whole_number(field, "an integer of GiB or a string such as \"4GiB\"", out)?),
        };
        field.checked(read, out)
    }
}

/// In the file a number in quotes is refused: one could not tell which unit was meant.
fn size_text<'t>(text: &'t str, unit: &str) -> Result<&'t str, ValueError> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ValueError::new("a size in quotes needs a unit")
            .help(format!("write \"{text}{unit}\", or {text} without quotes")));
    }
    Ok(text)
}

impl Decode for FileMode {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let read = match field.value.get_ref() {
            DeValue::String(text) => text.parse(),
            DeValue::Integer(number) if number.radix() == 8 => Self::from_bits(integer(number).unwrap_or(-1)),
            DeValue::Integer(number) => Err(ValueError::new("a mode in decimal is not what it looks like")
                .help(format!("write \"{number}\" or 0o{number}"))),
            _ => {
                field.mistyped("a string such as \"0755\"", out);
                return None;
            }
        };
        field.checked(read, out)
    }
}

/// Types that are written as text are read from it.
macro_rules! decode_as_text {
    ($($type:ty),* $(,)?) => {$(
        impl Decode for $type {
            fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
                decode_text(field, out)
            }
        }
    )*};
}

decode_as_text!(
    Cidr,
    ContextPath,
    EnvEntry,
    EnvName,
    GuestPath,
    HostName,
    HostPath,
    ImageName,
    KernelCmdline,
    KernelReference,
    OciPlatform,
    ServiceProtocol,
    UserSpec,
    Volume,
);

/// Types that are one word of a few.
macro_rules! decode_as_word {
    ($type:ty { $($word:literal => $value:expr),* $(,)? }) => {
        impl Decode for $type {
            fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
                let words = [$($word),*];
                match field.text(&format!("one of {}", quoted(&words)), out)? {
                    $($word => Some($value),)*
                    other => {
                        field.refused(unknown_word(other, &words), out);
                        None
                    }
                }
            }
        }
    };
}

decode_as_word!(Policy {
    "never" => Self::Never,
    "always" => Self::Always,
    "on-failure" => Self::OnFailure,
    "unless-stopped" => Self::UnlessStopped,
});
decode_as_word!(SnapshotStart { "agent" => Self::Agent, "entrypoint" => Self::Entrypoint });
decode_as_word!(CpuContract { "portable" => Self::Portable, "v3" => Self::V3, "host" => Self::Host });

fn unknown_word(word: &str, words: &[&str]) -> ValueError {
    match nearest(word, words) {
        Some(guess) => ValueError::new(format!("did you mean \"{guess}\"?")),
        None => ValueError::new("not a word this key takes"),
    }
    .help(format!("write one of {}", quoted(words)))
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}
