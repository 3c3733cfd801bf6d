//! What an image says of itself: the OCI configuration, which Docker's is the same as.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::error::{ErrorKind, ImageError};
use super::manifest::json;
use super::platform::Platform;
use crate::tree::Timestamp;
use smolpack_registry::Digest;

/// What the image says of itself beside its files. All of it may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or the whole command where there is no entrypoint.
    pub cmd: Vec<String>,
    /// `KEY=VALUE`.
    pub env: Vec<String>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`, as written; names are of the image's passwd and group.
    pub user: Option<String>,
    /// Where the command starts.
    pub workdir: Option<String>,
    /// `SIGTERM` or a number.
    pub stop_signal: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `PORT/tcp` and the like, sorted.
    pub exposed_ports: Vec<String>,
    /// When it was made; `None` also where the text is no time.
    pub created: Option<Timestamp>,
    /// `amd64` and the like.
    pub architecture: Option<String>,
    /// `linux`.
    pub os: Option<String>,
    /// `v8` and the like.
    pub variant: Option<String>,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<RawConfig>,
    #[serde(default)]
    rootfs: Option<RawRootfs>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// Reads a configuration; gives it and the digests of the layers' uncompressed tars, lowest first.
///
/// # Errors
/// Where it is no JSON, or a value is of the wrong type.
pub(super) fn parse(bytes: &[u8], place: &str) -> Result<(ImageConfig, Vec<Digest>), ImageError> {
    let raw: Raw = json(bytes, place)?;
    let run = raw.config.unwrap_or_default();
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let config = ImageConfig {
        entrypoint: run.entrypoint.unwrap_or_default(),
        cmd: run.cmd.unwrap_or_default(),
        env: run.env.unwrap_or_default(),
        user: some(run.user),
        workdir: some(run.working_dir),
        stop_signal: some(run.stop_signal),
        labels: run.labels.unwrap_or_default(),
        exposed_ports: run.exposed_ports.unwrap_or_default().into_keys().collect(),
        created: raw.created.and_then(|text| rfc3339(&text)),
        architecture: some(raw.architecture),
        os: some(raw.os),
        variant: some(raw.variant),
    };
    Ok((config, raw.rootfs.and_then(|rootfs| rootfs.diff_ids).unwrap_or_default()))
}

/// Checks that an image that says what it is for is for `platform`.
pub(super) fn check_platform(
    config: &ImageConfig,
    platform: &Platform,
    place: &str,
) -> Result<(), ImageError> {
    let (Some(os), Some(architecture)) = (&config.os, &config.architecture) else { return Ok(()) };
    let is = Platform { os: os.clone(), architecture: architecture.clone(), variant: config.variant.clone() };
    if platform.rank(&is).is_some() {
        return Ok(());
    }
    let what = format!("the image is for {is}, not for {platform}");
    Err(ImageError::new(ErrorKind::NoMatch, place, what)
        .with_hint("ask for that platform, or name another image"))
}

/// `2024-02-29T12:00:00.5+02:00` and the like, any fraction, any offset.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let in_range =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    if !in_range || year > 9999 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    Some(Timestamp { seconds, nanoseconds: digits.fold(0, |n, d| n * 10 + u32::from(d - b'0')) })
}

/// Three numbers without signs.
fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let parts = text.split(separator).map(|part| part.parse::<u32>().ok().map(i64::from));
    parts.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first()? {
        b'Z' | b'z' => return (zone.len() == 1).then_some(0),
        b'+' => 1,
        _ => -1,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
    (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; years start in March here, so that the
/// leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_reads_offsets_fractions_and_old_dates() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", Some((0, 0))),
            ("2024-02-29T12:00:00.5Z", Some((1_709_208_000, 500_000_000))),
            ("2024-02-29T14:00:00.123456789+02:00", Some((1_709_208_000, 123_456_789))),
            ("2024-02-29T10:30:00-01:30", Some((1_709_208_000, 0))),
            ("1969-12-31T23:59:59Z", Some((-1, 0))),
            ("0001-01-01T00:00:00Z", Some((-62_135_596_800, 0))),
            ("2024-13-01T00:00:00Z", None),
            ("2024-01-01", None),
            ("yesterday", None),
            ("2024-01-01T00:00:00", None),
            ("2024-01-01T00:00:00+1", None),
            ("-024-01-01T00:00:00Z", None),
        ] {
            let want = want.map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
            assert_eq!(rfc3339(text), want, "{text}");
        }
    }

    #[test]
    fn parse_takes_dockers_nulls_and_empty_texts_for_absent() {
        let json = br#"{"architecture":"amd64","os":"linux","config":{"Cmd":null,"User":"","Env":["A=b"],
            "ExposedPorts":{"80/tcp":{},"53/udp":{}},"Labels":null},"rootfs":{"type":"layers","diff_ids":null}}"#;
        let (config, diff_ids) = parse(json, "config").unwrap();
        assert_eq!(config.exposed_ports, ["53/udp", "80/tcp"]);
        assert_eq!((config.user, config.env), (None, vec!["A=b".to_owned()]));
        assert!(diff_ids.is_empty());
    }

    #[test]
    fn parse_names_the_place_of_bad_json() {
        let error = parse(br#"{"config":{"Cmd":"sh"}}"#, "config sha256:1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().starts_with("config sha256:1: "), "{error}");
    }
}
