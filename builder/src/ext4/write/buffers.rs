//! A few large buffers that go round between the thread that fills them and the one that writes them.

use crate::ext4::Ext4Error;
use crate::ext4::spec::BLOCK_SIZE;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Bytes in a buffer: enough to make handing it over cheap.
const BUFFER: usize = 256 * BLOCK_SIZE;
/// Full buffers that may wait for the writer.
const WAITING: usize = 2;

type Filled = Result<Vec<u8>, Ext4Error>;

/// The two ends.
pub(super) fn pair() -> (Filler, Drain) {
    let (filled_in, filled_out) = sync_channel(WAITING);
    let (empty_in, empty_out) = channel();
    let filler = Filler { filled: filled_in, empty: empty_out, buffer: vec![0; BUFFER], len: 0 };
    (filler, Drain { filled: filled_out, empty: empty_in })
}

/// The other end is gone: nobody wants the data any more.
#[derive(Debug)]
pub(super) struct Unwanted;

/// The end that fills.
pub(super) struct Filler {
    filled: SyncSender<Filled>,
    empty: Receiver<Vec<u8>>,
    buffer: Vec<u8>,
    /// How much of `buffer` is filled.
    len: usize,
}

impl Filler {
    /// The next bytes to fill, at least one and at most `wanted`; all of them count as filled.
    pub(super) fn room(&mut self, wanted: u64) -> Result<&mut [u8], Unwanted> {
        if self.len == self.buffer.len() {
            self.send()?;
        }
        let free = &mut self.buffer[self.len..];
        let len = usize::try_from(wanted).unwrap_or(usize::MAX).min(free.len());
        self.len += len;
        Ok(&mut free[..len])
    }

    /// The next `len` bytes are zero.
    pub(super) fn zeros(&mut self, mut len: u64) -> Result<(), Unwanted> {
        while len > 0 {
            let room = self.room(len)?;
            room.fill(0);
            len -= room.len() as u64;
        }
        Ok(())
    }

    /// The next bytes.
    pub(super) fn copy(&mut self, mut bytes: &[u8]) -> Result<(), Unwanted> {
        while !bytes.is_empty() {
            let room = self.room(bytes.len() as u64)?;
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Sends what is filled and takes a buffer that came back, or a new one at first.
    fn send(&mut self) -> Result<(), Unwanted> {
        let next = self.empty.try_recv().unwrap_or_else(|_| vec![0; BUFFER]);
        let mut buffer = std::mem::replace(&mut self.buffer, next);
        buffer.truncate(std::mem::take(&mut self.len));
        self.filled.send(Ok(buffer)).map_err(|_| Unwanted)
    }

    /// All data is there.
    pub(super) fn finish(mut self) {
        self.send().ok(); // whoever does not want it has failed and says so
    }

    /// The data ends with an error.
    pub(super) fn fail(self, error: Ext4Error) {
        self.filled.send(Err(error)).ok(); // as above
    }
}

/// The end that takes.
pub(super) struct Drain {
    filled: Receiver<Filled>,
    empty: Sender<Vec<u8>>,
}

impl Drain {
    /// The next bytes; `None` at the end.
    pub(super) fn next(&self) -> Result<Option<Vec<u8>>, Ext4Error> {
        self.filled.recv().ok().transpose()
    }

    /// Gives a buffer back, unless it was the last, short one.
    pub(super) fn done(&self, buffer: Vec<u8>) {
        if buffer.len() == BUFFER {
            self.empty.send(buffer).ok(); // the filler may have ended
        }
    }
}
