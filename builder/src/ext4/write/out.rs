//! The disk as one stream of bytes: small pieces gathered, runs of zeros kept as such.

use crate::ext4::Ext4Error;
use crate::sink::BlockSink;

/// Pieces are gathered up to this many bytes before they go to the sink.
const GATHER: usize = 256 * 1024;

/// A sink and what is on its way there.
pub(super) struct Out<'s> {
    sink: &'s mut dyn BlockSink,
    /// Bytes to send, before `zeros`.
    gathered: Vec<u8>,
    /// Zeros to send, after `gathered`.
    zeros: u64,
    /// How much was taken, bytes.
    at: u64,
}

impl<'s> Out<'s> {
    pub(super) fn new(sink: &'s mut dyn BlockSink) -> Self {
        Self { sink, gathered: Vec::with_capacity(GATHER), zeros: 0, at: 0 }
    }

    /// The position of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes.
    pub(super) fn data(&mut self, bytes: &[u8]) -> Result<(), Ext4Error> {
        self.at += bytes.len() as u64;
        let is_large = bytes.len() > GATHER / 2;
        if is_large || self.zeros > 0 || self.gathered.len() + bytes.len() > GATHER {
            self.flush()?;
        }
        if is_large {
            return self.sink.data(bytes).map_err(Ext4Error::Write);
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    /// The next `len` bytes are zero.
    pub(super) fn zeros(&mut self, len: u64) {
        self.at += len;
        self.zeros += len;
    }

    /// Sends all that was gathered.
    pub(super) fn flush(&mut self) -> Result<(), Ext4Error> {
        if !self.gathered.is_empty() {
            self.sink.data(&self.gathered).map_err(Ext4Error::Write)?;
            self.gathered.clear();
        }
        match std::mem::take(&mut self.zeros) {
            0 => Ok(()),
            zeros => self.sink.zeros(zeros).map_err(Ext4Error::Write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_every_size_come_out_in_order() {
        // Of sizes around all that decides how a piece goes on, each after each.
        let sizes = [1, 4096, GATHER / 2 - 1, GATHER / 2, GATHER / 2 + 1, GATHER - 4096, GATHER, 2 * GATHER];
        let (mut sink, mut expected) = (Vec::new(), Vec::new());
        let mut out = Out::new(&mut sink);
        for (number, (first, second)) in sizes.iter().flat_map(|a| sizes.map(|b| (*a, b))).enumerate() {
            for size in [first, second] {
                let piece = vec![number as u8 + 1; size];
                out.data(&piece).unwrap();
                expected.extend_from_slice(&piece);
            }
            if number % 3 == 0 {
                out.zeros(5000);
                expected.resize(expected.len() + 5000, 0);
            }
        }
        assert_eq!(out.at(), expected.len() as u64);
        out.flush().unwrap();
        assert!(sink == expected);
    }
}
