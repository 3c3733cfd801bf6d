//! PAX extended headers: `LENGTH KEY=VALUE\n` records, what they say of the next entry.

use std::collections::BTreeMap;

use base64::Engine as _;

use super::acl;
use crate::tree::Timestamp;

/// What PAX headers say of an entry; what is `None` the header block says.
#[derive(Clone, Debug, Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) device_major: Option<u32>,
    pub(super) device_minor: Option<u32>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) sparse: SparseKeys,
}

/// The `GNU.sparse.*` keys, all three versions.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseKeys {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// Offsets and lengths by turns (0.0 and 0.1).
    pub(super) numbers: Vec<u64>,
}

impl Pax {
    /// Takes the records of one header on top of what earlier ones said.
    ///
    /// # Errors
    /// Says which record is malformed.
    pub(super) fn extend(&mut self, mut data: &[u8]) -> Result<(), String> {
        while !data.is_empty() {
            // Some writers pad the header's last block within its size.
            if data.iter().all(|b| *b == 0) {
                break;
            }
            let (key, value, rest) = record(data).ok_or("a record of the PAX header is malformed")?;
            self.set(key, value).map_err(|why| {
                format!("PAX record {}: {why}", String::from_utf8_lossy(key).escape_debug())
            })?;
            data = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"path" => self.path = text(value)?,
            b"linkpath" => self.link = text(value)?,
            b"size" => self.size = optional(value, decimal)?,
            b"uid" => self.uid = optional(value, decimal_u32)?,
            b"gid" => self.gid = optional(value, decimal_u32)?,
            b"mtime" => self.mtime = optional(value, timestamp)?,
            b"SCHILY.devmajor" => self.device_major = optional(value, decimal_u32)?,
            b"SCHILY.devminor" => self.device_minor = optional(value, decimal_u32)?,
            b"SCHILY.acl.access" => self.acl(b"system.posix_acl_access", acl::access_from_text(value)?),
            b"SCHILY.acl.default" => {
                self.acl(b"system.posix_acl_default", Some(acl::default_from_text(value)?));
            }
            _ => return self.set_prefixed(key, value),
        }
        Ok(())
    }

    fn set_prefixed(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattr(name.to_vec(), value.to_vec())?;
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base64::engine::general_purpose::STANDARD_NO_PAD
                .decode(value.strip_suffix(b"==").or(value.strip_suffix(b"=")).unwrap_or(value))
                .map_err(|_| "not base64")?;
            // libarchive writes both forms; SCHILY's is exact.
            let name = percent_decode(name);
            if !self.xattrs.contains_key(&name) {
                self.xattr(name, value)?;
            }
        } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
            self.sparse.set(name, value)?;
        }
        Ok(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), &'static str> {
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return Err("not an attribute's name");
        }
        self.xattrs.insert(name, value);
        Ok(())
    }

    /// Keeps a list that came in text, unless the attribute came itself.
    fn acl(&mut self, name: &[u8], value: Option<Vec<u8>>) {
        if let Some(value) = value {
            self.xattrs.entry(name.to_vec()).or_insert(value);
        }
    }
}

impl SparseKeys {
    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match name {
            b"major" => self.major = Some(decimal(value)?),
            b"minor" => self.minor = Some(decimal(value)?),
            b"name" => self.name = text(value)?,
            b"size" | b"realsize" => self.size = Some(decimal(value)?),
            b"offset" | b"numbytes" => self.numbers.push(decimal(value)?),
            b"map" => {
                self.numbers = value.split(|b| *b == b',').map(decimal).collect::<Result<_, _>>()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the entry is a sparse file at all.
    pub(super) fn present(&self) -> bool {
        self.major.is_some() || self.size.is_some() || !self.numbers.is_empty()
    }
}

/// One record and what follows it.
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(20).position(|b| *b == b' ')?;
    let len = usize::try_from(decimal(&data[..space]).ok()?).ok()?;
    let body = data.get(space + 1..len)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|b| *b == b'=').filter(|at| *at > 0)?;
    Some((&body[..equals], &body[equals + 1..], &data[len..]))
}

/// An empty value takes back what an earlier header said.
fn optional<T>(
    value: &[u8],
    parse: impl FnOnce(&[u8]) -> Result<T, &'static str>,
) -> Result<Option<T>, &'static str> {
    if value.is_empty() { Ok(None) } else { parse(value).map(Some) }
}

