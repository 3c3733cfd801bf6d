//! Lengths of time.

use std::str::FromStr;
use std::time::Duration;

use super::ValueError;

/// A length of time of at most a year, to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub Duration);

const LONGEST: Duration = Duration::from_hours(366 * 24);

impl Delay {
    /// In milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        // Checked delays are at most a year, far from this type's end.
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

pub(crate) const EXPECTED: &str = "a length of time such as \"10s\", or a number of seconds";

const HELP: &str = "write a number and a unit: \"500ms\", \"10s\", \"5m\", \"2h\"";

impl FromStr for Delay {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        // A bare number counts seconds, as existing files have it.
        let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let seconds = if bare { format!("{text}s") } else { text.to_owned() };
        let duration = humantime::parse_duration(&seconds)
            .map_err(|_| ValueError::new(format!("{text:?} is not a length of time")).help(HELP))?;
        if duration > LONGEST {
            return Err(ValueError::new("longer than a year").help(HELP));
        }
        if duration.subsec_nanos() % 1_000_000 != 0 {
            return Err(ValueError::new("finer than a millisecond").help(HELP));
        }
        Ok(Self(duration))
    }
}
