//! Moving a running command's input, output and end.
//!
//! One thread and one `poll`, nothing blocks: output waits in its pipe while the host does not take it,
//! input waits here while the command does not read, never more than a window of it, and signals and the
//! vanishing of the host get through in both cases.
//!
//! A command is over when its process is; a child it leaves behind may hold its output open forever. So
//! what was in the pipes at its end is always delivered, and more only within [`LEFTOVER_GRACE`].

use super::exec::Running;
use super::link::{Link, Received, retry};
use super::pty;
use super::reaper::Child;
use crate::protocol::{Exit, Frame, Kind, Signal, Taken, WINDOW};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, ioctl_fionread, read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

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
                    Source::Input => self.feed()?,
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
            for output in self.outputs.iter().filter(|output| output.window > 0) {
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
        let mut events = PollFlags::RDHUP | PollFlags::IN;
        if self.link.has_unsent() {
            events |= PollFlags::OUT;
        }
        events
    }

    fn serve_stream(&mut self, found: PollFlags) -> io::Result<()> {
        self.link.flush()?;
        let readable = PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if found.intersects(readable) && self.link.receive()? == Received::End {
            return Err(vanished());
        }
        while let Some(frame) = self.link.next_frame()? {
            self.obey(&frame)?;
        }
        self.feed()
    }

    /// Lets the command have the input that waits, and the host know how much it took.
    fn feed(&mut self) -> io::Result<()> {
        self.input.flush();
        match self.input.take_untold() {
            Some(bytes) => self.tell(Taken::Stdin(bytes)),
            None => Ok(()),
        }
    }

    fn tell(&mut self, taken: Taken) -> io::Result<()> {
        let frame = Frame::json(Kind::Taken, &taken);
        self.link.send(frame.kind, &frame.payload)
    }

    fn obey(&mut self, frame: &Frame) -> io::Result<()> {
        match frame.kind {
            Kind::Stdin => self.input.accept(&frame.payload)?,
            Kind::Stdout | Kind::Stderr if frame.payload.is_empty() => self.close(frame.kind),
            Kind::Taken => match frame.decode()? {
                Taken::Stdout(bytes) => self.widen(Kind::Stdout, bytes),
                Taken::Stderr(bytes) => self.widen(Kind::Stderr, bytes),
                Taken::Stdin(_) => return Err(invalid("the host took its own input".into())),
            },
            Kind::Resize => {
                if let Some(terminal) = &self.terminal {
                    pty::resize(terminal, frame.decode()?)?;
                }
            }
            Kind::Signal => {
                let signal: Signal = frame.decode()?;
                self.child.signal_group(signal.number);
            }
            other => return Err(invalid(format!("{other:?} frame while a command runs"))),
        }
        Ok(())
    }

    /// The host has no use for an output: the command finds it closed. A terminal, which is its input too,
    /// hangs up.
    fn close(&mut self, kind: Kind) {
        self.outputs.retain(|output| output.kind != kind);
        if self.terminal.is_some() {
            self.child.signal_group(libc::SIGHUP);
        }
    }

    fn widen(&mut self, kind: Kind, bytes: u32) {
        for output in self.outputs.iter_mut().filter(|output| output.kind == kind) {
            output.window = output.window.saturating_add(bytes as usize).min(WINDOW as usize);
        }
    }

    fn forward(&mut self, kind: Kind) -> io::Result<()> {
        if self.link.has_unsent() {
            return Ok(());
        }
        let Some(output) = self.outputs.iter_mut().find(|output| output.kind == kind) else { return Ok(()) };
        let some = output.window.min(OUTPUT_CHUNK);
        if some == 0 {
            return Ok(());
        }
        match read(&output.fd, &mut self.buffer[..some]) {
            // A terminal whose other end is closed says EIO.
            Ok(0) | Err(Errno::IO) => self.outputs.retain(|output| output.kind != kind),
            Ok(n) => {
                output.window -= n;
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

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
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
    /// Bytes that may be sent before the host has taken more.
    window: usize,
}

impl Output {
    fn new(kind: Kind, fd: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&fd, true)?;
        Ok(Self { kind, fd, owed: None, window: WINDOW as usize })
    }
}

/// The command's input.
struct Input {
    /// Absent once it is closed, from either side.
    fd: Option<OwnedFd>,
    waiting: Vec<u8>,
    written: usize,
    /// Bytes that were taken since the host was told last.
    taken: u32,
    /// The host has nothing more to say.
    ending: bool,
    terminal: bool,
}

impl Input {
    fn new(fd: OwnedFd, terminal: bool) -> io::Result<Self> {
        ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Some(fd), waiting: Vec::new(), written: 0, taken: 0, ending: false, terminal })
    }

    /// Takes the payload of a `Stdin` frame. A terminal stays open at the end of input: it is told by
    /// the character that ends it.
    fn accept(&mut self, payload: &[u8]) -> io::Result<()> {
        if self.waiting.len() - self.written + payload.len() > WINDOW as usize {
            return Err(invalid("the host sent more input than its window has room for".into()));
        }
        match (payload.is_empty(), self.terminal) {
            (true, true) => self.waiting.push(END_OF_FILE),
            (true, false) => self.ending = true,
            (false, _) => self.waiting.extend_from_slice(payload),
        }
        if self.fd.is_none() {
            self.close();
        }
        Ok(())
    }

    /// The bytes taken, once they are worth a frame.
    fn take_untold(&mut self) -> Option<u32> {
        (self.taken >= WINDOW / 4).then(|| std::mem::take(&mut self.taken))
    }

    fn flush(&mut self) {
        while let Some(fd) = &self.fd
            && self.written < self.waiting.len()
        {
            match write(fd, &self.waiting[self.written..]) {
                Ok(n) => {
                    self.written += n;
                    self.taken = self.taken.saturating_add(n as u32);
                }
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
        self.taken = self.taken.saturating_add((self.waiting.len() - self.written) as u32);
        self.waiting.clear();
        self.written = 0;
    }

    /// The descriptor to wait for, where bytes wait.
    fn blocked(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().filter(|_| !self.waiting.is_empty()).map(AsFd::as_fd)
    }
}
