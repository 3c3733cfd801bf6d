//! The values of a Smolfile: each type proves that its text was checked.
//!
//! All of them come from text with [`std::str::FromStr`], so that a flag of the command line
//! and a key of the file follow one grammar and give one error.

mod delay;
mod env;
mod identity;
mod network;
mod path;
mod size;

use std::fmt;

pub use delay::Delay;
pub(super) use delay::EXPECTED as DELAY;
pub(super) use env::EnvName;
pub use env::{EnvEntry, Secret};
pub(super) use identity::{FileMode, ImageName, KernelCmdline, KernelReference, OciPlatform, UserSpec};
pub use network::{Cidr, HostName, Port};
pub(super) use network::{ServiceProtocol, port_number};
pub use path::Volume;
pub(super) use path::{ContextPath, GuestPath, HostPath};
pub use size::{Cpus, DiskSize, Memory};

/// A command as a list of words; a string in its place is run by `/bin/sh -c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine(pub Vec<String>);

/// Why a value was refused, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    /// What is wrong with it.
    pub problem: String,
    /// What to write instead.
    pub help: Option<String>,
}

impl ValueError {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            Some(help) => write!(f, "{}; {help}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

impl std::error::Error for ValueError {}

/// How a value that is written as text looks: for error messages and for the schema.
pub(super) trait Text: std::str::FromStr<Err = ValueError> {
    /// With an article, as in "expected ..., found an integer".
    const EXPECTED: &'static str;
}

/// Gives a text type its place in the schema: a string with a description and a pattern.
///
/// The pattern is what an editor can check; the type's `FromStr` remains the judge.
macro_rules! text_schema {
    ($type:ident, $expected:literal, $description:literal, $pattern:literal, $example:literal) => {
        impl $crate::smolfile::values::Text for $type {
            const EXPECTED: &'static str = $expected;
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": $description,
                    "pattern": $pattern,
                    "examples": [$example],
                })
            }
        }
    };
}
pub(super) use text_schema;

/// Types that only check: what they hold is text once more.
macro_rules! into_text {
    ($($type:ident),* $(,)?) => {$(
        impl From<$type> for String {
            fn from(checked: $type) -> Self {
                checked.0
            }
        }
    )*};
}

into_text!(
    ContextPath,
    EnvName,
    FileMode,
    GuestPath,
    HostPath,
    ImageName,
    KernelCmdline,
    KernelReference,
    OciPlatform,
    ServiceProtocol,
    UserSpec,
);
