//! Agent and client, joined by a socket pair instead of a machine.

#![allow(clippy::unwrap_used, missing_docs)]

use smolpack_guest::agent::{Generation, Reaper, serve};
use smolpack_guest::client::{ClientError, Session, ask};
use smolpack_guest::protocol::{Exec, Exit, Frame, Hello, Kind, Request, WindowSize};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A stream to an agent, after its `Hello`.
fn connect() -> UnixStream {
    static AGENT: OnceLock<(Generation, Reaper)> = OnceLock::new();
    let (generation, reaper) =
        AGENT.get_or_init(|| (Generation::renewed_by(|_| Ok(())), Reaper::start().unwrap()));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || serve(theirs, generation, reaper));
    let hello = Hello { generation: 7, realtime_ns: 0, entropy: "5a".repeat(64) };
    Frame::json(Kind::Hello, &hello).write(&mut ours).unwrap();
    ours
}

fn shell(script: &str) -> Exec {
    Exec { argv: vec!["sh".into(), "-c".into(), script.into()], ..Exec::default() }
}

fn run(command: Exec) -> (Result<Exit, ClientError>, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let session = Session::exec(connect(), command).unwrap();
    session.input().close().unwrap();
    let exit = session.wait(&mut out, &mut err);
    (exit, String::from_utf8_lossy(&out).into(), String::from_utf8_lossy(&err).into())
}

/// Whether a process runs that was started with just these words. (The agent under test reaps every
/// child of this process, so none can be started beside it.)
fn alive(command: &str) -> bool {
    let wanted = command.replace(' ', "\0") + "\0";
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .any(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes()))
}

fn wait_until_gone(pattern: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while alive(pattern) {
        assert!(Instant::now() < deadline, "{pattern} is still alive");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn streams_and_status_arrive_apart() {
    let (exit, out, err) = run(shell("echo out; echo err >&2; exit 3"));
    assert_eq!((exit.unwrap(), out.as_str(), err.as_str()), (Exit::Code(3), "out\n", "err\n"));
}

#[test]
fn a_signal_is_told() {
    assert_eq!(run(shell("kill -9 $$")).0.unwrap(), Exit::Signal(9));
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_run_126() {
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let command = Exec { argv: vec![program.into()], ..Exec::default() };
        let Err(ClientError::Failed(failure)) = run(command).0 else { panic!("{program} ran") };
        assert_eq!(failure.exit_code, code);
        assert!(failure.message.contains(program), "{}", failure.message);
    }
}

#[test]
fn environment_folder_and_user_are_those_asked_for() {
    let command = Exec {
        env: vec!["A=b=c".into()],
        workdir: Some("/usr".into()),
        user: Some("65534:65533".into()),
        ..shell("echo $A; pwd; id -u; id -g; id -G; env | cut -d= -f1 | sort | tr '\\n' ' '")
    };
    let (_, out, _) = run(command);
    assert_eq!(out, "b=c\n/usr\n65534\n65533\n65533\nA HOME PATH PWD ");
}

#[test]
fn input_reaches_the_command_whole() {
    let session = Session::exec(connect(), shell("sha256sum")).unwrap();
    let input = session.input();
    let data = vec![7; 5 << 20];
    let feeding = std::thread::spawn(move || {
        input.data(&data).unwrap();
        input.close().unwrap();
    });
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(session.wait(&mut out, &mut err).unwrap(), Exit::Code(0));
    feeding.join().unwrap();
    let (_, expected, _) = run(shell("head -c 5242880 /dev/zero | tr '\\0' '\\7' | sha256sum"));
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn large_output_arrives_whole() {
    let (exit, out, _) = run(shell("head -c 8000000 /dev/zero"));
    assert_eq!((exit.unwrap(), out.len()), (Exit::Code(0), 8_000_000));
}

#[test]
fn a_child_that_holds_the_output_open_does_not_hold_up_the_end() {
    let started = Instant::now();
    let (exit, out, _) = run(shell("sleep 6123 & echo done"));
    assert_eq!((exit.unwrap(), out.as_str()), (Exit::Code(0), "done\n"));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(alive("sleep 6123"), "a background child lives on");
    assert_eq!(run(shell("pkill -f '^sleep 6123$'")).0.unwrap(), Exit::Code(0));
    wait_until_gone("sleep 6123");
}

#[test]
fn a_host_that_vanishes_takes_the_command_with_it() {
    let session = Session::exec(connect(), shell("sleep 6124; true")).unwrap();
    while !alive("sleep 6124") {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(session);
    wait_until_gone("sleep 6124");
}

#[test]
fn signals_reach_the_whole_group() {
    let session =
        Session::exec(connect(), shell("trap 'echo got; exit 4' TERM; echo up; sleep 6125 & wait")).unwrap();
    let input = session.input();
    let signalling = std::thread::spawn(move || {
        while !alive("sleep 6125") {
            std::thread::sleep(Duration::from_millis(10));
        }
        input.signal(15).unwrap();
    });
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(session.wait(&mut out, &mut err).unwrap(), Exit::Code(4));
    signalling.join().unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "up\ngot\n");
    wait_until_gone("sleep 6125");
}

#[test]
fn a_terminal_has_its_size_and_one_stream() {
    let command = Exec {
        terminal: Some(WindowSize { rows: 33, columns: 77 }),
        term: Some("dumb".into()),
        ..shell("test -t 0 && test -t 2 && stty size && tty >/dev/null && echo $TERM >&2; exit 6")
    };
    let session = Session::exec(connect(), command).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(session.wait(&mut out, &mut err).unwrap(), Exit::Code(6));
    assert_eq!((String::from_utf8(out).unwrap().as_str(), err.len()), ("33 77\r\ndumb\r\n", 0));
}

#[test]
fn a_ping_is_answered() {
    ask(connect(), &Request::Ping).unwrap();
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
