//! The runner as a process: its life, its messages, and what it leaves behind.

#![allow(clippy::unwrap_used)]

mod tiny;

use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, ChunkData, Manifest, SectionKind};
use smolpack_runner::client::{ClientError, Runner, RunnerProgram};
use smolpack_runner::control::{Ended, Launch, Start, Started};
use smolpack_runner::kvm::{Backend, Host};
use smolpack_runner::vmstate::MachineState;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MEMORY_MIB: u64 = 64;

fn program() -> RunnerProgram {
    RunnerProgram::Path(env!("CARGO_BIN_EXE_smolpack-runner").into())
}

/// A folder with a tiny machine's artifact, and runs of it.
struct Bench {
    folder: TempDir,
    artifact: PathBuf,
}

impl Bench {
    fn new(code: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let artifact = folder.path().join("machine");
        tiny::artifact(&artifact, code, 1, MEMORY_MIB);
        Self { folder, artifact }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn launch(&self, start: Start, artifact: &Path, console: &str) -> Result<(Runner, Started), ClientError> {
        let runner = program().spawn()?;
        let started = self.launch_on(&runner, start, artifact, console)?;
        Ok((runner, started))
    }

    fn launch_on(
        &self,
        runner: &Runner,
        start: Start,
        artifact: &Path,
        console: &str,
    ) -> Result<Started, ClientError> {
        let console = File::options().create(true).append(true).open(self.path(console)).unwrap();
        let request = Launch::new(start, &Manifest::new(Kind::Machine, 1, MEMORY_MIB, 1 << 20));
        runner.launch(request, &File::open(artifact).unwrap(), &console)
    }

    fn console(&self, name: &str) -> String {
        let mut text = String::new();
        File::open(self.path(name)).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until the console has so many bytes.
    fn wait_for_console(&self, name: &str, bytes: usize) -> String {
        let end = Instant::now() + Duration::from_secs(30);
        while self.console(name).len() < bytes {
            assert!(Instant::now() < end, "the guest writes nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.console(name)
    }

    /// Snapshots a running machine and packs it with the artifact it came from.
    fn snapshot(&self, runner: &Runner, name: &str) -> PathBuf {
        let checkpoint = self.path(&format!("{name}.checkpoint"));
        let file = File::options().create_new(true).read(true).write(true).open(&checkpoint).unwrap();
        runner.snapshot(&file).unwrap();
        let machine = Artifact::open(&self.artifact).unwrap();
        let path = self.path(name);
        tiny::pack(&machine, &Artifact::open(&checkpoint).unwrap(), &path);
        path
    }
}

/// Fails unless each letter is the one after the last, `p` being followed by `a`.
fn assert_in_sequence(text: &str) {
    for (at, pair) in text.as_bytes().windows(2).enumerate() {
        assert_eq!((pair[0] - b'a' + 1) % 16, pair[1] - b'a', "at {at} of {text}");
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn wait_until_gone(pid: u32) {
    let end = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        assert!(Instant::now() < end, "runner {pid} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_machine_boots_cold_writes_to_its_console_and_is_killed() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, started) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    assert!(!started.restored && started.cold_reason.is_none());
    assert!(started.timings_us.len() >= 4);
    assert_in_sequence(&bench.wait_for_console("console", 20));
    runner.kill().unwrap();
    assert_eq!(runner.wait().unwrap(), Ended::Killed);
}

#[test]
fn a_guest_that_ends_the_machine_is_told_apart() {
    for (code, ended) in
        [(tiny::OFF, Ended::PowerOff), (tiny::RESET, Ended::Reset), (tiny::TRIPLE_FAULT, Ended::Reset)]
    {
        let bench = Bench::new(code);
        let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
        assert_eq!(runner.wait().unwrap(), ended);
    }
}

#[test]
fn a_restored_machine_goes_on_with_the_next_letter() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    bench.wait_for_console("console", 20);
    let mut restored = bench.snapshot(&runner, "generation0");
    for generation in 1..10 {
        let (runner, started) = bench.launch(Start::Any, &restored, "console").unwrap();
        assert!(started.restored, "{:?}", started.cold_reason);
        let now = bench.console("console").len();
        bench.wait_for_console("console", now + 5);
        restored = bench.snapshot(&runner, &format!("generation{generation}"));
    }
    assert_in_sequence(&bench.console("console"));
}

#[test]
fn one_snapshot_is_restored_many_times() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let before = bench.wait_for_console("console", 20).len();
    let restored = bench.snapshot(&runner, "restored");
    let last = bench.console("console").as_bytes()[before - 1..].to_vec();
    for run in 0..3 {
        let console = format!("console{run}");
        let (_runner, _) = bench.launch(Start::Restore, &restored, &console).unwrap();
        let text = bench.wait_for_console(&console, 5);
        let text = format!("{}{text}", *last.last().unwrap() as char);
        assert_in_sequence(&text);
    }
}

#[test]
fn running_a_machine_changes_nothing_in_its_artifact() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    bench.wait_for_console("console", 20);
    let restored = bench.snapshot(&runner, "restored");
    let before = std::fs::read(&restored).unwrap();
    let (runner, _) = bench.launch(Start::Restore, &restored, "console2").unwrap();
    bench.wait_for_console("console2", 20);
    drop(runner);
    assert!(std::fs::read(&restored).unwrap() == before);
    smolpack_format::verify(&restored, &mut |_, _| {}).unwrap();
}

#[test]
fn without_a_snapshot_any_boots_cold_and_says_so_and_restore_fails_with_a_hint() {
    let bench = Bench::new(tiny::LETTERS);
    let (_runner, started) = bench.launch(Start::Any, &bench.artifact, "console").unwrap();
    assert_eq!(started.cold_reason.unwrap(), "The artifact has no snapshot.");
    let error = bench.launch(Start::Restore, &bench.artifact, "console").unwrap_err();
    assert_eq!(error.to_string(), "cannot restore: the artifact has no snapshot");
    assert!(error.hint().is_some());
}

type Doctor = fn(&mut MachineState);

/// An artifact whose snapshot was changed.
fn doctored(bench: &Bench, doctor: Doctor) -> PathBuf {
    let host = Host::open().unwrap();
    let (vm, vcpus) = tiny::machine::boot(&host, 1, MEMORY_MIB, 2 << 20);
    let bytes = restored_devices(bench);
    let mut state = smolpack_runner::snapshot::capture(&host, &vm, &vcpus, bytes).unwrap();
    doctor(&mut state);
    let checkpoint = tiny::machine::write(&state, &vm, 1, &bench.path("checkpoint"));
    let path = bench.path("odd");
    tiny::pack(&Artifact::open(&bench.artifact).unwrap(), &checkpoint, &path);
    path
}

/// The devices' state, out of a snapshot that is whole.
fn restored_devices(bench: &Bench) -> Vec<u8> {
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "first").unwrap();
    let whole = Artifact::open(&bench.snapshot(&runner, "whole")).unwrap();
    smolpack_runner::restore::read_state(&Host::open().unwrap(), &whole).unwrap().devices
}

#[test]
fn a_snapshot_that_does_not_fit_or_that_kvm_refuses_boots_cold_and_says_why() {
    let another: Doctor = |state| {
        let here = state.origin.backend;
        state.origin.backend = if here == Backend::Vmx { Backend::Svm } else { Backend::Vmx };
    };
    let cases: [(Doctor, &str); 2] = [
        (another, "The snapshot does not fit this host: it was taken under"),
        (|state| state.vcpus[0].sregs.cr4 = !0, "KVM refused KVM_SET_SREGS"),
    ];
    for (doctor, says) in cases {
        let bench = Bench::new(tiny::LETTERS);
        let odd = doctored(&bench, doctor);
        let (_runner, started) = bench.launch(Start::Any, &odd, "console").unwrap();
        let reason = started.cold_reason.unwrap();
        assert!(reason.starts_with(says), "{reason}");
        assert!(!bench.wait_for_console("console", 5).is_empty());
        let error = bench.launch(Start::Restore, &odd, "strict").unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("cold")), "{error}");
    }
}

#[test]
fn a_snapshot_that_contradicts_the_manifest_is_refused() {
    let cases: [(Doctor, &str); 3] = [
        (|state| state.vcpus.push(state.vcpus[0].clone()), "2 virtual CPUs, but the manifest says 1"),
        (|state| state.origin.memory *= 2, "134217728 bytes of memory, but the manifest says 67108864"),
        (|state| state.devices.truncate(20), "part \"devices\" is malformed"),
    ];
    for (doctor, says) in cases {
        let bench = Bench::new(tiny::LETTERS);
        let odd = doctored(&bench, doctor);
        let error = bench.launch(Start::Any, &odd, "console").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--cold")), "{error}");
        bench.launch(Start::Cold, &odd, "console").unwrap();
    }
}

#[test]
fn a_short_file_is_refused_before_it_is_mapped() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let restored = bench.snapshot(&runner, "restored");
    let length = std::fs::metadata(&restored).unwrap().len();
    for cut in [1, 4096, length / 2] {
        File::options().write(true).open(&restored).unwrap().set_len(length - cut).unwrap();
        let error = bench.launch(Start::Any, &restored, "console").unwrap_err();
        assert!(matches!(error, ClientError::Failed(_)), "{error}");
        File::options().write(true).open(&restored).unwrap().set_len(length).unwrap();
    }
}

