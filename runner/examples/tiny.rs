//! Times the restore path alone, with a guest of a few instructions that runs on any `/dev/kvm`.
//!
//!     tiny make FILE MIB      writes a machine of so much memory, a quarter of it in use, with a snapshot
//!     tiny restore FILE       restores it in a process of its own and prints, as JSON, the microseconds
//!                             from before the process started to the first run of its CPU, by step

#![allow(clippy::unwrap_used, reason = "a measuring tool: it stops where anything fails")]

#[path = "../tests/tiny/mod.rs"]
mod tiny;

use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, Manifest};
use smolpack_runner::client::{Runner, RunnerProgram};
use smolpack_runner::control::{CONTROL_FD, Launch, Start, Started};
use smolpack_runner::ipc::Channel;
use smolpack_runner::process;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // Started by the two below: the runner's program, as part of this one.
        [] => {
            // SAFETY: the descriptor was inherited for this purpose.
            process::run(&Channel::inherited(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) }));
        }
        ["make", file, mib] => make(Path::new(file), mib.parse().unwrap()),
        ["restore", file] => restore(Path::new(file)),
        _ => panic!("usage: tiny make FILE MIB | tiny restore FILE"),
    }
}

fn launch(artifact: &Path, start: Start, memory_mib: u64) -> (Runner, Started) {
    let program = RunnerProgram::Path(std::env::current_exe().unwrap());
    let runner = program.spawn().unwrap();
    let request = Launch::new(start, &Manifest::new(Kind::Machine, 1, memory_mib, 1 << 20));
    let console = File::options().write(true).open("/dev/null").unwrap();
    let started = runner.launch(request, &File::open(artifact).unwrap(), &console).unwrap();
    (runner, started)
}

fn make(path: &Path, memory_mib: u64) {
    let beside = |suffix: &str| PathBuf::from(format!("{}.{suffix}", path.display()));
    let (cold, checkpoint) = (beside("cold"), beside("checkpoint"));
    let machine = tiny::artifact(&cold, &fill_a_quarter(memory_mib), 1, memory_mib);
    let (runner, _) = launch(&cold, Start::Cold, memory_mib);
    std::thread::sleep(Duration::from_secs(1));
    runner
        .snapshot(&File::options().create_new(true).read(true).write(true).open(&checkpoint).unwrap())
        .unwrap();
    tiny::pack(&machine, &Artifact::open(&checkpoint).unwrap(), path);
    std::fs::remove_file(cold).unwrap();
    std::fs::remove_file(checkpoint).unwrap();
}

/// `mov edi, 0x200000; mov ecx, WORDS; mov eax, 0x5a5a5a5a; rep stosd`, then letters.
fn fill_a_quarter(memory_mib: u64) -> Vec<u8> {
    let words = (memory_mib << 20) / 4 / 4;
    let mut code = vec![0xbf, 0, 0, 0x20, 0, 0xb9];
    code.extend_from_slice(&(words as u32).to_le_bytes());
    code.extend_from_slice(&[0xb8, 0x5a, 0x5a, 0x5a, 0x5a, 0xf3, 0xab]);
    [&code, tiny::LETTERS].concat()
}

fn restore(path: &Path) {
    let memory_mib = Artifact::open(path).unwrap().manifest().memory_mib;
    let before = Instant::now();
    let (_runner, started) = launch(path, Start::Restore, memory_mib);
    let total = before.elapsed().as_micros() as u64;
    // The CPU's thread has started; a tracer wants to see it enter the guest as well.
    std::thread::sleep(Duration::from_millis(50));
    let inside: u64 = started.timings_us.iter().map(|(_, us)| us).sum();
    let mut steps = vec![("process".to_owned(), total.saturating_sub(inside))];
    steps.extend(started.timings_us);
    println!("{}", serde_json::json!({ "to_first_run_us": total, "steps": steps }));
}
