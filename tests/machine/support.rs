//! Machines to test with, each built once, and ways to run the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The program under test.
pub(crate) fn smolpack() -> Command {
    Command::new(env!("CARGO_BIN_EXE_smolpack"))
}

/// `smolpack boot ARGS`, its input closed.
pub(crate) fn boot(args: &[&str]) -> Output {
    smolpack().arg("boot").args(args).stdin(Stdio::null()).output().unwrap()
}

/// A busybox machine, one CPU, 128 MiB, with a snapshot.
pub(crate) fn hello() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| build("hello", &repository().join("recipes/hello"), &[]))
}

/// A Debian minbase machine, two CPUs, 512 MiB, with a snapshot.
pub(crate) fn debian() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let context = repository().join("tests/machine/debian");
        let image = repository().join("target/machine/debian");
        build("debian", &context, &["--image", image.to_str().unwrap()])
    })
}

/// Builds a machine with a snapshot and gives its path.
pub(crate) fn build(name: &str, context: &Path, extra: &[&str]) -> String {
    let file = scratch().join(format!("{name}.smolmachine"));
    let out = smolpack()
        .args(["build", "--require-snapshot"])
        .arg(context)
        .args(extra)
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert!(out.status.success(), "build of {name}: {}", text(&out.stderr));
    file.to_str().unwrap().to_owned()
}

/// A folder for this run; the lab's `/tmp` is in memory.
pub(crate) fn scratch() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

pub(crate) fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The command's stdout, after checking that it succeeded.
pub(crate) fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{:?}: {}{}", out.status, text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// Runner processes alive on this host, by the name they give themselves.
pub(crate) fn runners() -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let alive = !std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.contains(") Z ");
        (name.trim() == "smolpack-runner".get(..15)? && alive).then_some(pid)
    });
    processes.collect()
}

/// Waits until none is left.
pub(crate) fn wait_for_no_runner() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !runners().is_empty() {
        assert!(Instant::now() < deadline, "runners left: {:?}", runners());
        std::thread::sleep(Duration::from_millis(20));
    }
}