/// Flips a bit in the last byte of a section's data.
fn damage(path: &Path, kind: SectionKind) {
    let artifact = Artifact::open(path).unwrap();
    let section = artifact.section(kind).unwrap().unwrap();
    let last = section.chunks().iter().rev().find_map(|chunk| match chunk.data {
        ChunkData::Raw { offset } => Some(offset + chunk.len - 1),
        ChunkData::Zstd { offset, stored } => Some(offset + stored - 1),
        _ => None,
    });
    let mut byte = [0];
    artifact.file().read_exact_at(&mut byte, last.unwrap()).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], last.unwrap()).unwrap();
}

#[test]
fn a_flipped_bit_in_what_is_run_is_named_and_nothing_runs() {
    for (kind, start) in [(SectionKind::Kernel, Start::Cold), (SectionKind::VmState, Start::Any)] {
        let bench = Bench::new(tiny::LETTERS);
        let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "first").unwrap();
        let whole = bench.snapshot(&runner, "whole");
        damage(&whole, kind);
        let error = bench.launch(start, &whole, "console").unwrap_err().to_string();
        assert!(error.contains(&format!("section {kind}")), "{error}");
        assert!(error.contains("digest") || error.contains("decode"), "{error}");
        assert_eq!(bench.console("console"), "");
    }
}

