//! Streams between a host's sockets and a guest played by the test: how they open and close.

mod flow;
mod restore;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::credit::BUF_ALLOC;
use super::packet::{SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use super::*;
use crate::devices::GuestMemory;
use crate::devices::mmio::Mmio;
use crate::devices::testing::{Driver, In, Out, Random, memory, torment};
use smolpack_guest::protocol::AGENT_PORT;

/// A port where somebody other than the agent listens.
const PORT: u32 = 5000;
/// The room the guest has for data unless a test says otherwise.
const ROOM: u32 = 64 << 10;
const RX_BUFFER: usize = 4096;

/// The guest: its driver and what it has received.
struct Guest<'a> {
    device: &'a Mmio<Vsock>,
    driver: Driver<'a>,
}

/// A packet as the guest sees it.
type Seen = (Packet, Vec<u8>);

impl<'a> Guest<'a> {
    fn start(mem: &GuestMemory, device: &'a Mmio<Vsock>) -> Self {
        let mut guest = Self { device, driver: Driver::start(mem, device) };
        guest.give_buffers(16);
        guest
    }

    fn give_buffers(&mut self, count: usize) {
        for _ in 0..count {
            self.driver.add(RX, &[In(RX_BUFFER)]);
        }
        self.driver.kick(RX);
        self.device.process(RX);
    }

    /// What has arrived; each buffer is given back.
    fn receive(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        for (head, len) in self.driver.rings[RX].take_used(&self.driver.mem) {
            let mut bytes = self.driver.rings[RX].answer(&self.driver.mem, head);
            bytes.truncate(len as usize);
            let data = bytes.split_off(HEADER);
            let packet = Packet::decode(bytes.as_slice().try_into().unwrap());
            assert_eq!((packet.src_cid, packet.dst_cid, packet.kind), (HOST_CID, GUEST_CID, TYPE_STREAM));
            assert_eq!(packet.len as usize, data.len());
            seen.push((packet, data));
        }
        self.give_buffers(seen.len());
        seen
    }

    /// The one packet that has arrived.
    fn receive_one(&mut self) -> Seen {
        let mut seen = self.receive();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    fn send_raw(&mut self, packet: &Packet, data: &[u8]) {
        self.driver.add(TX, &[Out(&packet.encode()), Out(data)]);
        self.driver.kick(TX);
        self.device.process(TX);
        assert_eq!(self.driver.rings[TX].take_used(&self.driver.mem).len(), 1);
    }

    /// Answers `to` with a packet.
    fn send(&mut self, to: &Packet, op: Op, flags: u32, data: &[u8]) {
        self.send_raw(&answer(to, op, flags, data.len()), data);
    }

    /// Accepts the one request that has arrived.
    fn accept(&mut self) -> Packet {
        let (request, _) = self.receive_one();
        assert_eq!(request.op, Some(Op::Request));
        self.send(&request, Op::Response, 0, &[]);
        request
    }
}

fn answer(to: &Packet, op: Op, flags: u32, len: usize) -> Packet {
    Packet {
        src_cid: GUEST_CID,
        dst_cid: HOST_CID,
        src_port: to.dst_port,
        dst_port: to.src_port,
        len: len as u32,
        kind: TYPE_STREAM,
        op: Some(op),
        flags,
        buf_alloc: ROOM,
        fwd_cnt: 0,
    }
}

fn device(restored: bool) -> (GuestMemory, Mmio<Vsock>) {
    let mem = memory();
    (mem.clone(), Mmio::new(mem, Vsock::new(7, restored).unwrap()).unwrap())
}

/// What the event loop does when a socket or the timer has news.
fn serve(device: &Mmio<Vsock>) {
    device.run(|vsock, io| {
        vsock.socket_events();
        vsock.send(io)?;
        io.queues[RX].signal(io.mem, io.interrupt)
    });
}

/// A stream from the host to `port`; the host's end of it.
fn connect(device: &Mmio<Vsock>, port: u32) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    device.run(|vsock, io| {
        vsock.connect(port, theirs).unwrap();
        vsock.send(io)
    });
    ours
}

