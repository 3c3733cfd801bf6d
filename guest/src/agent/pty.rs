//! A terminal for a command.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::protocol::WindowSize;

/// Both ends of a new terminal: ours, and the command's.
pub(super) fn open_pair(size: WindowSize) -> io::Result<(File, File)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    resize(&master, size)?;
    Ok((File::from(master), File::from(slave)))
}

/// Sets the size of a terminal, from either end.
pub(super) fn resize(terminal: impl AsFd, size: WindowSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}