fn text(value: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if value.contains(&0) {
        return Err("a NUL in a name");
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

/// Decimal digits only.
pub(super) fn decimal(value: &[u8]) -> Result<u64, &'static str> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits);
    text.and_then(|t| t.parse().ok()).ok_or("not a number from 0 to 2^64 - 1")
}

fn decimal_u32(value: &[u8]) -> Result<u32, &'static str> {
    decimal(value)?.try_into().map_err(|_| "not a number below 2^32")
}

/// `[-]SECONDS[.FRACTION]`; what is finer than a nanosecond is cut off.
fn timestamp(value: &[u8]) -> Result<Timestamp, &'static str> {
    const WHY: &str = "not a time in seconds";
    let (negative, value) = value.strip_prefix(b"-").map_or((false, value), |rest| (true, rest));
    let mut parts = value.splitn(2, |b| *b == b'.');
    let whole = decimal(parts.next().unwrap_or_default()).map_err(|_| WHY)?;
    let seconds = i64::try_from(whole).map_err(|_| WHY)?;
    let nanoseconds = fraction(parts.next().unwrap_or_default()).ok_or(WHY)?;
    Ok(match (negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

fn fraction(digits: &[u8]) -> Option<u32> {
    digits.iter().all(u8::is_ascii_digit).then(|| {
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0'));
        padded.take(9).fold(0, |value, digit| value * 10 + u32::from(digit - b'0'))
    })
}

/// `%41` becomes `A`; anything else stays.
fn percent_decode(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut at = 0;
    while at < name.len() {
        let escaped = (name[at] == b'%').then(|| name.get(at + 1..at + 3)).flatten();
        let byte = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        out.push(byte.unwrap_or(name[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pax(records: &[u8]) -> Result<Pax, String> {
        let mut pax = Pax::default();
        pax.extend(records).map(|()| pax)
    }

    /// A record with its length, which counts its own digits.
    fn record_of(key: &str, value: &[u8]) -> Vec<u8> {
        let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
        let len = (1..1 << 20).find(|len: &usize| len.to_string().len() + rest.len() == *len).unwrap();
        [len.to_string().as_bytes(), &rest].concat()
    }

    #[test]
    fn extend_reads_names_numbers_and_attributes() {
        let records = [
            record_of("path", b"a\xffb"),
            record_of("uid", b"4294967294"),
            record_of("SCHILY.xattr.user.x", b"\n\0=12345"),
        ];
        let pax = pax(&records.concat()).unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"a\xffb"[..]));
        assert_eq!(pax.uid, Some(4_294_967_294));
        assert_eq!(pax.xattrs[&b"user.x"[..]], b"\n\0=12345");
    }

    #[test]
    fn extend_refuses_malformed_records() {
        for records in [
            &b"x path=a\n"[..],
            b"99 path=a\n",
            b"9 path=ab",
            b"5 a=b",
            b"4 =\n",
            b"3 a",
            b"18446744073709551616 a=b\n",
            b"11 uid=99x\n",
            b"13 path=a\0bc\n",
            b"0 a=b\n",
        ] {
            assert!(pax(records).is_err(), "{}", records.escape_ascii());
        }
    }

    #[test]
    fn timestamp_rounds_down_before_1970_too() {
        let time = |text: &[u8]| timestamp(text).map(|t| (t.seconds, t.nanoseconds));
        assert_eq!(time(b"12.5"), Ok((12, 500_000_000)));
        assert_eq!(time(b"12"), Ok((12, 0)));
        assert_eq!(time(b"0.1234567899"), Ok((0, 123_456_789)));
        assert_eq!(time(b"-1.25"), Ok((-2, 750_000_000)));
        assert_eq!(time(b"-1"), Ok((-1, 0)));
        for bad in [&b"-"[..], b"", b"1.x", b"1e3", b"--1", b"9223372036854775808"] {
            assert!(time(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn libarchive_attributes_are_decoded_and_yield_to_schily() {
        let ours = record_of("LIBARCHIVE.xattr.user.a%3Db", b"aGk=");
        assert_eq!(pax(&ours).unwrap().xattrs[&b"user.a=b"[..]], b"hi");
        let exact = record_of("SCHILY.xattr.user.a=b", b"exact");
        // The name of a SCHILY record ends at the first equals sign, as in every PAX record.
        assert_eq!(pax(&[exact, ours].concat()).unwrap().xattrs.len(), 2);
        let plain =
            [record_of("SCHILY.xattr.user.a", b"exact"), record_of("LIBARCHIVE.xattr.user.a", b"aGk")];
        assert_eq!(pax(&plain.concat()).unwrap().xattrs[&b"user.a"[..]], b"exact");
    }
}
