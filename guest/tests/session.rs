//! What an agent answers before and beside commands. (Commands: `exec.rs`.)

#![allow(clippy::unwrap_used, missing_docs)]

use smolpack_guest::agent::{Generation, Reaper, serve};
use smolpack_guest::client::{ClientError, ask};
use smolpack_guest::protocol::{Frame, Hello, Kind, Request};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn an_unknown_request_ends_the_stream() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let hello = Hello { generation: 1, realtime_ns: 0, entropy: String::new() };
    Frame::json(Kind::Hello, &hello).write(&mut ours).unwrap();
    Frame { kind: Kind::Request, payload: br#""dance""#.to_vec() }.write(&mut ours).unwrap();
    let error = serve(theirs, &Generation::renewed_by(|_| Ok(())), &Reaper::default()).unwrap_err();
    assert!(error.to_string().contains("unknown variant `dance`"), "{error}");
    assert_eq!(Frame::read(&mut ours).unwrap(), None);
}

#[test]
fn a_stream_without_a_hello_is_closed_unanswered() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let answering = std::thread::spawn(move || serve(theirs, &Generation::default(), &Reaper::default()));
    Frame::json(Kind::Request, &Request::Ping).write(&mut ours).unwrap();
    assert!(answering.join().unwrap().is_err());
    assert_eq!(Frame::read(&mut ours).unwrap(), None);
}

/// Streams to an agent of its own that counts its renewals; the first of them fails.
fn renewals_of(generations: &[u64]) -> (Vec<Result<(), ClientError>>, usize) {
    static RENEWALS: AtomicUsize = AtomicUsize::new(0);
    let renew = |_: &Hello| match RENEWALS.fetch_add(1, Ordering::SeqCst) {
        0 => Err(std::io::Error::other("no random device")),
        _ => Ok(()),
    };
    let generation = Generation::renewed_by(renew);
    let answer = |&number: &u64| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let hello = Hello { generation: number, realtime_ns: 0, entropy: String::new() };
        Frame::json(Kind::Hello, &hello).write(&mut ours).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(theirs, &generation, &Reaper::default()));
            ask(ours, &Request::Ping)
        })
    };
    (generations.iter().map(answer).collect(), RENEWALS.load(Ordering::SeqCst))
}

#[test]
fn a_machine_is_renewed_once_a_generation_and_answers_nothing_before() {
    let (answers, renewals) = renewals_of(&[1, 1, 1, 2, 2]);
    let Err(ClientError::Failed(failure)) = &answers[0] else { panic!("{:?}", answers[0]) };
    assert_eq!(failure.message, "cannot renew clock and random numbers: no random device");
    assert!(answers[1..].iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(renewals, 3, "the one that failed is tried again, and then one a generation");
}

#[test]
fn frames_of_a_hostile_peer_are_refused() {
    for (name, bytes) in [
        ("unknown kind", &[200, 0, 0, 0, 0][..]),
        ("too long", &[2, 0, 0, 0, 255]),
        ("cut short", &[2, 9, 0, 0, 0, 1]),
        ("cut head", &[2, 9]),
    ] {
        assert!(Frame::read(&mut &bytes[..]).is_err(), "{name}");
    }
    assert!(Frame::read(&mut &[][..]).unwrap().is_none());
}
