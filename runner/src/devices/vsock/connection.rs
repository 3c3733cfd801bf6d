//! One stream between a host's socket and a guest's.
//!
//! Flow control is the specification's credit (section 5.10.6.3): neither side sends more than the other
//! has room for. What the guest sends waits in `outgoing` until the host's socket takes it, and is
//! acknowledged only then, so nothing is lost and memory is bounded.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use smolpack_guest::protocol::AGENT_PORT;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::credit::{BUF_ALLOC, Ours, Theirs};
use super::packet::{
    GUEST_CID, HOST_CID, Op, Packet, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM,
};

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The request is to be sent.
    New,
    /// The request was sent.
    Requested,
    /// Refused; to be asked for again when the timer says so.
    Waiting,
    Established,
    /// A reset is to be sent, and that is the end.
    Resetting,
    /// The guest is gone; the host's socket has yet to take what it left.
    Draining,
    Over,
}

/// What is sent before anything of the host's.
enum Greeting {
    /// It is to be composed at the moment it is sent.
    Due,
    /// What is left of it.
    Rest(Vec<u8>),
}

/// A stream, from the host's request to its end.
pub(super) struct Connection {
    stream: UnixStream,
    local_port: u32,
    guest_port: u32,
    phase: Phase,
    /// Whether it is in the line of streams that wait for their turn to send.
    pub(super) queued: bool,
    greeting: Greeting,
    /// Whether the socket may have something to read; edge-triggered.
    readable: bool,
    /// Whether the host reads no more: what the guest sends is thrown away.
    deaf: bool,
    /// From the guest, not yet taken by the socket.
    outgoing: VecDeque<u8>,
    ours: Ours,
    theirs: Theirs,
    /// Shutdown flags the guest sent, those we sent, and those we have to send.
    guest_shutdown: u32,
    own_shutdown: u32,
    shutdown_due: u32,
}

