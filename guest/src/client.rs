//! The host's side of one stream to the agent.
//!
//! The runner has written `Hello` already. [`Session::exec`] streams a command; [`ask`] is for requests
//! that are answered once. Nothing here touches a terminal: callers pass bytes, sizes and signals.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::protocol::{Difference, Exec, Exit, Failure, Frame, Kind, Request, SetUp, Signal, WindowSize};

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The stream broke: the machine is gone, or was never there.
    Stream(io::Error),
    /// The agent could not do it.
    Failed(Failure),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(e) => write!(f, "the stream to the machine's agent broke: {e}"),
            Self::Failed(failure) => f.write_str(&failure.message),
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
pub struct Input(Arc<Mutex<UnixStream>>);

impl Input {
    /// Bytes for its standard input.
    ///
    /// # Errors
    /// Where the stream is gone.
    pub fn data(&self, bytes: &[u8]) -> io::Result<()> {
        // An empty frame would close it.
        bytes
            .chunks(64 << 10)
            .try_for_each(|some| self.send(&Frame { kind: Kind::Stdin, payload: some.to_vec() }))
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
        frame.write(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Session {
    /// Asks for a command.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub fn exec(stream: UnixStream, command: Exec) -> io::Result<Self> {
        Self::start(stream, &Request::Exec(command))
    }

    /// Asks for a set-up command.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub fn set_up(stream: UnixStream, command: SetUp) -> io::Result<Self> {
        Self::start(stream, &Request::SetUp(command))
    }

    fn start(mut stream: UnixStream, request: &Request) -> io::Result<Self> {
        Frame::json(Kind::Request, request).write(&mut stream)?;
        let input = Input(Arc::new(Mutex::new(stream.try_clone()?)));
        Ok(Self { stream, input })
    }

    /// The way to its input.
    #[must_use]
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Passes its output on until it ends. Output that can no longer be written is dropped, as a
    /// closed pipe drops it, and the command is told by SIGPIPE.
    ///
    /// # Errors
    /// Where the stream breaks, or the command could not be started.
    pub fn wait(mut self, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<Exit, ClientError> {
        loop {
            let frame = Frame::read(&mut self.stream)?.ok_or_else(closed)?;
            match frame.kind {
                Kind::Stdout => self.pass(&frame.payload, stdout),
                Kind::Stderr => self.pass(&frame.payload, stderr),
                Kind::Exit => return Ok(frame.decode()?),
                Kind::Failed => return Err(ClientError::Failed(frame.decode()?)),
                other => return Err(unexpected(other).into()),
            }
        }
    }

    fn pass(&self, bytes: &[u8], to: &mut dyn Write) {
        const SIGPIPE: i32 = 13;
        if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
            // A command that has ended meanwhile needs no telling; its last frames are still to be read.
            let _ = self.input.signal(SIGPIPE);
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it was closed before the answer")
}

fn unexpected(kind: Kind) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{kind:?} frame from the agent"))
}
