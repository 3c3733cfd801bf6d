//! The host's side of one stream to the agent.
//!
//! The runner has written `Hello` already. [`Session`] streams a command; [`ask`] is for requests
//! that are answered once. Nothing here touches a terminal: callers pass bytes, sizes and signals.

mod relay;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::{
    Difference, Exec, Exit, Failure, Frame, Kind, Request, SetUp, Signal, Taken, WINDOW, WindowSize,
};

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The stream broke: the machine is gone, or was never there.
    Stream(io::Error),
    /// The agent could not do it.
    Failed(Failure),
    /// The request is longer than the agent takes.
    TooLong(io::Error),
    /// What the command wrote cannot be written here.
    Output {
        /// To standard error, not to standard output.
        stderr: bool,
        /// Why.
        source: io::Error,
    },
    /// No thread can be had.
    Thread(io::Error),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(e) => write!(f, "the stream to the machine's agent broke: {e}"),
            Self::Failed(failure) => f.write_str(&failure.message),
            Self::TooLong(e) => write!(f, "the command with its arguments and variables is too long: {e}"),
            Self::Output { stderr: false, source } => write!(f, "cannot write to standard output: {source}"),
            Self::Output { stderr: true, source } => write!(f, "cannot write to standard error: {source}"),
            Self::Thread(e) => write!(f, "cannot start a thread: {e}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(e: io::Error) -> Self {
        Self::Stream(e)
    }
}

/// Sends a request that is answered once, and waits for the answer.
///
/// # Errors
/// Where the stream breaks, or the agent says why not.
pub fn ask(mut stream: UnixStream, request: &Request) -> Result<(), ClientError> {
    Frame::json(Kind::Request, request).write(&mut stream)?;
    let answer = Frame::read(&mut stream)?.ok_or_else(closed)?;
    match answer.kind {
        Kind::Done => Ok(()),
        Kind::Failed => Err(ClientError::Failed(answer.decode()?)),
        other => Err(unexpected(other).into()),
    }
}

/// Receives what a set-up command changed: the bytes of a tar.
///
/// # Errors
/// Where the stream breaks, the agent says why not, or `output` cannot be written.
pub fn difference(
    mut stream: UnixStream,
    request: Difference,
    output: &mut dyn Write,
) -> Result<(), ClientError> {
    Frame::json(Kind::Request, &Request::Difference(request)).write(&mut stream)?;
    loop {
        let frame = Frame::read(&mut stream)?.ok_or_else(closed)?;
        match frame.kind {
            Kind::Stdout => output.write_all(&frame.payload)?,
            Kind::Done => return Ok(()),
            Kind::Failed => return Err(ClientError::Failed(frame.decode()?)),
            other => return Err(unexpected(other).into()),
        }
    }
}

/// What a command left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// Runs a command without input and keeps what it prints.
///
/// # Errors
/// As [`Session::wait`]. A command that ran and failed is no error.
pub fn run(stream: UnixStream, command: Exec) -> Result<Output, ClientError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let session = Session::exec(stream, command)?;
    // A machine that is gone already shows when its output is read.
    let _ = session.input.close();
    let exit = session.wait(&mut stdout, &mut stderr)?;
    Ok(Output { exit, stdout, stderr })
}

/// A command in the machine.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    input: Input,
}

/// What is sent to a command; clones send to the same one.
#[derive(Clone, Debug)]
pub struct Input(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    stream: Mutex<UnixStream>,
    /// Bytes of input that may be sent; none any more once the command has ended.
    window: Mutex<Option<usize>>,
    wider: Condvar,
    /// Bytes of standard output and of standard error that were taken since the agent was told last.
    taken: Mutex<[u32; 2]>,
}