impl Connection {
    /// A stream to be opened to `guest_port`; `stream` must not block. One to the agent begins with a
    /// greeting, and is asked for until the agent listens.
    pub(super) fn new(stream: UnixStream, local_port: u32, guest_port: u32) -> Self {
        let greeting = if guest_port == AGENT_PORT { Greeting::Due } else { Greeting::Rest(Vec::new()) };
        Self {
            stream,
            local_port,
            guest_port,
            phase: Phase::New,
            queued: false,
            greeting,
            readable: true,
            deaf: false,
            outgoing: VecDeque::new(),
            ours: Ours::default(),
            theirs: Theirs::default(),
            guest_shutdown: 0,
            own_shutdown: 0,
            shutdown_due: 0,
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether packets from `guest_port` are this stream's.
    pub(super) fn answers(&self, guest_port: u32) -> bool {
        self.guest_port == guest_port && !matches!(self.phase, Phase::Draining | Phase::Over)
    }

    pub(super) fn over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it waits to be asked for again.
    pub(super) fn waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Asks again for a stream that was refused.
    pub(super) fn retry(&mut self) {
        if self.phase == Phase::Waiting {
            self.phase = Phase::New;
        }
    }

    /// The guest has forgotten all streams. One that is still to be opened is asked for anew.
    pub(super) fn guest_lost(&mut self) {
        match self.phase {
            Phase::New | Phase::Requested | Phase::Waiting => self.phase = Phase::New,
            Phase::Established | Phase::Resetting | Phase::Draining => self.detach(),
            Phase::Over => {}
        }
    }

    /// The socket's state has changed.
    pub(super) fn socket_event(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable || hung_up;
        if hung_up {
            self.host_left();
        } else if writable {
            self.flush();
        }
    }

    /// The host has closed its socket; what it wrote before is still to be read.
    fn host_left(&mut self) {
        match self.phase {
            Phase::Established => self.host_deaf(),
            Phase::Resetting => {}
            _ => self.phase = Phase::Over,
        }
    }

    /// The host reads no more, so the guest need not write.
    fn host_deaf(&mut self) {
        self.deaf = true;
        self.theirs.take(self.outgoing.len());
        self.outgoing = VecDeque::new();
        self.shutdown_due |= SHUTDOWN_RECEIVE;
        if self.phase == Phase::Draining {
            self.phase = Phase::Over;
        }
    }

    /// Takes in a packet of this stream with its data; `None` where that is shorter than it says.
    pub(super) fn receive(&mut self, packet: &Packet, data: Option<&[u8]>) {
        self.ours.learn(packet);
        let Some(data) = data else {
            self.phase = Phase::Resetting;
            return;
        };
        match (self.phase, packet.op) {
            (Phase::Requested, Some(Op::Response)) => self.phase = Phase::Established,
            // Nobody listens there, or not yet: the guest is still booting.
            (Phase::Requested, Some(Op::Reset)) => {
                self.phase = if self.guest_port == AGENT_PORT { Phase::Waiting } else { Phase::Over };
            }
            // About a request before this one, or just a count: nothing to do.
            (Phase::New | Phase::Waiting, Some(Op::Reset)) | (Phase::Established, Some(Op::CreditUpdate)) => {
            }
            (_, Some(Op::Reset)) => self.detach(),
            (Phase::Established, Some(Op::Data)) => self.take(data),
            (Phase::Established, Some(Op::Shutdown)) => self.guest_shuts_down(packet.flags),
            (Phase::Established, Some(Op::CreditRequest)) => self.theirs.want(),
            _ => self.phase = Phase::Resetting,
        }
    }

    /// The guest's end is gone. The host still gets what it sent.
    fn detach(&mut self) {
        self.guest_shutdown = SHUTDOWN_BOTH;
        self.phase = Phase::Draining;
        self.flush();
    }

    fn take(&mut self, data: &[u8]) {
        let room = BUF_ALLOC as usize - self.outgoing.len();
        if data.len() > room || self.guest_shutdown & SHUTDOWN_SEND != 0 {
            // More than there was credit for, or after the end.
            self.phase = Phase::Resetting;
            return;
        }
        let mut rest = data;
        while self.outgoing.is_empty() && !rest.is_empty() {
            let Some(n) = self.give(rest) else { break };
            rest = &rest[n..];
        }
        if !self.deaf {
            self.outgoing.extend(rest);
        }
    }

    fn guest_shuts_down(&mut self, flags: u32) {
        self.guest_shutdown |= flags & SHUTDOWN_BOTH;
        if self.guest_shutdown & SHUTDOWN_RECEIVE != 0 {
            // What the host writes from now on fails there, as it should.
            let _ = self.stream.shutdown(Shutdown::Read);
        }
        self.flush();
    }

    /// Gives the socket what it takes of the guest's data, and passes on that it was the last.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let chunk = std::mem::take(&mut self.outgoing);
            let given = self.give(chunk.as_slices().0);
            if self.deaf {
                // The rest is thrown away with what the socket refused.
                self.theirs.take(chunk.as_slices().1.len());
                break;
            }
            self.outgoing = chunk;
            let Some(n) = given else { return };
            self.outgoing.drain(..n);
        }
        if self.guest_shutdown & SHUTDOWN_SEND != 0 {
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        match self.phase {
            Phase::Established if self.guest_shutdown == SHUTDOWN_BOTH => self.phase = Phase::Resetting,
            Phase::Draining => self.phase = Phase::Over,
            _ => {}
        }
    }

    /// Gives bytes to the socket; how many it took, or `None` when it takes no more for now or for ever.
    fn give(&mut self, bytes: &[u8]) -> Option<usize> {
        while !self.deaf {
            match send(&self.stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => {
                    self.theirs.take(n);
                    return Some(n);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(_) => self.host_deaf(),
            }
        }
        self.theirs.take(bytes.len());
        Some(bytes.len())
    }

    /// The next packet for the guest, its data put into `buf`; `None` when there is nothing to send, or no
    /// credit to send it with. `greeting` composes what is sent first.
    pub(super) fn next(
        &mut self,
        buf: &mut [u8],
        greeting: impl FnOnce() -> Vec<u8>,
    ) -> Option<(Packet, usize)> {
        match self.phase {
            Phase::New => {
                self.phase = Phase::Requested;
                Some((self.packet(Op::Request, 0, 0), 0))
            }
            Phase::Resetting => {
                self.phase = Phase::Over;
                Some((self.packet(Op::Reset, 0, 0), 0))
            }
            Phase::Established => self.next_established(buf, greeting),
            Phase::Requested | Phase::Waiting | Phase::Draining | Phase::Over => None,
        }
    }

    fn next_established(
        &mut self,
        buf: &mut [u8],
        greeting: impl FnOnce() -> Vec<u8>,
    ) -> Option<(Packet, usize)> {
        if let Some(len) = self.data(buf, greeting) {
            self.ours.spend(len);
            return Some((self.packet(Op::Data, len as u32, 0), len));
        }
        if self.deaf && self.guest_shutdown & SHUTDOWN_RECEIVE != 0 {
            // Neither side listens.
            self.shutdown_due = SHUTDOWN_BOTH;
        }
        if self.shutdown_due & !self.own_shutdown != 0 {
            self.own_shutdown |= self.shutdown_due;
            if self.own_shutdown == SHUTDOWN_BOTH {
                // What the guest still has to say about it nobody hears.
                self.phase = Phase::Over;
            }
            return Some((self.packet(Op::Shutdown, 0, self.own_shutdown), 0));
        }
        if self.theirs.due() {
            return Some((self.packet(Op::CreditUpdate, 0, 0), 0));
        }
        if self.wants_to_send() && self.ours.ask() {
            return Some((self.packet(Op::CreditRequest, 0, 0), 0));
        }
        None
    }

    /// Whether there may be data for the guest, and it may be sent.
    fn wants_to_send(&self) -> bool {
        let over = self.own_shutdown & SHUTDOWN_SEND != 0 || self.guest_shutdown & SHUTDOWN_RECEIVE != 0;
        !over && (self.readable || !matches!(&self.greeting, Greeting::Rest(rest) if rest.is_empty()))
    }

    /// Puts into `buf` what may be sent.
    fn data(&mut self, buf: &mut [u8], greeting: impl FnOnce() -> Vec<u8>) -> Option<usize> {
        let room = self.ours.room().min(buf.len());
        if room == 0 || !self.wants_to_send() {
            return None;
        }
        if matches!(self.greeting, Greeting::Due) {
            self.greeting = Greeting::Rest(greeting());
        }
        match &mut self.greeting {
            Greeting::Rest(rest) if !rest.is_empty() => {
                let some = room.min(rest.len());
                buf[..some].copy_from_slice(&rest[..some]);
                rest.drain(..some);
                Some(some)
            }
            _ => self.read(&mut buf[..room]),
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> Option<usize> {
        while self.readable {
            match (&self.stream).read(buf) {
                Ok(0) => {
                    self.readable = false;
                    self.shutdown_due |= SHUTDOWN_SEND;
                }
                Ok(n) => return Some(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.readable = false;
                    if e.kind() != ErrorKind::WouldBlock {
                        self.shutdown_due |= SHUTDOWN_BOTH;
                    }
                }
            }
        }
        None
    }

    fn packet(&mut self, op: Op, len: u32, flags: u32) -> Packet {
        Packet {
            src_cid: HOST_CID,
            dst_cid: GUEST_CID,
            src_port: self.local_port,
            dst_port: self.guest_port,
            len,
            kind: TYPE_STREAM,
            op: Some(op),
            flags,
            buf_alloc: BUF_ALLOC,
            fwd_cnt: self.theirs.tell(),
        }
    }
}

impl Drop for Connection {
    /// Ends the host's stream in order. A socket closed with something left to read would tell the host
    /// of a reset connection instead of the end, maybe before it has read what the guest sent last.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let mut buf = [0; 4096];
        // After the shutdown nothing is added, so this ends.
        while matches!((&self.stream).read(&mut buf), Ok(n) if n > 0) {}
    }
}
