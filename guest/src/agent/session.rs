//! One stream from the host, from its `Hello` to its last frame.

use std::io;
use std::os::unix::net::UnixStream;

use super::hello::Generation;
use super::link::Link;
use super::{Reaper, exec, power, pump};
use crate::protocol::{Failure, Frame, Hello, Kind, Request};

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
        Request::Exec(request) => match exec::start(&request, reaper) {
            Ok(running) => pump::run(Link::new(stream)?, running),
            Err(failure) => Frame::json(Kind::Failed, &failure).write(&mut stream),
        },
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