impl Input {
    /// Bytes for its standard input. Waits while the command has not taken what was sent before.
    ///
    /// # Errors
    /// Where the stream is gone or the command has ended.
    pub fn data(&self, mut bytes: &[u8]) -> io::Result<()> {
        // An empty frame would close it.
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(self.reserve(bytes.len().min(64 << 10))?);
            self.send(&Frame { kind: Kind::Stdin, payload: some.to_vec() })?;
            bytes = rest;
        }
        Ok(())
    }

    /// The end of its standard input.
    ///
    /// # Errors
    /// Where the stream is gone.
    pub fn close(&self) -> io::Result<()> {
        self.send(&Frame { kind: Kind::Stdin, payload: Vec::new() })
    }

    /// A new size of its terminal.
    ///
    /// # Errors
    /// Where the stream is gone.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        self.send(&Frame::json(Kind::Resize, &size))
    }

    /// A signal for its process group.
    ///
    /// # Errors
    /// Where the stream is gone.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        self.send(&Frame::json(Kind::Signal, &Signal { number }))
    }

    fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *lock(&self.0.stream))
    }

    /// Waits until some of that many bytes may be sent, and says how many.
    fn reserve(&self, wanted: usize) -> io::Result<usize> {
        let mut window = lock(&self.0.window);
        loop {
            match &mut *window {
                None => return Err(io::ErrorKind::BrokenPipe.into()),
                Some(0) => window = self.0.wider.wait(window).unwrap_or_else(PoisonError::into_inner),
                Some(window) => {
                    let some = wanted.min(*window);
                    *window -= some;
                    return Ok(some);
                }
            }
        }
    }

    /// The command has taken that many bytes of its input; or it has ended.
    fn widen(&self, taken: Option<u32>) {
        let mut window = lock(&self.0.window);
        *window = (*window).zip(taken).map(|(window, taken)| (window + taken as usize).min(WINDOW as usize));
        self.0.wider.notify_all();
    }

    /// Tells the agent, now and then, how much of an output was taken.
    fn took(&self, kind: Kind, bytes: usize) {
        let mut taken = lock(&self.0.taken);
        let sum = &mut taken[usize::from(kind == Kind::Stderr)];
        *sum = sum.saturating_add(bytes as u32);
        if *sum < WINDOW / 4 {
            return;
        }
        let sum = std::mem::take(sum);
        let taken = if kind == Kind::Stderr { Taken::Stderr(sum) } else { Taken::Stdout(sum) };
        // The agent is gone once it has sent everything; a stream that broke shows where it is read.
        let _ = self.send(&Frame::json(Kind::Taken, &taken));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Asks for a command.
    ///
    /// # Errors
    /// Where it is too long, or the stream breaks.
    pub fn exec(stream: UnixStream, command: Exec) -> Result<Self, ClientError> {
        Self::start(stream, &Request::Exec(command))
    }

    /// Asks for a set-up command.
    ///
    /// # Errors
    /// Where it is too long, or the stream breaks.
    pub fn set_up(stream: UnixStream, command: SetUp) -> Result<Self, ClientError> {
        Self::start(stream, &Request::SetUp(command))
    }

    fn start(mut stream: UnixStream, request: &Request) -> Result<Self, ClientError> {
        Frame::json(Kind::Request, request).write(&mut stream).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidInput => ClientError::TooLong(e),
            _ => ClientError::Stream(e),
        })?;
        let sender = Sender {
            stream: Mutex::new(stream.try_clone()?),
            window: Mutex::new(Some(WINDOW as usize)),
            wider: Condvar::new(),
            taken: Mutex::default(),
        };
        Ok(Self { stream, input: Input(Arc::new(sender)) })
    }

    /// The way to its input.
    #[must_use]
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Passes its output on until it ends, to what is always ready to be written.
    ///
    /// # Errors
    /// Where the stream breaks, the command could not be started, or its output cannot be written; the
    /// command is ended then.
    pub fn wait(self, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<Exit, ClientError> {
        let input = self.input();
        self.receive(|kind, bytes| {
            let stderr_meant = kind == Kind::Stderr;
            let to: &mut dyn Write = if stderr_meant { &mut *stderr } else { &mut *stdout };
            let written = to.write_all(&bytes).and_then(|()| to.flush());
            written.map_err(|source| ClientError::Output { stderr: stderr_meant, source })?;
            input.took(kind, bytes.len());
            Ok(())
        })
    }

    /// Hands each piece of output to `pass` until the command ends.
    fn receive(
        mut self,
        mut pass: impl FnMut(Kind, Vec<u8>) -> Result<(), ClientError>,
    ) -> Result<Exit, ClientError> {
        loop {
            let frame = Frame::read(&mut self.stream)?.ok_or_else(closed)?;
            match frame.kind {
                Kind::Stdout | Kind::Stderr => pass(frame.kind, frame.payload)?,
                Kind::Taken => match frame.decode()? {
                    Taken::Stdin(bytes) => self.input.widen(Some(bytes)),
                    Taken::Stdout(_) | Taken::Stderr(_) => return Err(unexpected(frame.kind).into()),
                },
                Kind::Exit => return Ok(frame.decode()?),
                Kind::Failed => return Err(ClientError::Failed(frame.decode()?)),
                other => return Err(unexpected(other).into()),
            }
        }
    }
}

impl Drop for Session {
    /// Nobody waits to send input any more.
    fn drop(&mut self) {
        self.input.widen(None);
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it was closed before the answer")
}

fn unexpected(kind: Kind) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{kind:?} frame from the agent"))
}
