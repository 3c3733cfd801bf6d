//! Moving a running command's input, output and end.
//!
//! One thread and one `poll`, nothing blocks: output waits in its pipe while the host does not read,
//! input waits in the stream while the command does not read, and signals and the vanishing of the host
//! get through in both cases. (Only [`INPUT_LIMIT`] of unread input holds signals up.)
//!
//! A command is over when its process is; a child it leaves behind may hold its output open forever. So
//! what was in the pipes at its end is always delivered, and more only within [`LEFTOVER_GRACE`].

use super::exec::Running;
use super::link::{Link, Received, retry};
use super::pty;
use super::reaper::Child;
use crate::protocol::{Exit, Frame, Kind, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, ioctl_fionread, read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Unread input, in bytes, from which on the stream is no longer read.
const INPUT_LIMIT: usize = 1 << 20;
/// Output read at once, in bytes: what a pipe holds.
const OUTPUT_CHUNK: usize = 64 << 10;
/// How long children that a command left behind may go on writing to its output.
const LEFTOVER_GRACE: Duration = Duration::from_millis(200);
/// How long a command may take to end by itself after its host has vanished.
const HANGUP_GRACE: Duration = Duration::from_secs(1);
/// What a terminal takes for the end of its input (Ctrl-D).
const END_OF_FILE: u8 = 4;

/// Moves everything until the command is over and `Exit` is sent, or the host vanishes: then the
/// command is ended.
pub(super) fn run(link: Link, running: Running) -> io::Result<()> {
    let mut pump = Pump::new(link, running)?;
    let result = pump.run();
    if pump.exit.is_none() {
        pump.hang_up();
    }
    result
}

struct Pump {
    link: Link,
    child: Child,
    terminal: Option<OwnedFd>,
    input: Input,
    outputs: Vec<Output>,
    /// How the command ended, and when its leftovers have had their time.
    exit: Option<(Exit, Instant)>,
    buffer: Vec<u8>,
}

/// What `poll` watches.
#[derive(Clone, Copy)]
enum Source {
    Stream,
    Input,
    Output(Kind),
    Child,
}

impl Pump {
    fn new(link: Link, running: Running) -> io::Result<Self> {
        let Running { child, ends } = running;
        let terminal = ends.terminal.is_some();
        let mut outputs = vec![Output::new(Kind::Stdout, ends.stdout)?];
        if let Some(stderr) = ends.stderr {
            outputs.push(Output::new(Kind::Stderr, stderr)?);
        }
        Ok(Self {
            link,
            child,
            terminal: ends.terminal,
            input: Input::new(ends.stdin, terminal)?,
            outputs,
            exit: None,
            buffer: vec![0; OUTPUT_CHUNK],
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.drop_leftovers();
            if let Some((exit, _)) = self.exit
                && self.outputs.is_empty()
                && !self.link.has_unsent()
            {
                return self.send_exit(exit);
            }
            for (source, found) in self.wait()? {
                match source {
                    Source::Stream => self.serve_stream(found)?,
                    Source::Input => self.input.flush(),
                    Source::Output(kind) => self.forward(kind)?,
                    Source::Child => self.collect()?,
                }
            }
        }
    }

    /// Waits until something can be moved. What cannot be moved on now is not watched, or it would
    /// be reported again and again.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Stream];
        let mut fds = vec![PollFd::new(&self.link, self.stream_events())];
        let mut watch = |source, fd, events| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, events));
        };
        if let Some(fd) = self.input.blocked() {
            watch(Source::Input, fd, PollFlags::OUT);
        }
        if !self.link.has_unsent() {
            for output in &self.outputs {
                watch(Source::Output(output.kind), output.fd.as_fd(), PollFlags::IN);
            }
        }
        if self.exit.is_none() {
            watch(Source::Child, self.child.ended(), PollFlags::IN);
        }
        let timeout = self.exit.and_then(|(_, deadline)| {
            Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
        });
        // Past the deadline only what is owed is waited for, and that is not a matter of time.
        let timeout = timeout.filter(|_| self.outputs.iter().any(|output| output.owed == Some(0)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let found = sources.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(found.filter(|(_, found)| !found.is_empty()).collect())
    }

    fn stream_events(&self) -> PollFlags {
        let mut events = PollFlags::RDHUP;
        if !self.input.is_full() {
            events |= PollFlags::IN;
        }
        if self.link.has_unsent() {
            events |= PollFlags::OUT;
        }
        events
    }

    fn serve_stream(&mut self, found: PollFlags) -> io::Result<()> {
        self.link.flush()?;
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if self.input.is_full() {
            return if found.intersects(gone) { Err(vanished()) } else { Ok(()) };
        }
        if found.intersects(gone | PollFlags::IN) && self.link.receive()? == Received::End {
            return Err(vanished());
        }
        while let Some(frame) = self.link.next_frame()? {
            self.obey(&frame)?;
        }
        self.input.flush();
        Ok(())
    }

    fn obey(&mut self, frame: &Frame) -> io::Result<()> {
        match frame.kind {
            Kind::Stdin => self.input.accept(&frame.payload),
            Kind::Resize => {
                if let Some(terminal) = &self.terminal {
                    pty::resize(terminal, frame.decode()?)?;
                }
            }
            Kind::Signal => {
                let signal: Signal = frame.decode()?;
                self.child.signal_group(signal.number);
            }
            other => {
                let message = format!("{other:?} frame while a command runs");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(())
    }

    fn forward(&mut self, kind: Kind) -> io::Result<()> {
        if self.link.has_unsent() {
            return Ok(());
        }
        let Some(output) = self.outputs.iter_mut().find(|output| output.kind == kind) else { return Ok(()) };
        match read(&output.fd, &mut self.buffer[..]) {
            // A terminal whose other end is closed says EIO.
            Ok(0) | Err(Errno::IO) => self.outputs.retain(|output| output.kind != kind),
            Ok(n) => {
                output.owed = output.owed.map(|owed| owed.saturating_sub(n as u64));
                self.link.send(kind, &self.buffer[..n])?;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// The command has ended: takes its status and notes what it still has in its pipes.
    fn collect(&mut self) -> io::Result<()> {
        self.exit = Some((self.child.wait()?, Instant::now() + LEFTOVER_GRACE));
        self.input.close();
        for output in &mut self.outputs {
            output.owed = Some(ioctl_fionread(&output.fd)?);
        }
        Ok(())
    }

    /// Closes outputs that nothing is owed of once the grace is over.
    fn drop_leftovers(&mut self) {
        if self.exit.is_some_and(|(_, deadline)| Instant::now() >= deadline) {
            self.outputs.retain(|output| output.owed != Some(0));
        }
    }

    fn send_exit(&mut self, exit: Exit) -> io::Result<()> {
        let frame = Frame::json(Kind::Exit, &exit);
        self.link.send(frame.kind, &frame.payload)?;
        while self.link.has_unsent() {
            let mut stream = [PollFd::new(&self.link, PollFlags::OUT)];
            retry(|| Ok(poll(&mut stream, None)?))?;
            self.link.flush()?;
        }
        Ok(())
    }

    /// Ends a command whose host is gone as a closed terminal does, then by force.
    fn hang_up(&mut self) {
        for signal in [libc::SIGHUP, libc::SIGCONT] {
            self.child.signal_group(signal);
        }
        let mut ended = [PollFd::from_borrowed_fd(self.child.ended(), PollFlags::IN)];
        let grace = Timespec::try_from(HANGUP_GRACE).ok();
        let _ = retry(|| Ok(poll(&mut ended, grace.as_ref())?));
        self.child.signal_group(libc::SIGKILL);
    }
}

fn vanished() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the host closed the stream while a command ran")
}

/// One output of the command.
struct Output {
    kind: Kind,
    fd: OwnedFd,
    /// Bytes that were in it when the command ended and are not forwarded yet.
    owed: Option<u64>,
}

impl Output {
    fn new(kind: Kind, fd: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&fd, true)?;
        Ok(Self { kind, fd, owed: None })
    }
}

/// The command's input.
struct Input {
    /// Absent once it is closed, from either side.
    fd: Option<OwnedFd>,
    waiting: Vec<u8>,
    written: usize,
    /// The host has nothing more to say.
    ending: bool,
    terminal: bool,
}

impl Input {
    fn new(fd: OwnedFd, terminal: bool) -> io::Result<Self> {
        ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Some(fd), waiting: Vec::new(), written: 0, ending: false, terminal })
    }

    /// Takes the payload of a `Stdin` frame. A terminal stays open at the end of input: it is told by
    /// the character that ends it.
    fn accept(&mut self, payload: &[u8]) {
        match (payload.is_empty(), self.terminal) {
            (true, true) => self.waiting.push(END_OF_FILE),
            (true, false) => self.ending = true,
            (false, _) => self.waiting.extend_from_slice(payload),
        }
        if self.fd.is_none() {
            self.waiting.clear();
        }
    }

    fn flush(&mut self) {
        while let Some(fd) = &self.fd
            && self.written < self.waiting.len()
        {
            match write(fd, &self.waiting[self.written..]) {
                Ok(n) => self.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.compact(),
                // The command has closed its input; what is sent to it is lost, as in a pipeline.
                Err(_) => return self.close(),
            }
        }
        self.waiting.clear();
        self.written = 0;
        if self.ending {
            self.fd = None;
        }
    }

    fn compact(&mut self) {
        self.waiting.drain(..self.written);
        self.written = 0;
    }

    fn close(&mut self) {
        self.fd = None;
        self.waiting.clear();
        self.written = 0;
    }

    /// The descriptor to wait for, where bytes wait.
    fn blocked(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().filter(|_| !self.waiting.is_empty()).map(AsFd::as_fd)
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= INPUT_LIMIT
    }
}
