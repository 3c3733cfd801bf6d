//! Where the serial console's output goes: a log file of bounded size.

use std::fs::File;
use std::io::{self, Seek, Write};
use vmm_sys_util::eventfd::EventFd;

use super::interrupt::trigger;
use super::{DeviceError, new_eventfd};

/// The longest log, in bytes. A guest that writes more loses the oldest.
const MAX_LOG: u64 = 16 << 20;
/// What is held back at most until the event loop writes it.
const BUFFER: usize = 4096;
const CUT: &[u8] = b"[smolpack: the log was full, what came before is dropped]\n";

/// The console log.
///
/// A vCPU puts single bytes into a buffer; the event loop, woken by [`dirty`](Self::dirty), writes out
/// what has gathered. A log that cannot be written must not stop the machine: [`close`](Self::close) tells.
pub(crate) struct Console {
    log: File,
    /// Bytes in the log; `None` where it is no regular file, which needs no bound.
    written: Option<u64>,
    limit: u64,
    buffer: Vec<u8>,
    dirty: EventFd,
    /// What lost output first.
    failure: Option<io::Error>,
}

impl Console {
    /// Output goes to the end of `log`.
    pub(crate) fn new(log: File) -> Result<Self, DeviceError> {
        let metadata = log.metadata().map_err(|e| DeviceError::io("looking at the console log", e))?;
        let written = metadata.is_file().then_some(metadata.len());
        Ok(Self {
            log,
            written,
            limit: MAX_LOG,
            buffer: Vec::with_capacity(BUFFER),
            dirty: new_eventfd()?,
            failure: None,
        })
    }

    /// Readable when [`drain`](Self::drain) has something to write.
    pub(crate) fn dirty(&self) -> &EventFd {
        &self.dirty
    }

    /// Adds output.
    pub(crate) fn push(&mut self, byte: u8) {
        if self.buffer.is_empty() {
            trigger(&self.dirty);
        }
        self.buffer.push(byte);
        if self.buffer.len() >= BUFFER {
            self.drain();
        }
    }

    /// Writes out what has gathered.
    pub(crate) fn drain(&mut self) {
        let _ = self.dirty.read();
        if let Err(e) = self.write_out() {
            self.failure.get_or_insert(e);
        }
        self.buffer.clear();
    }

    /// Writes out the rest.
    ///
    /// # Errors
    /// Some output was lost, now or before.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.drain();
        self.failure.take().map_or(Ok(()), Err)
    }

    fn write_out(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Some(written) = &mut self.written {
            if *written + self.buffer.len() as u64 > self.limit {
                self.log.set_len(0)?;
                self.log.rewind()?;
                self.log.write_all(CUT)?;
                *written = CUT.len() as u64;
            }
            *written += self.buffer.len() as u64;
        }
        self.log.write_all(&self.buffer)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &mut File) -> Vec<u8> {
        let mut text = Vec::new();
        log.rewind().unwrap();
        io::Read::read_to_end(log, &mut text).unwrap();
        text
    }

    fn log() -> (File, File) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let append = File::options().append(true).open(file.path()).unwrap();
        (append, file.into_file())
    }

    #[test]
    fn output_wakes_the_event_loop_once_and_is_written_by_drain() {
        let (append, mut file) = log();
        let mut console = Console::new(append).unwrap();
        b"hello".iter().for_each(|&byte| console.push(byte));
        assert_eq!(read(&mut file), b"");
        assert_eq!(console.dirty().read().unwrap(), 1);
        console.drain();
        assert_eq!(read(&mut file), b"hello");
    }

    #[test]
    fn dropping_writes_what_is_left() {
        let (append, mut file) = log();
        let mut console = Console::new(append).unwrap();
        console.push(b'x');
        drop(console);
        assert_eq!(read(&mut file), b"x");
    }

    #[test]
    fn lost_output_is_told_at_the_end() {
        let mut console = Console::new(File::options().append(true).open("/dev/full").unwrap()).unwrap();
        console.push(b'x');
        console.drain();
        assert_eq!(console.close().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_full_log_keeps_the_newest_output() {
        let (append, mut file) = log();
        let mut console = Console::new(append).unwrap();
        console.limit = 3 * BUFFER as u64;
        (0..4 * BUFFER).for_each(|i| console.push(if i < 3 * BUFFER { b'a' } else { b'b' }));
        let text = read(&mut file);
        assert!(text.starts_with(CUT));
        assert_eq!(text[CUT.len()..], [b'b'; BUFFER]);
    }
}
