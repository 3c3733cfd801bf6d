//! The control socket: one JSON message a packet, descriptors beside it.

use crate::control::MAX_MESSAGE;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The most descriptors beside one message.
const MAX_FDS: usize = 2;

/// One end of a control socket.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// A connected pair, closed on exec.
    ///
    /// # Errors
    /// The host gives no sockets.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(a), Self(b)))
    }

    /// The end that was inherited as `fd`.
    #[must_use]
    pub fn inherited(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other end is closed; the message is too long.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE {
            let what = format!("a control message of {} bytes; at most {MAX_MESSAGE} are taken", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(invalid("too many descriptors for one control message"));
        }
        rustix::io::retry_on_intr(|| {
            sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    /// Waits for the next message and the descriptors beside it; `None` when the other end is closed.
    ///
    /// # Errors
    /// A packet that is no message, or too long; descriptors this process may not have any more (EMFILE).
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // The other end was closed with messages unread. This is said once; what it sent before
                // can still be read.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                received => break received?,
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(invalid("control message cut off"));
        }
        // No end sends more descriptors than there is room for, so the system left some out for the limit
        // of this process (recvmsg(2) has no other word for it).
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE.into());
        }
        // A packet always has bytes, so none means the end.
        if received.bytes == 0 {
            return Ok(None);
        }
        let message = serde_json::from_slice(&bytes[..received.bytes])?;
        Ok(Some((message, fds)))
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        a.send(&vec!["hello"], &[file.as_fd()]).unwrap();
        let (message, fds) = b.receive::<Vec<String>>().unwrap().unwrap();
        assert_eq!((message, fds.len()), (vec!["hello".to_owned()], 1));
        let mut arrived = std::fs::File::from(fds.into_iter().next().unwrap());
        arrived.rewind().unwrap();
        let mut text = String::new();
        arrived.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
    }

    #[test]
    fn a_closed_end_is_none_and_sending_to_it_an_error() {
        let (a, b) = Channel::pair().unwrap();
        drop(a);
        assert!(b.receive::<u8>().unwrap().is_none());
        assert_eq!(b.send(&1, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn last_words_arrive_although_the_other_end_went_without_reading() {
        let (a, b) = Channel::pair().unwrap();
        a.send(&1, &[]).unwrap();
        b.send(&2, &[]).unwrap();
        drop(b);
        assert!(a.send(&3, &[]).is_err());
        assert_eq!(a.receive::<u8>().unwrap().unwrap().0, 2);
        assert!(a.receive::<u8>().unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (a, b) = Channel::pair().unwrap();
        a.send(&"text", &[]).unwrap();
        assert_eq!(b.receive::<u8>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(a.send(&"x".repeat(MAX_MESSAGE), &[]).is_err());
    }
}
