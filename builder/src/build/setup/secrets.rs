//! Secrets of set-up commands: kept out of the output, and looked for in what a command changed.

use memchr::memmem;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A value shorter than this is not looked for: it stands in many places by chance. Bytes.
pub(super) const SHORTEST: usize = 8;
/// What stands in the output in a secret's place.
const MASK: &[u8] = b"***";

/// The values to look for, by the names of their secrets. A file's last line end is not part of the value.
pub(super) fn telling(secrets: &BTreeMap<String, Vec<u8>>) -> Vec<(&str, &[u8])> {
    let trimmed = secrets.iter().map(|(name, value)| (name.as_str(), value.trim_ascii_end()));
    trimmed.filter(|(_, value)| value.len() >= SHORTEST).collect()
}

/// Passes bytes on with secrets masked, also those that come in pieces or overlap.
pub(super) struct Mask<'a, W> {
    secrets: &'a [(&'a str, &'a [u8])],
    output: W,
    /// From the first byte on with which a secret may begin whose end has not come.
    held: Vec<u8>,
    /// How many bytes of what is held belong to a secret that has been masked.
    masked: usize,
}

impl<'a, W: Write> Mask<'a, W> {
    pub(super) fn new(secrets: &'a [(&'a str, &'a [u8])], output: W) -> Self {
        Self { secrets, output, held: Vec::new(), masked: 0 }
    }

    /// Passes on what is held; nothing more comes.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.pass(self.held.len())?;
        self.output.flush()
    }

    /// Passes on that many bytes of what is held, masked.
    fn pass(&mut self, len: usize) -> io::Result<()> {
        let mut done = self.masked;
        for start in 0..len {
            let here = &self.held[start..];
            let secrets = self.secrets.iter().filter(|(_, value)| here.starts_with(value));
            let Some(longest) = secrets.map(|(_, value)| value.len()).max() else { continue };
            if start >= done {
                self.output.write_all(&self.held[done..start])?;
                self.output.write_all(MASK)?;
            }
            done = done.max(start + longest);
        }
        if done < len {
            self.output.write_all(&self.held[done..len])?;
        }
        self.masked = done.max(len) - len;
        self.held.drain(..len);
        Ok(())
    }

    /// Whether all that is held from there on begins a secret that is longer.
    fn may_become_a_secret(&self, start: usize) -> bool {
        let tail = &self.held[start..];
        self.secrets.iter().any(|(_, value)| value.len() > tail.len() && value.starts_with(tail))
    }
}

impl<W: Write> Write for Mask<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        let sure = (0..self.held.len()).find(|start| self.may_become_a_secret(*start));
        self.pass(sure.unwrap_or(self.held.len()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Passes bytes on and notices secrets in them.
pub(super) struct Watch<'a, W> {
    secrets: &'a [(&'a str, &'a [u8])],
    output: W,
    /// The end of what has passed: shorter than the longest secret.
    tail: Vec<u8>,
    passed: u64,
    /// The name of the secret that was found first, and where.
    pub(super) found: Option<(&'a str, u64)>,
}

impl<'a, W: Write> Watch<'a, W> {
    pub(super) fn new(secrets: &'a [(&'a str, &'a [u8])], output: W) -> Self {
        Self { secrets, output, tail: Vec::new(), passed: 0, found: None }
    }

    pub(super) fn into_inner(self) -> W {
        self.output
    }
}

impl<W: Write> Write for Watch<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        let start = self.passed - self.tail.len() as u64;
        self.tail.extend_from_slice(&bytes[..written]);
        let longest = self.secrets.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
        for (name, value) in self.secrets {
            if let Some(at) = memmem::find(&self.tail, value) {
                self.found.get_or_insert((name, start + at as u64));
            }
        }
        self.passed += written as u64;
        self.tail.drain(..self.tail.len().saturating_sub(longest.saturating_sub(1)));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [(&str, &[u8]); 2] = [("A", b"hunter2hunter3"), ("B", b"hunter2h")];

    #[test]
    fn secrets_are_masked_however_they_are_cut() {
        let text = b"x hunter2hunter3 hunter2hunter hunter hunter2hunter2hunter3";
        for size in 1..text.len() {
            let mut output = Vec::new();
            let mut mask = Mask::new(&SECRETS, &mut output);
            text.chunks(size).for_each(|some| mask.write_all(some).unwrap());
            mask.finish().unwrap();
            let said = String::from_utf8(output).unwrap();
            assert_eq!(said, "x *** ***unter hunter ***", "{size}");
        }
    }

    #[test]
    fn what_cannot_become_a_secret_is_passed_on_at_once() {
        let mut output = Vec::new();
        Mask::new(&SECRETS, &mut output).write_all(b"Password: ").unwrap();
        assert_eq!(output, b"Password: ");
    }

    #[test]
    fn a_secret_is_noticed_however_it_is_cut_and_where_it_lies() {
        let text = b"0123456789hunter2h9876543210";
        for size in 1..text.len() {
            let mut watch = Watch::new(&SECRETS, Vec::new());
            text.chunks(size).for_each(|some| watch.write_all(some).unwrap());
            assert_eq!(watch.found, Some(("B", 10)), "{size}");
            assert_eq!(watch.into_inner(), text);
        }
        let mut watch = Watch::new(&SECRETS, Vec::new());
        watch.write_all(b"hunter2_hunter").unwrap();
        assert_eq!(watch.found, None);
    }

    #[test]
    fn short_values_are_not_looked_for_and_line_ends_are_no_part_of_one() {
        let secrets = BTreeMap::from([
            ("LONG".to_owned(), b"correct horse\n".to_vec()),
            ("SHORT".to_owned(), b"1234567\n\n".to_vec()),
        ]);
        assert_eq!(telling(&secrets), [("LONG", b"correct horse".as_slice())]);
    }
}
