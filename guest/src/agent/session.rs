//! One stream from the host, from its `Hello` to its last frame.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use super::exec::Running;
use super::hello::Generation;
use super::link::Link;
use super::{Reaper, exec, power, pump, setup};
use crate::protocol::{Difference, Failure, Frame, Hello, Kind, MAX_PAYLOAD, Request};

/// Answers one stream. `generation` and `reaper` are the agent's, shared by all streams.
///
/// # Errors
/// Where the stream breaks or the host says what it must not; whatever the stream started has ended.
pub fn serve(mut stream: UnixStream, generation: &Generation, reaper: &Reaper) -> io::Result<()> {
    let hello: Hello = expect(&mut stream, Kind::Hello)?.decode()?;
    if let Err(e) = generation.renew(&hello) {
        return failed(format!("cannot renew clock and random numbers: {e}")).write(&mut stream);
    }
    let request: Request = expect(&mut stream, Kind::Request)?.decode()?;
    match request {
        Request::Ping => done().write(&mut stream),
        Request::Quiesce => power::quiesce().map_or_else(failed, |()| done()).write(&mut stream),
        Request::PowerOff => {
            // A host that is gone already wants it all the same.
            let _ = done().write(&mut stream);
            power::off()
        }
        Request::Exec(request) => attend(stream, exec::start(&request, exec::Root::Own, reaper)),
        Request::SetUp(request) => attend(stream, setup::start(&request, reaper)),
        Request::Difference(request) => send_difference(&mut stream, request),
    }
}

/// Moves what a command reads and writes, where it was started.
fn attend(mut stream: UnixStream, started: Result<Running, Failure>) -> io::Result<()> {
    match started {
        Ok(running) => pump::run(Link::new(stream)?, running),
        Err(failure) => Frame::json(Kind::Failed, &failure).write(&mut stream),
    }
}

fn send_difference(stream: &mut UnixStream, request: Difference) -> io::Result<()> {
    let mut output = io::BufWriter::with_capacity(256 << 10, Frames(stream));
    let sent =
        setup::difference(request, &mut output).and_then(|()| output.flush().map_err(|e| e.to_string()));
    drop(output.into_parts());
    sent.map_or_else(failed, |()| done()).write(stream)
}

/// Sends what is written as frames of output.
struct Frames<'a>(&'a mut UnixStream);

impl Write for Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = &bytes[..bytes.len().min(MAX_PAYLOAD as usize)];
        Frame { kind: Kind::Stdout, payload: some.to_vec() }.write(self.0)?;
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn expect(stream: &mut UnixStream, kind: Kind) -> io::Result<Frame> {
    let frame = Frame::read(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if frame.kind == kind {
        return Ok(frame);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{:?} frame where {kind:?} belongs", frame.kind)))
}

fn done() -> Frame {
    Frame { kind: Kind::Done, payload: Vec::new() }
}

fn failed(message: String) -> Frame {
    Frame::json(Kind::Failed, &Failure { message, exit_code: 0 })
}
