//! What the runner takes from its parent, and what it does without.
//!
//! A machine is hostile, so the process around it has the three descriptors it was started with, no
//! capabilities, and no way to gain any. What else a parent passes on by chance (open files, a blocked or
//! ignored signal) must not change what it does.

use crate::control::CONTROL_FD;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use smolpack_guest::signals::reset_dispositions;
use std::io;

/// Signals for others to decide about: Ctrl-C in a terminal is the parent's, and a write that cannot be done
/// is an error where it was made.
const IGNORED: [libc::c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE, libc::SIGXFSZ];

/// Closes and drops all that a runner does not need. To be called first: it closes descriptors whoever owns
/// them.
///
/// # Errors
/// The kernel refuses.
pub fn confine() -> io::Result<()> {
    close_all_above_stderr()?;
    reset_signals()?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

fn close_all_above_stderr() -> io::Result<()> {
    const { assert!(CONTROL_FD < 3) };
    // SAFETY: this is the start of the program, which owns no descriptor yet but the three standard ones.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    match io::Error::last_os_error() {
        _ if closed == 0 => Ok(()),
        // Linux before 5.9.
        e if e.raw_os_error() == Some(libc::ENOSYS) => close_each(),
        e => Err(e),
    }
}

fn close_each() -> io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    for name in open.collect::<io::Result<Vec<_>>>()? {
        if let Some(fd @ 3..) = name.to_str().and_then(|name| name.parse().ok()) {
            // SAFETY: as above; the folder's own descriptor is closed already, which is no error here.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

fn reset_signals() -> io::Result<()> {
    reset_dispositions();
    for signal in IGNORED {
        // SAFETY: sets a disposition; no handler of ours is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: an empty set is made, and made the mask of this thread, the only one.
    let error = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}