/// A device with one stream, accepted by the guest.
fn with_stream(test: impl FnOnce(&Mmio<Vsock>, &mut Guest<'_>, UnixStream, Packet)) {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let host = connect(&device, PORT);
    let request = guest.accept();
    test(&device, &mut guest, host, request);
}

fn streams(device: &Mmio<Vsock>) -> usize {
    device.device().streams.len()
}

fn read_to_end(mut host: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    host.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_both_ways_and_the_counts_with_them() {
    with_stream(|device, guest, mut host, request| {
        host.write_all(b"from the host").unwrap();
        serve(device);
        let (packet, data) = guest.receive_one();
        assert_eq!((packet.op, data.as_slice()), (Some(Op::Data), b"from the host".as_slice()));
        assert_eq!(packet.buf_alloc, BUF_ALLOC);

        guest.send(&request, Op::Data, 0, b"from the guest");
        let mut got = [0; 14];
        host.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"from the guest");
        guest.send(&request, Op::CreditRequest, 0, &[]);
        let (packet, _) = guest.receive_one();
        assert_eq!((packet.op, packet.fwd_cnt), (Some(Op::CreditUpdate), 14));
    });
}

#[test]
fn a_stream_asked_for_before_the_driver_starts_is_opened_when_it_has() {
    let (mem, device) = device(false);
    let mut host = connect(&device, PORT);
    host.write_all(b"early").unwrap();
    serve(&device);
    let mut guest = Guest::start(&mem, &device);
    guest.accept();
    let (_, data) = guest.receive_one();
    assert_eq!(data, b"early");
}

#[test]
fn the_agent_is_asked_until_it_listens_and_then_greeted_first() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let mut host = connect(&device, AGENT_PORT);
    host.write_all(b"request").unwrap();
    for _ in 0..3 {
        let (request, _) = guest.receive_one();
        assert_eq!(request.op, Some(Op::Request));
        guest.send(&request, Op::Reset, 0, &[]);
        let start = Instant::now();
        while guest.driver.rings[RX].pending(&mem) == 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "not asked again");
            serve(&device);
        }
    }
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    guest.accept();
    let seen: Vec<u8> = guest.receive().into_iter().flat_map(|(_, data)| data).collect();
    let mut rest = seen.as_slice();
    let hello = Frame::read(&mut rest).unwrap().unwrap();
    assert_eq!(hello.kind, Kind::Hello);
    let hello: Hello = hello.decode().unwrap();
    assert_eq!((hello.generation, hello.entropy.len()), (7, 128));
    assert!(hello.realtime_ns >= before);
    assert_eq!(rest, b"request");
}

#[test]
fn where_nobody_but_the_agent_would_listen_a_refusal_ends_the_stream() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let mut host = connect(&device, PORT);
    host.write_all(b"unread").unwrap();
    let (request, _) = guest.receive_one();
    guest.send(&request, Op::Reset, 0, &[]);
    assert_eq!(streams(&device), 0);
    assert_eq!(read_to_end(host), b"", "an end, not an error");
}

#[test]
fn a_host_that_gives_up_is_forgotten() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    for refused in [false, true] {
        let host = connect(&device, AGENT_PORT);
        let (request, _) = guest.receive_one();
        if refused {
            guest.send(&request, Op::Reset, 0, &[]);
        }
        drop(host);
        serve(&device);
        assert_eq!(streams(&device), 0);
        // An answer that comes too late is refused.
        guest.send(&request, Op::Response, 0, &[]);
        assert_eq!(guest.receive_one().0.op, Some(Op::Reset));
    }
}

#[test]
fn a_stream_the_guest_asks_for_is_refused() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let request =
        answer(&Packet { src_port: 80, dst_port: 9000, ..Packet::decode(&[0; HEADER]) }, Op::Request, 0, 0);
    guest.send_raw(&request, &[]);
    let (packet, _) = guest.receive_one();
    assert_eq!((packet.op, packet.src_port, packet.dst_port), (Some(Op::Reset), 80, 9000));
}

