//! The machine's end.

use rustix::mount::{MountFlags, mount_remount};
use rustix::system::{RebootCommand, reboot};
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

/// How long processes have between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Ends all processes, makes the disk consistent, and switches off.
pub(super) fn off() -> ! {
    signal_all(libc::SIGTERM);
    let started = Instant::now();
    while others_alive() && started.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal_all(libc::SIGKILL);
    switch_off()
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
