//! A terminal for a command.

use rustix::fs::{Mode, OFlags, Uid, fchmod, fchown, open};
use rustix::process::geteuid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::protocol::WindowSize;

/// Both ends of a new terminal: ours, and the command's, which belongs to `owner` as a login's does:
/// programs open it again by its name.
pub(super) fn open_pair(size: WindowSize, owner: u32) -> io::Result<(File, File)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    // An ordinary process (a test) owns the terminals it makes and may not give them away.
    if geteuid().is_root() {
        fchown(&slave, Some(Uid::from_raw(owner)), None)?;
    }
    fchmod(&slave, Mode::from_raw_mode(0o620))?;
    resize(&master, size)?;
    Ok((File::from(master), File::from(slave)))
}

/// Sets the size of a terminal, from either end.
pub(super) fn resize(terminal: impl AsFd, size: WindowSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}
