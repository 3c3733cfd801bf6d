//! virtio-vsock (virtio 1.2, section 5.10): streams from the host into the guest.
//!
//! The host opens streams; what the guest tries to open is refused. A stream asked for before the guest
//! can take it is held: until the driver is there, until somebody listens on the port, and after a
//! restore until the guest has forgotten the streams of the machine that was saved.

mod connection;
mod credit;
mod packet;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use smolpack_guest::protocol::{Frame, Hello, Kind};
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};

use super::chain::Chain;
use super::mmio::{Io, TransportStateV1, VirtioDevice};
use super::queue::Broken;
use super::{DeviceError, random_u64};
use connection::Connection;
use packet::{GUEST_CID, HEADER, HOST_CID, Op, Packet, TYPE_STREAM};

/// Queues, in the specification's order.
const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;

/// Most data of one packet, bytes.
const MAX_DATA: usize = 64 << 10;
/// Most streams at once.
const MAX_STREAMS: usize = 1024;
/// Refusals kept for the guest at most; a guest that earns more of them has them dropped.
const MAX_REFUSALS: usize = 256;
/// How often a refused stream is asked for again.
const RETRY_NS: i64 = 5_000_000;
/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`: the guest forgets all its streams.
const TRANSPORT_RESET: [u8; 4] = [0; 4];
/// Local ports are in the upper half, clear of well-known ones.
const UPPER_HALF: u32 = 1 << 31;
/// The epoll token of the retry timer; streams have their local port.
const TIMER: u64 = u64::MAX;

/// What a snapshot keeps of the vsock device. Streams are not kept: those of a machine that was saved
/// are refused after the restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockStateV1 {
    /// Registers and queues.
    pub transport: TransportStateV1,
}

/// How far the guest has been told to forget streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    /// It need not, or has.
    Done,
    /// The event is to be sent.
    Due,
    /// The event was sent when the guest had made so many event buffers available; when it has made
    /// another, it has handled it.
    Sent(u16),
}

/// The vsock device.
pub(crate) struct Vsock {
    /// By local port.
    streams: HashMap<u32, Connection>,
    /// Local ports of streams that may have something to send: each has its turn. Some may be gone.
    ready: VecDeque<u32>,
    next_port: u32,
    refusals: VecDeque<Packet>,
    reset: Reset,
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_set: bool,
    generation: u64,
    chain: Chain,
    buffer: Vec<u8>,
    config: [u8; 8],
}

impl Vsock {
    /// A device whose guest, if it was restored, has streams to forget.
    pub(crate) fn new(generation: u64, restored: bool) -> Result<Self, DeviceError> {
        let failed = |e: rustix::io::Errno| DeviceError::io("setting up vsock", e);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(failed)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(failed)?;
        Ok(Self {
            streams: HashMap::new(),
            ready: VecDeque::new(),
            // A port the machine that was saved is unlikely to have used a moment ago.
            next_port: random_u64()? as u32 | UPPER_HALF,
            refusals: VecDeque::new(),
            reset: if restored { Reset::Due } else { Reset::Done },
            epoll,
            timer,
            timer_set: false,
            generation,
            chain: Chain::default(),
            buffer: vec![0; MAX_DATA],
            config: GUEST_CID.to_le_bytes(),
        })
    }

    /// Readable when [`socket_events`](Self::socket_events) has something to do.
    pub(crate) fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Joins `stream` to a new stream to `port` in the guest, as soon as somebody listens there.
    pub(crate) fn connect(&mut self, port: u32, stream: UnixStream) -> std::io::Result<()> {
        if self.streams.len() >= MAX_STREAMS {
            return Err(std::io::Error::other("too many streams"));
        }
        stream.set_nonblocking(true)?;
        let local = self.free_port();
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(local.into()), flags)?;
        self.streams.insert(local, Connection::new(stream, local, port));
        self.enqueue(local);
        Ok(())
    }

    fn free_port(&mut self) -> u32 {
        while self.streams.contains_key(&self.next_port) {
            self.step_port();
        }
        let port = self.next_port;
        self.step_port();
        port
    }

    /// Stays clear of the wildcard, the last port of all.
    fn step_port(&mut self) {
        self.next_port = ((self.next_port + 1) % (u32::MAX - 1)) | UPPER_HALF;
    }

    /// Takes in what the streams' sockets and the timer have to say.
    pub(crate) fn socket_events(&mut self) {
        let mut events = [const { MaybeUninit::uninit() }; 64];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == TIMER {
                self.retry();
                continue;
            }
            let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            let readable = flags.intersects(EventFlags::IN | EventFlags::RDHUP);
            self.with_stream(token as u32, |stream| {
                stream.socket_event(readable, flags.contains(EventFlags::OUT), hung_up);
            });
            self.enqueue(token as u32);
        }
    }

    /// Lets `work` have the stream of a local port, and sees to what has become of it.
    fn with_stream<T>(&mut self, port: u32, work: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let stream = self.streams.get_mut(&port)?;
        let value = work(stream);
        if stream.over() {
            // Another process may hold the same socket, so closing it is not enough.
            let _ = epoll::delete(&self.epoll, stream.stream());
            self.streams.remove(&port);
        } else if stream.waiting() {
            self.set_timer();
        }
        Some(value)
    }

    /// Gives the stream of a local port a turn at sending.
    fn enqueue(&mut self, port: u32) {
        if let Some(stream) = self.streams.get_mut(&port)
            && !std::mem::replace(&mut stream.queued, true)
        {
            self.ready.push_back(port);
        }
    }

    fn retry(&mut self) {
        let mut expirations = [0; 8];
        let _ = rustix::io::read(&self.timer, &mut expirations);
        self.timer_set = false;
        let waiting: Vec<u32> =
            self.streams.iter().filter(|(_, stream)| stream.waiting()).map(|(&port, _)| port).collect();
        for port in waiting {
            self.with_stream(port, Connection::retry);
            self.enqueue(port);
        }
    }

    fn set_timer(&mut self) {
        if self.timer_set {
            return;
        }
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: 0, tv_nsec: RETRY_NS },
        };
        self.timer_set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok();
    }

    /// Sends the guest what there is, for as long as it has buffers.
    pub(crate) fn send(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        if !io.live {
            return Ok(());
        }
        self.send_reset(io)?;
        if self.reset != Reset::Done {
            return Ok(());
        }
        for _ in 0..io.queues[RX].size() {
            if !io.queues[RX].pop(io.mem, &mut self.chain)? {
                if io.queues[RX].ask_for_kick(io.mem)? {
                    continue;
                }
                return Ok(());
            }
            let Some(room) = self.chain.writable().len().checked_sub(HEADER) else {
                return Err(Broken::Buffer("a receive buffer has no room for a header"));
            };
            let Some((packet, len)) = self.next_packet(room) else {
                io.queues[RX].undo_pop();
                return Ok(());
            };
            self.chain.writable().write(io.mem, 0, &packet.encode())?;
            self.chain.writable().write(io.mem, HEADER, &self.buffer[..len])?;
            io.queues[RX].complete(io.mem, self.chain.head(), (HEADER + len) as u32)?;
        }
        io.again(RX);
        Ok(())
    }

    fn next_packet(&mut self, room: usize) -> Option<(Packet, usize)> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some((refusal, 0));
        }
        let generation = self.generation;
        let mut buffer = std::mem::take(&mut self.buffer);
        let room = &mut buffer[..room.min(MAX_DATA)];
        let mut found = None;
        while found.is_none()
            && let Some(port) = self.ready.pop_front()
        {
            let next = |stream: &mut Connection| {
                stream.queued = false;
                stream.next(room, || greeting(generation))
            };
            found = self.with_stream(port, next).flatten();
            if found.is_some() {
                self.enqueue(port);
            }
        }
        self.buffer = buffer;
        found
    }

    /// Tells a restored guest to forget its streams, and sees when it has.
    fn send_reset(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        let queue = &mut io.queues[EVENT];
        match self.reset {
            Reset::Done => {}
            Reset::Due => {
                if queue.pop(io.mem, &mut self.chain)? {
                    self.chain.writable().write(io.mem, 0, &TRANSPORT_RESET)?;
                    // Counted before the guest can see the event.
                    let available = queue.ask_for_kick_beyond(io.mem)?;
                    queue.complete(io.mem, self.chain.head(), TRANSPORT_RESET.len() as u32)?;
                    queue.signal(io.mem, io.interrupt)?;
                    self.reset = Reset::Sent(available);
                } else {
                    queue.ask_for_kick(io.mem)?;
                }
            }
            Reset::Sent(available) => {
                if queue.available(io.mem)? != available {
                    self.reset = Reset::Done;
                }
            }
        }
        Ok(())
    }

    /// Takes in what the guest has sent.
    fn receive(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        for _ in 0..io.queues[TX].size() {
            if !io.queues[TX].pop(io.mem, &mut self.chain)? {
                if io.queues[TX].ask_for_kick(io.mem)? {
                    continue;
                }
                return Ok(());
            }
            let mut header = [0; HEADER];
            self.chain.readable().read(io.mem, 0, &mut header)?;
            let packet = Packet::decode(&header);
            let len = packet.len as usize;
            let whole = len <= MAX_DATA && HEADER + len <= self.chain.readable().len();
            if whole {
                self.chain.readable().read(io.mem, HEADER, &mut self.buffer[..len])?;
            }
            io.queues[TX].complete(io.mem, self.chain.head(), 0)?;
            self.dispatch(&packet, whole);
        }
        io.again(TX);
        Ok(())
    }

    /// Gives a packet, whose data is in `buffer`, to its stream, or refuses it. One that has less data
    /// than it says ends its stream.
    fn dispatch(&mut self, packet: &Packet, whole: bool) {
        let ours = packet.src_cid == GUEST_CID && packet.dst_cid == HOST_CID && packet.kind == TYPE_STREAM;
        let port = packet.dst_port;
        let known = self.streams.get(&port).is_some_and(|stream| stream.answers(packet.src_port));
        if ours && known {
            let buffer = std::mem::take(&mut self.buffer);
            let data = if whole { Some(&buffer[..packet.len as usize]) } else { None };
            self.with_stream(port, |stream| stream.receive(packet, data));
            self.buffer = buffer;
            self.enqueue(port);
        } else if packet.op != Some(Op::Reset) && self.refusals.len() < MAX_REFUSALS {
            self.refusals.push_back(Packet::refuse(packet));
        }
    }
}

/// What every stream to the agent begins with. A host that has no random numbers to give, or a clock
/// before 1970, sends nothing: the agent then answers nothing either.
fn greeting(generation: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        && let Some(entropy) = entropy()
    {
        let realtime_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let hello = Frame::json(Kind::Hello, &Hello { generation, realtime_ns, entropy });
        // Writing to a vector does not fail.
        let _ = hello.write(&mut bytes);
    }
    bytes
}

/// 64 bytes in hexadecimal.
fn entropy() -> Option<String> {
    (0..8).map(|_| random_u64().ok().map(|word| format!("{word:016x}"))).collect()
}

impl VirtioDevice for Vsock {
    const NAME: &'static str = "vsock";
    const ID: u32 = 19;
    const QUEUES: &'static [u16] = &[256, 256, 16];

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    /// Streams that are still to be opened are kept: a driver resets the device before it starts, and
    /// by then the host may have asked for some.
    fn reset(&mut self) {
        self.refusals.clear();
        self.reset = Reset::Done;
        let ports: Vec<u32> = self.streams.keys().copied().collect();
        for port in ports {
            self.with_stream(port, Connection::guest_lost);
            self.enqueue(port);
        }
    }

    fn process(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), Broken> {
        if queue == TX {
            self.receive(io)?;
        }
        self.send(io)
    }
}

#[cfg(test)]
mod tests;
