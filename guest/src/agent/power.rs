//! Quiet, and the machine's end.

use rustix::mount::{MountFlags, mount_remount};
use rustix::system::{RebootCommand, reboot};
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

/// How long processes have to end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// A machine is idle when so many looks in a row, so far apart, find nothing running.
const IDLE_LOOKS: u32 = 5;
const IDLE_INTERVAL: Duration = Duration::from_millis(10);
/// How long that is waited for. A service may be busy forever, and its snapshot is good all the same.
const IDLE_LIMIT: Duration = Duration::from_secs(3);

/// Readies the machine for a snapshot: what is dirty goes to the disk, and what runs comes to rest.
///
/// The page cache stays. Freed pages keep their contents, so without it a snapshot is not smaller (Debian
/// minbase: the same to a kilobyte), and the first command reads the disk instead: 0.93 s, not 0.88 s, from
/// start to end of `boot -- dpkg --version` in the lab (median of 25, interleaved).
///
/// # Errors
/// The kernel does not say what runs.
pub(super) fn quiesce() -> Result<(), String> {
    rustix::fs::sync();
    let started = Instant::now();
    let mut idle_looks = 0;
    while idle_looks < IDLE_LOOKS && started.elapsed() < IDLE_LIMIT {
        std::thread::sleep(IDLE_INTERVAL);
        // The one that looks runs itself.
        idle_looks = if running_tasks()? <= 1 { idle_looks + 1 } else { 0 };
    }
    rustix::fs::sync();
    Ok(())
}

fn running_tasks() -> Result<u32, String> {
    let file = "/proc/loadavg";
    let text = fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
    parse_running(&text).ok_or_else(|| format!("{file} reads {text:?}"))
}

/// The runnable tasks of `0.00 0.01 0.05 1/83 1234`.
fn parse_running(loadavg: &str) -> Option<u32> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// Ends all processes, makes the disk consistent, and switches off.
pub(super) fn off() -> ! {
    end_all(libc::SIGTERM);
    signal_all(libc::SIGKILL);
    switch_off()
}

/// Signals every process but this one, and waits a little until they have ended.
pub(super) fn end_all(signal: i32) {
    signal_all(signal);
    let started = Instant::now();
    while others_alive() && started.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says on the console why the machine cannot go on, and switches it off.
pub fn fail(why: &str) -> ! {
    let line = format!("smolpack-guest: {why}\n");
    // Standard error is the console where the kernel could open it; else it is opened here.
    if std::io::stderr().write_all(line.as_bytes()).is_err()
        && let Ok(mut console) = fs::OpenOptions::new().write(true).open("/dev/console")
    {
        let _ = console.write_all(line.as_bytes());
    }
    switch_off()
}

fn switch_off() -> ! {
    rustix::fs::sync();
    // Read-only leaves a clean journal; where a file is still open for writing, sync was enough.
    let _ = mount_remount("/", MountFlags::RDONLY, c"");
    loop {
        let _ = reboot(RebootCommand::PowerOff);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Signals every process but this one.
fn signal_all(signal: i32) {
    // SAFETY: no memory is involved; -1 means all processes that may be signalled but the caller.
    unsafe { libc::kill(-1, signal) };
}

fn others_alive() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let mut processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // Kernel threads have no command line.
    processes
        .any(|pid| pid != 1 && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_tasks_are_read_from_the_load_average() {
        assert_eq!(parse_running("0.00 0.01 0.05 12/83 1234\n"), Some(12));
        assert_eq!(parse_running("0.00 0.01\n"), None);
        assert!(running_tasks().unwrap() >= 1, "the test itself runs");
    }
}
