//! Gzip as gzip(1) reads it: members one after the other (RFC 1952, section 2.2), and zeros after the last,
//! which tapes and some tools pad with.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// Decompresses all members; none is left at the end.
pub(super) struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Members<R> {
    pub(super) fn new(input: R) -> Self {
        Self(Some(GzDecoder::new(input)))
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(mut decoder) = self.0.take() {
            let got = decoder.read(buf)?;
            if got > 0 || buf.is_empty() {
                self.0 = Some(decoder);
                return Ok(got);
            }
            self.0 = after(decoder.into_inner())?.map(GzDecoder::new);
        }
        Ok(0)
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
