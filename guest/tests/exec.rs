//! Commands through a whole session: agent and client in this process, joined by a socket pair.

#![allow(clippy::unwrap_used)]

use smolpack_guest::agent::{Generation, Reaper, serve};
use smolpack_guest::client::{ClientError, Output, Session, run};
use smolpack_guest::protocol::{Exec, Exit, Failure, Frame, Hello, Kind, Request, Signal, WindowSize};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// A stream to the agent, after its `Hello`.
fn connect() -> UnixStream {
    static AGENT: OnceLock<(Generation, Reaper)> = OnceLock::new();
    let (generation, reaper) =
        AGENT.get_or_init(|| (Generation::renewed_by(|_| Ok(())), Reaper::start().unwrap()));
    let (mut host, guest) = UnixStream::pair().unwrap();
    // An agent that says nothing for so long never will.
    host.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    thread::spawn(move || serve(guest, generation, reaper));
    let hello = Hello { generation: 7, realtime_ns: 0, entropy: "5a".repeat(64) };
    Frame::json(Kind::Hello, &hello).write(&mut host).unwrap();
    host
}

/// A command as the user who runs the tests, who can become somebody else only as root.
fn argv(argv: &[&str]) -> Exec {
    let user = (!is_root()).then(|| rustix::process::geteuid().as_raw().to_string());
    Exec { argv: argv.iter().map(|word| (*word).into()).collect(), user, ..Exec::default() }
}

fn sh(script: &str) -> Exec {
    argv(&["sh", "-c", script])
}

fn output(command: &Exec) -> Output {
    run(connect(), command.clone()).unwrap()
}

fn text(command: &Exec) -> String {
    String::from_utf8(output(command).stdout).unwrap()
}

