//! The agent in a real machine, over vsock, without the command line in between.

use crate::support::{debian, hello};
use smolpack::embedded;
use smolpack_format::Artifact;
use smolpack_guest::client::{Output, Session, ask, run};
use smolpack_guest::protocol::{AGENT_PORT, Exec, Exit, Request};
use smolpack_runner::client::{Runner, RunnerProgram};
use smolpack_runner::control::{Ended, Launch, Start};
use std::fs::File;
use std::io::{Read, Seek};
use std::time::{Duration, Instant};

/// A running machine and its console's log.
struct Machine {
    runner: Runner,
    console: File,
}

fn boot(start: Start) -> Machine {
    boot_with(hello(), start, |_| ())
}

/// Boots an artifact with other settings than its own.
fn boot_with(path: &str, start: Start, change: impl FnOnce(&mut Launch)) -> Machine {
    let file = File::open(path).unwrap();
    let artifact = Artifact::from_file(file.try_clone().unwrap()).unwrap();
    let console = tempfile::tempfile().unwrap();
    let runner = RunnerProgram::Embedded(embedded::RUNNER).spawn().unwrap();
    let mut launch = Launch::new(start, artifact.manifest());
    change(&mut launch);
    let started = runner.launch(launch, &file, &console).unwrap();
    assert_eq!(started.restored, start != Start::Cold, "{:?}", started.cold_reason);
    Machine { runner, console }
}

impl Machine {
    fn sh(&self, script: &str) -> Output {
        run(self.runner.connect(AGENT_PORT).unwrap(), shell(script)).unwrap()
    }

    fn text(&self, script: &str) -> String {
        String::from_utf8(self.sh(script).stdout).unwrap()
    }
}

fn shell(script: &str) -> Exec {
    Exec { argv: ["sh", "-c", script].map(Into::into).into(), ..Exec::default() }
}

#[test]
fn a_machine_has_what_programs_expect_and_a_quiet_console() {
    let mut machine = boot(Start::Cold);
    let mounts = machine.text("cut -d' ' -f2,3 /proc/mounts");
    for mount in [
        "/ ext4",
        "/dev devtmpfs",
        "/proc proc",
        "/sys sysfs",
        "/dev/pts devpts",
        "/dev/shm tmpfs",
        "/run tmpfs",
        "/sys/fs/cgroup cgroup2",
    ] {
        assert!(mounts.lines().any(|line| line == mount), "no {mount}: {mounts}");
    }
    let script =
        "hostname; ulimit -Hn; umask; cat /sys/class/net/lo/flags; readlink /dev/fd; cat /proc/1/comm";
    assert_eq!(machine.text(script), "smolpack\n524288\n0022\n0x9\n/proc/self/fd\ninit\n");
    let mut console = String::new();
    machine.console.rewind().unwrap();
    machine.console.read_to_string(&mut console).unwrap();
    assert!(!console.contains("smolpack"), "{console}");
}

#[test]
fn a_disk_grows_under_its_files_to_64_gib() {
    for start in [Start::Cold, Start::Restore] {
        let machine = boot_with(debian(), start, |launch| launch.disk_bytes = 64 << 30);
        // Data that was there, and data that only fits now, beyond what the image had.
        let script = "set -e; sha256sum /usr/bin/* > /sum; resize2fs /dev/vda >/dev/null 2>&1; \
                      fallocate -l 32G /large; dd if=/dev/urandom of=/new bs=1M count=8 status=none; \
                      sha256sum /new >> /sum; sync; echo 3 > /proc/sys/vm/drop_caches; \
                      sha256sum -c --quiet /sum; df --output=size -B1G / | tail -1; dmesg | grep -i ext4.*err || :";
        let size = machine.text(script);
        let gib: u64 = size.trim().parse().unwrap_or_else(|_| panic!("{start:?}: {size}"));
        assert!((60..=64).contains(&gib), "{start:?}: {gib} GiB");
    }
}

#[test]
fn streams_are_served_beside_each_other() {
    let machine = boot(Start::Any);
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let machine = &machine;
            scope.spawn(move || {
                let output = machine.sh(&format!("head -c 100000 /dev/zero; exit {number}"));
                assert_eq!((output.exit, output.stdout.len()), (Exit::Code(number), 100_000));
            });
        }
    });
}

#[test]
fn a_command_ends_with_its_stream_and_the_machine_goes_on() {
    let machine = boot(Start::Any);
    let stream = machine.runner.connect(AGENT_PORT).unwrap();
    let session = Session::exec(stream, shell("sleep 12345 & wait")).unwrap();
    let sleeping =
        || machine.text("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep 12345'");
    let wait_for = |count: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while sleeping().trim() != count {
            assert!(Instant::now() < deadline, "{} processes, not {count}", sleeping().trim());
        }
    };
    wait_for("1");
    drop(session);
    wait_for("0");
    assert_eq!(machine.text("grep -l '^State:.Z' /proc/[0-9]*/status"), "", "zombies");
}

#[test]
fn power_off_ends_processes_first_and_then_the_machine() {
    let machine = boot(Start::Any);
    // One that ends when it is asked to, and one that has to be killed.
    machine.sh("(trap 'exit 0' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &
                (trap '' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &");
    ask(machine.runner.connect(AGENT_PORT).unwrap(), &Request::PowerOff).unwrap();
    assert_eq!(machine.runner.wait().unwrap(), Ended::PowerOff);
}
