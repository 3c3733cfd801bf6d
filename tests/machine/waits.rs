//! Every wait ends and every error is told, whatever stands at the other end.

use crate::support::{boot, hello, scratch, smolpack, text, wait_for_no_runner};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What "within a second" is allowed in an emulated host that does other things as well.
const SOON: Duration = Duration::from_secs(3);

/// `smolpack boot -q ARGS` with nothing at its ends yet.
fn boots(args: &[&str]) -> Command {
    let mut command = smolpack();
    command.args(["boot", "-q"]).args(args).stdin(Stdio::null());
    command
}

/// Waits for a process, but no longer than that.
fn ended(mut child: Child, limit: Duration, what: &str) -> Output {
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{what}: not ended after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A boot whose standard output is a full pipe.
fn with_a_full_pipe() -> Child {
    let mut child = boots(&[hello(), "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    child
}

#[test]
fn signals_end_a_boot_within_a_second_whatever_it_waits_for() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let child = with_a_full_pipe();
        send(&child, signal);
        assert_eq!(ended(child, SOON, "a full pipe").status.code(), Some(status));
    }
    // At every moment between its start and the command.
    for millis in [20, 60, 120, 200, 300, 500] {
        let child = boots(&[hello(), "--", "sleep", "1000"]).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        send(&child, Signal::TERM);
        // Before the handler is there, the signal itself ends it.
        let status = ended(child, SOON, &format!("started {millis} ms ago")).status.code();
        assert!(matches!(status, None | Some(143)), "{status:?}");
    }
    // Standard input that nobody writes.
    let mut child =
        boots(&["-i", hello(), "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    send(&child, Signal::TERM);
    assert_eq!(ended(child, SOON, "input").status.code(), Some(143));
    wait_for_no_runner();
}

#[test]
fn a_signal_ignored_at_the_start_stays_ignored() {
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_smolpack"), "boot", "-q", hello()])
        .args(["--", "sh", "-c", "echo up; sleep 1; kill -HUP $$; echo deaf"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    send(&child, Signal::HUP);
    let out = ended(child, Duration::from_secs(30), "nohup");
    // The command inside is not deaf.
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(129), String::new()));
}

#[test]
fn paths_that_lead_to_no_file_are_refused_at_once() {
    let pipe = scratch().join("pipe");
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let socket = scratch().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (pipe, socket) = (pipe.to_str().unwrap(), socket.to_str().unwrap());
    for (args, said) in [
        (vec![pipe, "--", "true"], "a named pipe"),
        (vec!["/dev/zero", "--", "true"], "a device"),
        (vec![socket, "--", "true"], socket),
        (vec!["--console", pipe, hello(), "--", "true"], "a named pipe"),
        (vec!["--console", "/tmp", hello(), "--", "true"], "/tmp"),
        (vec!["--console", socket, hello(), "--", "true"], socket),
    ] {
        let child = boots(&args).stderr(Stdio::piped()).spawn().unwrap();
        let out = ended(child, SOON, &format!("{args:?}"));
        assert_eq!(out.status.code(), Some(125), "{args:?}");
        assert!(text(&out.stderr).contains(said), "{args:?}: {}", text(&out.stderr));
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_with_its_reason() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for script in ["echo hi", "yes", "yes; sleep 1000"] {
        let mut command = boots(&[hello(), "--", "sh", "-c", script]);
        let child = command.stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
        let out = ended(child, Duration::from_secs(20), script);
        assert_eq!(out.status.code(), Some(125), "{script}");
        let said = text(&out.stderr);
        assert!(said.contains("standard output: No space left on device"), "{script}: {said}");
    }
    let child = boots(&[hello(), "--", "sh", "-c", "echo hi >&2"]).stderr(full()).spawn().unwrap();
    assert_eq!(ended(child, SOON, "stderr").status.code(), Some(125));

    let out = boot(&["--console", "/dev/full", hello(), "--", "sh", "-c", "echo hi > /dev/console"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("console's log: No space left"), "{}", text(&out.stderr));
    let log = scratch().join("console.log");
    let log = log.to_str().unwrap();
    let out = boot(&["--console", log, hello(), "--", "sh", "-c", "echo said > /dev/console"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(std::fs::read_to_string(log).unwrap().ends_with("said\r\n"));
}

#[test]
fn a_reader_that_goes_away_ends_the_command_in_the_machine() {
    // Input that nobody takes while output that nobody reads waits: neither may wait for the other.
    let script = "head -c 20000000 /dev/zero | \"$@\" | head -n 1; exit ${PIPESTATUS[1]}";
    let child = Command::new("bash")
        .args(["-c", script, "bash", env!("CARGO_BIN_EXE_smolpack"), "boot", "-qi", hello(), "--", "yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = ended(child, Duration::from_secs(20), "yes | head");
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(141), "y\n".into()));

    let mut child = boots(&[hello(), "--", "sh", "-c", "trap '' PIPE; while :; do echo x; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(ended(child, Duration::from_secs(20), "a command deaf to PIPE").status.code(), Some(141));
}

#[test]
fn a_stream_that_breaks_while_the_machine_lives_ends_the_boot() {
    let unbind = "cd /sys/bus/virtio/drivers/vmw_vsock_virtio_transport && echo virtio1 > unbind; sleep 1000";
    let mut command = boots(&[hello(), "--", "sh", "-c", unbind]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let out = ended(child, Duration::from_secs(20), "an unbound driver");
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("its agent is gone"), "{}", text(&out.stderr));
}

#[test]
fn every_limit_that_is_too_low_is_an_error_that_names_it() {
    let program = scratch().join("smolpack");
    std::fs::copy(env!("CARGO_BIN_EXE_smolpack"), &program).unwrap();
    let for_all = |path: &Path| std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    let machine = scratch().join("limits.smolmachine");
    std::fs::copy(hello(), &machine).unwrap();
    [scratch(), &program, &machine].into_iter().for_each(for_all);
    // Every number of files about that which is enough: each of the last ones is opened in its own way.
    let files: Vec<u64> = [4, 6, 8, 10, 12, 14, 16, 18].into_iter().chain(20..=36).chain([64]).collect();
    let sweeps: [(&str, &[u64], &str); 4] = [
        ("-n", &files, "open files"),
        ("-f", &[0, 1, 100, 9000], "bytes in a file"),
        ("-v", &[60_000, 120_000, 180_000, 240_000, 300_000], "bytes of address space"),
        ("-u", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12], "processes and threads"),
    ];
    for (flag, values, names) in sweeps {
        let mut refused = 0;
        for value in values {
            let script = format!("ulimit {flag} {value} && exec \"$@\"");
            // A user whose processes are counted; `ulimit -u` does not bind root.
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65533", "--regid=65533", "--clear-groups", "bash", "-c", &script, "bash"]);
            command.arg(&program).args(["boot", "-q"]).arg(&machine).args(["--", "true"]);
            let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let out = ended(child, Duration::from_secs(20), &script);
            let said = text(&out.stderr);
            match out.status.code() {
                Some(0) => assert_eq!(said, "", "{script}"),
                Some(125) => {
                    refused += 1;
                    assert!(said.contains(names) && said.lines().count() == 2, "{script}: {said}");
                }
                other => panic!("{script}: {other:?}: {said}"),
            }
        }
        assert!(refused > 0, "{flag}: no value was too low");
    }
}

#[test]
fn long_and_odd_arguments_arrive_as_they_are() {
    let long = "x".repeat(1000);
    let mut args = vec![hello(), "--", "sh", "-c", "echo $#", "sh"];
    args.extend(std::iter::repeat_n(long.as_str(), 1500));
    let child = boots(&args).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(text(&ended(child, SOON * 2, "1.5 MB of arguments").stdout), "1500\n");

    let odd = OsStr::from_bytes(b"a\xff\xfeb\n");
    let mut command = boots(&["-e", "A", hello(), "--", "sh", "-c", "printf %s \"$A\" \"$1\"", "sh"]);
    let out =
        ended(command.env("A", odd).arg(odd).stdout(Stdio::piped()).spawn().unwrap(), SOON, "odd bytes");
    assert_eq!(out.stdout, [odd.as_bytes(), odd.as_bytes()].concat());
}