fn failed(command: &Exec) -> Failure {
    match run(connect(), command.clone()).unwrap_err() {
        ClientError::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// Runs a command that gets `input` from a thread of its own.
fn with_input(command: Exec, mut input: impl Read + Send + 'static) -> Output {
    let session = Session::exec(connect(), command).unwrap();
    let to = session.input();
    thread::spawn(move || {
        let mut buffer = vec![0; 100_000];
        while let Ok(n @ 1..) = input.read(&mut buffer) {
            if to.data(&buffer[..n]).is_err() {
                return;
            }
        }
        let _ = to.close();
    });
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let exit = session.wait(&mut stdout, &mut stderr).unwrap();
    Output { exit, stdout, stderr }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits for something another process does.
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn alive(pid: &str) -> bool {
    // A zombie of another parent's is over too.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn output_error_and_status_come_apart() {
    let expected = Output { exit: Exit::Code(7), stdout: b"out\n".to_vec(), stderr: b"err\n".to_vec() };
    assert_eq!(output(&sh("echo out; echo err >&2; exit 7")), expected);
}

#[test]
fn a_signal_that_ends_a_command_is_its_exit() {
    assert_eq!(output(&sh("kill -TERM $$")).exit, Exit::Signal(libc::SIGTERM));
    assert_eq!(output(&sh("kill -KILL $$")).exit, Exit::Signal(libc::SIGKILL));
}

#[test]
fn the_environment_is_what_was_asked_plus_path_and_home() {
    let command = Exec { env: vec!["B=two=2".into(), "A=1".into(), "B=last".into()], ..argv(&["env"]) };
    let text = text(&command);
    let mut variables: Vec<_> = text.lines().collect();
    variables.sort_unstable();
    assert_eq!(variables[..2], ["A=1", "B=last"]);
    assert!(variables[2].starts_with("HOME=/"), "{variables:?}");
    assert_eq!(variables[3..], ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
}

#[test]
fn a_variable_without_a_value_is_refused() {
    let failure = failed(&Exec { env: vec!["NOVALUE".into()], ..argv(&["env"]) });
    assert!(failure.message.contains("\"NOVALUE\""), "{failure:?}");
}

#[test]
fn the_working_folder_is_made_where_it_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let workdir = folder.path().join("a/b").to_str().unwrap().to_owned();
    assert_eq!(text(&Exec { workdir: Some(workdir.clone()), ..argv(&["pwd"]) }), format!("{workdir}\n"));
    assert_eq!(text(&argv(&["pwd"])), "/\n");

    let failure = failed(&Exec { workdir: Some("/dev/null/x".into()), ..argv(&["pwd"]) });
    assert!(failure.message.starts_with("working folder /dev/null/x: "), "{failure:?}");
}

#[test]
fn programs_are_looked_up_as_shells_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let script = |name: &str, text: &str, mode| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    script("plain", "#!/bin/sh\n", 0o644);
    script("lost", "#!/no/such/interpreter\n", 0o755);
    script("bare", "echo through sh\n", 0o755);
    script("good", "#!/bin/sh\necho \"$0\"\n", 0o755);
    let path = format!("PATH=/nowhere:{}", folder.path().display());
    let within = |program: &str| Exec {
        env: vec![path.clone().into()],
        workdir: Some(folder.path().to_str().unwrap().into()),
        ..argv(&[program])
    };
    for (program, code) in [
        ("absent", 127),
        ("./absent", 127),
        ("", 127),
        ("plain", 126),
        ("./plain", 126),
        ("lost", 127),
        ("/", 126),
    ] {
        let failure = failed(&within(program));
        assert_eq!(failure.exit_code, code, "{program:?}: {failure:?}");
        assert!(failure.message.contains(program), "{failure:?}");
    }
    assert_eq!(text(&within("good")), format!("{}\n", at("good").display()));
    assert_eq!(text(&within("./good")), "./good\n");
    assert_eq!(text(&within("bare")), "through sh\n", "a script need not say that it is one");
    assert_eq!(failed(&argv(&[])).message, "no command was given");
}

#[test]
fn a_command_runs_as_the_user_asked_for() {
    let command = Exec { user: Some("4321:8765".into()), ..sh("id -u; id -g; id -G; echo $HOME") };
    if is_root() {
        assert_eq!(text(&command), "4321\n8765\n8765\n/\n");
        // Debian's daemon is uid and gid 1 and has no other group.
        assert_eq!(text(&Exec { user: Some("daemon".into()), ..command }), "1\n1\n1\n/usr/sbin\n");
    } else {
        assert_eq!(failed(&command).exit_code, 126, "an ordinary user becomes nobody else");
    }
}

#[test]
fn an_unknown_user_is_refused() {
    let failure = failed(&Exec { user: Some("no-such-user".into()), ..argv(&["true"]) });
    assert_eq!(failure.message, "no user no-such-user in the machine's /etc/passwd");
}

#[test]
fn a_command_leads_its_own_session_with_default_signals() {
    // As under nohup, and for what a script starts with `&`.
    for number in [libc::SIGHUP, libc::SIGINT, libc::SIGPIPE, libc::SIGRTMIN()] {
        // SAFETY: sets a disposition that no test here needs.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
    let script = "set -- $(cut -d' ' -f1,5,6 /proc/$$/stat); [ $1 = $2 ] && [ $1 = $3 ] && echo leads
                  sed -n 's/^SigBlk:.//p; s/^SigIgn:.//p' /proc/self/status";
    let text = text(&sh(script));
    // The C library keeps two real-time signals for itself, and their dispositions from all.
    let mut lines = text.lines();
    assert_eq!((lines.next(), lines.next()), (Some("leads"), Some("0000000000000000")), "blocked");
    let ignored = u64::from_str_radix(lines.next().unwrap(), 16).unwrap();
    assert_eq!(ignored & !(0b11 << 31), 0, "ignored");
}

#[test]
fn a_command_inherits_no_descriptor_of_the_agent() {
    let listing = text(&sh("ls -l /proc/self/fd"));
    for kind in ["socket:", "pidfd", "ptmx"] {
        assert!(!listing.contains(kind), "{listing}");
    }
}

#[test]
fn megabytes_pass_through_a_command_unharmed() {
    let data: Vec<u8> = (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let output = with_input(argv(&["cat"]), io::Cursor::new(data.clone()));
    assert_eq!(output.exit, Exit::Code(0));
    assert!(output.stdout == data, "{} of {} bytes came back", output.stdout.len(), data.len());
    assert!(output.stderr.is_empty());
}

#[test]
fn both_outputs_can_be_large_at_once() {
    let script = "head -c 3000000 /dev/zero >&2 & head -c 5000000 /dev/zero; wait";
    let output = output(&sh(script));
    assert_eq!((output.stdout.len(), output.stderr.len()), (5_000_000, 3_000_000));
}

#[test]
fn a_command_may_end_before_it_has_read_its_input() {
    let output = with_input(sh("head -c 1 >/dev/null; echo over; exit 3"), io::repeat(0));
    assert_eq!((output.exit, output.stdout.as_slice()), (Exit::Code(3), &b"over\n"[..]));
}

#[test]
fn without_input_a_command_reads_its_end() {
    assert_eq!(text(&sh("cat; echo over")), "over\n");
}

/// An output that takes nothing: its reader has gone.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a command whose output nobody reads, while it gets all the input it takes.
fn unread(script: &str) -> (ClientError, Duration) {
    let began = Instant::now();
    let session = Session::exec(connect(), sh(script)).unwrap();
    let input = session.input();
    thread::spawn(move || while input.data(&vec![0; 100_000]).is_ok() {});
    (session.relay(&mut Closed, &mut io::sink()).unwrap_err(), began.elapsed())
}

#[test]
fn a_command_whose_output_is_not_read_finds_it_closed() {
    let folder = tempfile::tempdir().unwrap();
    let status = folder.path().join("status");
    // The shell lives on; what it starts is told as in a pipeline.
    let script = format!("yes; echo $? >{}", status.display());
    assert!(matches!(unread(&script).0, ClientError::Output { stderr: false, .. }));
    assert_eq!(fs::read_to_string(&status).unwrap(), "141\n");
}

#[test]
fn a_command_that_does_not_mind_a_closed_output_is_killed_after_a_grace() {
    let (error, took) = unread("trap '' PIPE; echo a; while :; do sleep 0.1; done");
    assert!(matches!(error, ClientError::Output { stderr: false, .. }), "{error:?}");
    assert!(took >= Duration::from_secs(5), "{took:?}");
}

/// Reads what waits on standard output once the last word has come on standard error.
struct Errors<'a>(usize, &'a mut Option<io::PipeReader>);

impl Write for Errors<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        if self.0 == 5_000_005
            && let Some(mut stdout) = self.1.take()
        {
            thread::spawn(move || io::copy(&mut stdout, &mut io::sink()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_takes_nothing_holds_up_neither_the_other_nor_the_input() {
    // A pipe that is not read until everything else is over.
    let (read_end, mut stdout) = io::pipe().unwrap();
    let mut read_end = Some(read_end);
    let session =
        Session::exec(connect(), sh("yes | head -c 3000000 & head -c 5000000 >&2; echo over >&2; wait"))
            .unwrap();
    let input = session.input();
    thread::spawn(move || while input.data(&vec![b'x'; 100_000]).is_ok() {});
    let mut errors = Errors(0, &mut read_end);
    assert_eq!(session.relay(&mut stdout, &mut errors).unwrap(), Exit::Code(0));
    assert_eq!(errors.0, 5_000_005);
}

#[test]
fn arguments_and_variables_pass_as_they_are() {
    let odd = b"a\xff\xfe\n\"\\".to_vec();
    let mut command = sh("printf %s \"$1\"; printf %s \"$ODD\" >&2");
    command.argv.extend(["sh".into(), odd.clone().into()]);
    command.env.push([b"ODD=".as_slice(), &odd].concat().into());
    let expected = Output { exit: Exit::Code(0), stdout: odd.clone(), stderr: odd };
    assert_eq!(output(&command), expected);
}

#[test]
fn arguments_that_are_too_long_are_an_error_of_either_side() {
    let command = |words: usize| {
        let mut command = sh("echo $#");
        command.argv.extend(std::iter::repeat_n("x".repeat(100_000).into(), words));
        command
    };
    assert_eq!(text(&command(15)), "14\n");
    let failure = failed(&command(30));
    assert!(failure.exit_code == 126 && failure.message.contains("too long"), "{failure:?}");
    let refused = Session::exec(connect(), command(50)).unwrap_err();
    assert!(matches!(refused, ClientError::TooLong(_)), "{refused:?}");
}

/// Starts a command and hands out its stream, to act as a host that does as it likes.
fn start(command: &Exec) -> UnixStream {
    let mut stream = connect();
    Frame::json(Kind::Request, &Request::Exec(command.clone())).write(&mut stream).unwrap();
    stream
}

fn read_line(stream: &mut UnixStream) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        let frame = Frame::read(stream).unwrap().unwrap();
        assert_eq!(frame.kind, Kind::Stdout, "{}", String::from_utf8_lossy(&frame.payload));
        line.push_str(&String::from_utf8(frame.payload).unwrap());
    }
    line
}

fn read_exit(stream: &mut UnixStream) -> Exit {
    loop {
        let frame = Frame::read(stream).unwrap().unwrap();
        if frame.kind == Kind::Exit {
            return frame.decode().unwrap();
        }
    }
}

#[test]
fn signals_reach_the_whole_process_group() {
    let mut stream = start(&sh("sleep 1000 & echo $!; wait"));
    let sleeper = read_line(&mut stream);
    Frame::json(Kind::Signal, &Signal { number: libc::SIGTERM }).write(&mut stream).unwrap();
    assert_eq!(read_exit(&mut stream), Exit::Signal(libc::SIGTERM));
    eventually("the child was not signalled", || !alive(sleeper.trim()));
}

#[test]
fn a_number_that_is_no_signal_changes_nothing() {
    let mut stream = start(&sh("read line; exit 4"));
    for number in [0, -1, 65, 1 << 30] {
        Frame::json(Kind::Signal, &Signal { number }).write(&mut stream).unwrap();
    }
    Frame { kind: Kind::Stdin, payload: b"go\n".to_vec() }.write(&mut stream).unwrap();
    assert_eq!(read_exit(&mut stream), Exit::Code(4));
}

#[test]
fn signals_pass_a_host_that_does_not_read() {
    let mut stream = start(&argv(&["yes"]));
    thread::sleep(Duration::from_millis(200)); // until pipe and stream are full
    Frame::json(Kind::Signal, &Signal { number: libc::SIGINT }).write(&mut stream).unwrap();
    assert_eq!(read_exit(&mut stream), Exit::Signal(libc::SIGINT));
}

#[test]
fn signals_pass_input_that_is_not_read() {
    let mut stream = start(&argv(&["sleep", "1000"]));
    for _ in 0..9 {
        Frame { kind: Kind::Stdin, payload: vec![0; 100_000] }.write(&mut stream).unwrap();
    }
    Frame::json(Kind::Signal, &Signal { number: libc::SIGINT }).write(&mut stream).unwrap();
    assert_eq!(read_exit(&mut stream), Exit::Signal(libc::SIGINT));
}

#[test]
fn a_vanished_host_ends_the_command_and_its_children() {
    let mut stream = start(&sh("sleep 1000 & echo $$ $!; wait"));
    let line = read_line(&mut stream);
    drop(stream);
    for pid in line.split_whitespace() {
        eventually("a process outlived its host", || !alive(pid));
    }
}

#[test]
fn a_vanished_host_ends_a_command_that_ignores_hangups() {
    let mut stream = start(&sh("trap '' HUP; echo $$; while :; do sleep 0.05; done"));
    let pid = read_line(&mut stream);
    drop(stream);
    eventually("the command outlived its host", || !alive(pid.trim()));
}

#[test]
fn a_vanished_host_is_noticed_behind_unread_input() {
    let mut stream = start(&sh("echo $$; sleep 1000"));
    let pid = read_line(&mut stream);
    stream.set_nonblocking(true).unwrap();
    let frame = Frame { kind: Kind::Stdin, payload: vec![0; 200_000] };
    while frame.write(&mut stream).is_ok() {}
    drop(stream);
    eventually("the command outlived its host", || !alive(pid.trim()));
}

#[test]
fn a_child_left_behind_does_not_hold_up_the_exit() {
    let begin = Instant::now();
    let output = output(&sh("sleep 1000 & echo $!; exit 5"));
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    assert_eq!(output.exit, Exit::Code(5));
    let pid = String::from_utf8(output.stdout).unwrap();
    assert!(alive(pid.trim()), "a service that a command starts stays");
    // SAFETY: kill has no memory safety requirements.
    unsafe { libc::kill(pid.trim().parse().unwrap(), libc::SIGKILL) };
}

#[test]
fn a_child_that_writes_forever_does_not_hold_up_the_exit() {
    let output = output(&sh("yes & echo $!; exit 5"));
    assert_eq!(output.exit, Exit::Code(5));
}

#[test]
fn a_slow_host_gets_all_that_was_written_before_the_exit() {
    let mut stream = start(&sh("sleep 5 & head -c 300000 /dev/zero; exit 0"));
    // Longer than leftovers have; the bytes wait in the pipe and in the stream.
    thread::sleep(Duration::from_millis(2500));
    let mut received = 0;
    loop {
        let frame = Frame::read(&mut stream).unwrap().unwrap();
        match frame.kind {
            Kind::Stdout => received += frame.payload.len(),
            kind => break assert_eq!(kind, Kind::Exit),
        }
    }
    assert_eq!(received, 300_000);
}

#[test]
fn output_of_a_process_that_ends_just_after_the_command_is_kept() {
    assert_eq!(text(&sh("(sleep 0.05; echo late) & exit 0")), "late\n");
}

#[test]
fn many_commands_at_once_get_their_own_statuses() {
    let threads: Vec<_> = (0..40_u8)
        .map(|code| {
            thread::spawn(move || {
                for _ in 0..5 {
                    let output = output(&sh(&format!("echo {code}; exit {code}")));
                    assert_eq!(output.exit, Exit::Code(code));
                    assert_eq!(output.stdout, format!("{code}\n").as_bytes());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

const WINDOW: WindowSize = WindowSize { rows: 33, columns: 101 };

fn on_terminal(script: &str) -> Exec {
    Exec { terminal: Some(WINDOW), term: Some("vt100".into()), ..sh(script) }
}

#[test]
fn a_terminal_is_the_commands_own() {
    let script = "stty size; tty; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo >/dev/tty yes";
    let text = text(&on_terminal(script));
    let lines: Vec<_> = text.split("\r\n").collect();
    assert_eq!(lines[0], "33 101");
    assert!(lines[1].starts_with("/dev/pts/"), "{lines:?}");
    assert_eq!(lines[2..], ["vt100", "yes", ""]);
}

#[test]
fn a_terminal_belongs_to_its_user() {
    let command = Exec { user: Some("4321:8765".into()), ..on_terminal("stat -L -c '%u %a' /dev/stdin") };
    if is_root() {
        assert_eq!(text(&command), "4321 620\r\n");
    }
}

#[test]
fn a_resize_reaches_the_command() {
    let mut stream =
        start(&on_terminal("trap 'stty size; exit 9' WINCH; echo ready; while :; do sleep 0.05; done"));
    assert_eq!(read_line(&mut stream), "ready\r\n");
    Frame::json(Kind::Resize, &WindowSize { rows: 5, columns: 6 }).write(&mut stream).unwrap();
    assert_eq!(read_line(&mut stream), "5 6\r\n");
    assert_eq!(read_exit(&mut stream), Exit::Code(9));
}

#[test]
fn keys_are_read_and_the_interrupt_key_is_a_signal() {
    let mut stream = start(&on_terminal(
        "stty -echo; echo ready; read word; echo got $word; while :; do sleep 0.05; done",
    ));
    assert_eq!(read_line(&mut stream), "ready\r\n");
    let keys = |text: &[u8]| Frame { kind: Kind::Stdin, payload: text.to_vec() };
    keys(b"word\r").write(&mut stream).unwrap();
    assert_eq!(read_line(&mut stream), "got word\r\n");
    keys(b"\x03").write(&mut stream).unwrap();
    assert_eq!(read_exit(&mut stream), Exit::Signal(libc::SIGINT));
}

#[test]
fn the_end_of_input_on_a_terminal_is_typed() {
    let text = text(&on_terminal("stty -echo; cat; echo over"));
    assert!(text.ends_with("over\r\n"), "{text:?}");
}

#[test]
fn a_terminal_shows_all_output_of_a_command_that_ends() {
    for _ in 0..20 {
        assert_eq!(output(&on_terminal("seq 2000")).stdout.len(), 2000 * 6 - 1107);
    }
}

#[test]
fn orphans_are_reaped() {
    // As PID 1 is; an orphan of this process' commands comes to it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let pid = text(&sh("(sleep 0.3 >/dev/null 2>&1 & echo $!)"));
    let stat = format!("/proc/{}", pid.trim());
    assert!(Path::new(&stat).exists());
    eventually("the orphan is a zombie", || !Path::new(&stat).exists());
}

#[test]
fn a_command_that_cannot_start_leaves_nothing_behind() {
    let mut stream = start(&argv(&["/etc/passwd"]));
    let frame = Frame::read(&mut stream).unwrap().unwrap();
    assert_eq!(frame.kind, Kind::Failed);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the stream is closed");
}
