//! One stream of frames, read and written without blocking.
//!
//! A running command is one loop around `poll`, and this is its side towards the stream. Bytes wait in
//! two buffers. Nothing bounds the outgoing one but its owner, who asks for more to send only while
//! [`Link::has_unsent`] is false; so it holds about one frame.

use crate::protocol::{Frame, Kind};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes asked of the stream at once.
const READ_SIZE: usize = 64 << 10;

/// What a call of [`Link::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The stream goes on; there may be new frames.
    Some,
    /// The other side has closed it.
    End,
}

/// A stream of frames.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    /// Received; what lies before `taken` was handed out.
    incoming: Vec<u8>,
    taken: usize,
    /// To be sent; what lies before `sent` has been.
    outgoing: Vec<u8>,
    sent: usize,
}

impl Link {
    /// Takes over a connected stream and makes it non-blocking.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, incoming: Vec::new(), taken: 0, outgoing: Vec::new(), sent: 0 })
    }

    /// Reads what has arrived, one buffer at most.
    pub(super) fn receive(&mut self) -> io::Result<Received> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let start = self.incoming.len();
        self.incoming.resize(start + READ_SIZE, 0);
        let read = retry(|| (&self.stream).read(&mut self.incoming[start..]));
        self.incoming.truncate(start + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Ok(Received::End),
            Ok(_) => Ok(Received::Some),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(Received::Some),
            Err(e) => Err(e),
        }
    }

    /// The next complete frame among those received.
    pub(super) fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some((frame, len)) = Frame::parse(&self.incoming[self.taken..])? else { return Ok(None) };
        self.taken += len;
        Ok(Some(frame))
    }

    /// Queues a frame and sends what the stream takes.
    pub(super) fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        Frame::encode(kind, payload, &mut self.outgoing);
        self.flush()
    }

    /// Sends what the stream takes of what is queued.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.has_unsent() {
            match retry(|| (&self.stream).write(&self.outgoing[self.sent..])) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Whether frames wait for the stream to take them.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Calls again where a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().unwrap();
        (Link::new(a).unwrap(), Link::new(b).unwrap())
    }

    #[test]
    fn a_frame_larger_than_the_socket_holds_arrives_in_pieces() {
        let (mut from, mut to) = pair();
        let payload: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        from.send(Kind::Stdin, &payload).unwrap();
        assert!(from.has_unsent(), "a megabyte does not fit a socket's buffer");
        let frame = loop {
            assert_eq!(to.receive().unwrap(), Received::Some);
            from.flush().unwrap();
            if let Some(frame) = to.next_frame().unwrap() {
                break frame;
            }
        };
        assert_eq!(frame, Frame { kind: Kind::Stdin, payload });
        assert!(!from.has_unsent());
    }

    #[test]
    fn nothing_received_is_no_frame_and_a_closed_stream_is_its_end() {
        let (from, mut to) = pair();
        assert_eq!(to.receive().unwrap(), Received::Some);
        assert_eq!(to.next_frame().unwrap(), None);
        drop(from);
        assert_eq!(to.receive().unwrap(), Received::End);
    }

    #[test]
    fn frames_that_arrive_together_are_taken_apart() {
        let (mut from, mut to) = pair();
        for byte in 0..3 {
            from.send(Kind::Stdout, &[byte]).unwrap();
        }
        to.receive().unwrap();
        for byte in 0..3 {
            assert_eq!(to.next_frame().unwrap().unwrap().payload, [byte]);
        }
        assert_eq!(to.next_frame().unwrap(), None);
    }
}
