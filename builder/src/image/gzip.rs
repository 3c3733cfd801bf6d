//! Gzip as gzip(1) reads it: members one after the other (RFC 1952, section 2.2), and zeros after the last,
//! which tapes and some tools pad with.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// Decompresses all members.
pub(super) struct Members<R>(State<R>);

enum State<R> {
    Member(GzDecoder<R>),
    Over,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(input: R) -> Self {
        Self(State::Member(GzDecoder::new(input)))
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let State::Member(decoder) = &mut self.0 else { return Ok(0) };
            let got = decoder.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let State::Member(decoder) = std::mem::replace(&mut self.0, State::Over) else { return Ok(0) };
            if let Some(rest) = after(decoder.into_inner())? {
                self.0 = State::Member(GzDecoder::new(rest));
            }
        }
    }
}

/// What follows a member, where that is another one.
fn after<R: BufRead>(mut input: R) -> io::Result<Option<R>> {
    let mut padded = false;
    loop {
        let bytes = input.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match bytes.len() {
            0 => return Ok(None),
            _ if zeros > 0 => {}
            _ if padded => {
                let what = "something else follows the zeros after its gzip data";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            _ => return Ok(Some(input)),
        }
        padded = true;
        input.consume(zeros);
    }
}