#[test]
fn an_artifact_that_is_none_is_refused_and_the_process_ends() {
    let bench = Bench::new(tiny::LETTERS);
    std::fs::write(bench.path("none"), "hello").unwrap();
    let runner = program().spawn().unwrap();
    let error = bench.launch_on(&runner, Start::Any, &bench.path("none"), "console").unwrap_err();
    assert!(matches!(error, ClientError::Failed(_)), "{error}");
    wait_until_gone(runner.pid());
}

#[test]
fn the_process_ends_when_the_parent_is_gone_even_while_the_guest_runs() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let pid = runner.pid();
    // As if this process had been killed: its end of the control socket closes, nothing else happens.
    runner.abandon();
    wait_until_gone(pid);
}

#[test]
fn dropping_the_handle_leaves_no_process() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let pid = runner.pid();
    drop(runner);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_runner_has_neither_what_its_parent_left_open_nor_any_rights() {
    let bench = Bench::new(tiny::LETTERS);
    let marker = File::create(bench.path("marker")).unwrap();
    // As a careless parent leaves it: open across the start of a program.
    let leaked = rustix::io::dup(&marker).unwrap();
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let process = PathBuf::from(format!("/proc/{}", runner.pid()));
    for entry in std::fs::read_dir(process.join("fd")).unwrap() {
        let target = std::fs::read_link(entry.unwrap().path()).unwrap();
        assert!(!target.ends_with("marker"), "{}", target.display());
    }
    drop(leaked);
    let status = std::fs::read_to_string(process.join("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(["NoNewPrivs:", "CapInh:", "CapPrm:", "CapEff:", "SigBlk:"].map(field), [1, 0, 0, 0, 0]);
    let ignored = [1, 2, 3, 13, 25].iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    // 32 and 33 are the C library's own.
    assert_eq!(field("SigIgn:") & !(3 << 31), ignored);
    let environment = std::fs::read(process.join("environ")).unwrap();
    let variables = environment.split(|&byte| byte == 0).filter(|variable| !variable.is_empty());
    assert!(variables.clone().all(|variable| variable.starts_with(b"TMPDIR=")));
}

#[test]
fn an_interrupt_from_the_terminal_does_not_reach_the_runner() {
    let bench = Bench::new(tiny::LETTERS);
    let (runner, _) = bench.launch(Start::Cold, &bench.artifact, "console").unwrap();
    let pid = rustix::process::Pid::from_raw(runner.pid().cast_signed()).unwrap();
    assert_ne!(rustix::process::getpgid(Some(pid)).unwrap(), rustix::process::getpgrp());
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let before = bench.console("console").len();
    bench.wait_for_console("console", before + 20);
}

#[test]
fn the_program_runs_from_memory() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_smolpack-runner")).unwrap();
    let bench = Bench::new(tiny::OFF);
    let runner = RunnerProgram::Embedded(bytes.leak()).spawn().unwrap();
    let name = std::fs::read_to_string(format!("/proc/{}/comm", runner.pid())).unwrap();
    bench.launch_on(&runner, Start::Cold, &bench.artifact, "console").unwrap();
    assert_eq!(runner.wait().unwrap(), Ended::PowerOff);
    assert!(!name.is_empty());
}

#[test]
fn a_missing_program_is_said_to_be_missing() {
    let error = RunnerProgram::Path("/no/such/runner".into()).spawn().unwrap_err();
    assert!(matches!(error, ClientError::Spawn(_)), "{error}");
}

#[test]
fn started_by_hand_the_program_says_that_it_is_not_meant_to_be() {
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_smolpack-runner"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(125));
    assert!(String::from_utf8(run.stderr).unwrap().contains("started by smolpack"));
}