#[test]
fn the_host_closes_one_way_and_still_gets_the_answer() {
    with_stream(|device, guest, mut host, request| {
        host.write_all(b"question").unwrap();
        host.shutdown(Shutdown::Write).unwrap();
        serve(device);
        let seen = guest.receive();
        assert_eq!(seen[0].1, b"question");
        assert_eq!((seen[1].0.op, seen[1].0.flags), (Some(Op::Shutdown), SHUTDOWN_SEND));
        guest.send(&request, Op::Data, 0, b"answer");
        guest.send(&request, Op::Shutdown, SHUTDOWN_BOTH, &[]);
        assert_eq!(guest.receive_one().0.op, Some(Op::Reset), "the guest may forget it");
        assert_eq!(streams(device), 0);
        assert_eq!(read_to_end(host), b"answer");
    });
}

#[test]
fn the_guest_closes_one_way_and_still_gets_what_follows() {
    with_stream(|device, guest, mut host, request| {
        guest.send(&request, Op::Data, 0, b"all I have");
        guest.send(&request, Op::Shutdown, SHUTDOWN_SEND, &[]);
        assert_eq!(read_to_end(host.try_clone().unwrap()), b"all I have");
        host.write_all(b"thanks").unwrap();
        serve(device);
        assert_eq!(guest.receive_one().1, b"thanks");
        drop(host);
        serve(device);
        let (packet, _) = guest.receive_one();
        assert_eq!((packet.op, packet.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
        assert_eq!(streams(device), 0);
    });
}

#[test]
fn a_host_that_closes_is_read_to_its_end_first() {
    with_stream(|device, guest, mut host, request| {
        host.write_all(&vec![1; 100_000]).unwrap();
        drop(host);
        let mut got = 0;
        for _ in 0..10 {
            serve(device);
            for (packet, data) in guest.receive() {
                got += data.len();
                if packet.op == Some(Op::CreditRequest) {
                    let mut update = answer(&request, Op::CreditUpdate, 0, 0);
                    update.fwd_cnt = got as u32;
                    guest.send_raw(&update, &[]);
                }
            }
        }
        assert_eq!(got, 100_000);
        assert_eq!(streams(device), 0);
    });
}

/// Sends as much as there is credit for, which a socket that nobody reads does not take; what was sent.
#[test]
fn a_guest_that_reads_no_more_makes_the_hosts_writes_fail() {
    with_stream(|device, guest, mut host, request| {
        guest.send(&request, Op::Shutdown, SHUTDOWN_RECEIVE, &[]);
        assert_eq!(host.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        guest.send(&request, Op::Data, 0, b"last");
        drop(host);
        serve(device);
        let (packet, _) = guest.receive_one();
        assert_eq!((packet.op, packet.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
        assert_eq!(streams(device), 0);
    });
}

#[test]
fn packets_that_make_no_sense_end_their_stream_or_are_refused() {
    type Harm = fn(&mut Packet);
    let harms: [(&str, Harm); 7] = [
        ("an unknown operation", |p| p.op = None),
        ("a second response", |p| p.op = Some(Op::Response)),
        ("a request", |p| p.op = Some(Op::Request)),
        ("less data than it says", |p| p.len = 100),
        ("more data than a packet may have", |p| p.len = u32::MAX),
        ("another kind of stream", |p| p.kind = 2),
        ("a port without a stream", |p| p.dst_port = 1),
    ];
    for (name, harm) in harms {
        with_stream(|_, guest, host, request| {
            let mut packet = answer(&request, Op::Data, 0, 4);
            harm(&mut packet);
            guest.send_raw(&packet, b"data");
            assert_eq!(guest.receive_one().0.op, Some(Op::Reset), "{name}");
            assert!(!guest.driver.needs_reset(), "{name}");
            drop(host);
        });
    }
}

#[test]
fn a_reset_is_never_answered() {
    with_stream(|_, guest, _host, request| {
        let mut packet = answer(&request, Op::Reset, 0, 0);
        packet.dst_port = 1;
        guest.send_raw(&packet, &[]);
        assert!(guest.receive().is_empty());
    });
}
