//! The standard streams as a machine's command needs them: without buffers, and as patient as a pipe.

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

/// A standard stream. Whoever started this program may have made it non-blocking, and others may share it,
/// so that cannot be undone here; instead it is waited for.
#[derive(Debug)]
pub struct Stream(File);

impl Stream {
    /// A stream of its own to where `stream` leads.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn of(stream: impl AsFd) -> io::Result<Self> {
        Ok(Self(stream.as_fd().try_clone_to_owned()?.into()))
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        poll(&mut [PollFd::new(&self.0, flags)], None)?;
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                read => return read,
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn a_non_blocking_pipe_is_waited_for() {
        let (from, to) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let (mut from, mut to) = (Stream::of(from).unwrap(), Stream::of(to).unwrap());
        let sent = vec![7; 1 << 20];
        let expected = sent.clone();
        let writer = std::thread::spawn(move || to.write_all(&sent).unwrap());
        let mut received = Vec::new();
        from.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert_eq!(received, expected);
    }
}
