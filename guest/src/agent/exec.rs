//! Starting a command: who it is, where it stands, what it sees.

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::reaper::Child;
use super::{Reaper, pty};
use crate::protocol::{Exec, Failure, WindowSize};
use crate::signals::reset_dispositions;
use crate::user::{Accounts, resolve};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A started command.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) ends: Ends,
}

/// The agent's ends of a command's descriptors.
pub(super) struct Ends {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    /// Absent with a terminal, which has one output.
    pub(super) stderr: Option<OwnedFd>,
    /// The terminal, where there is one.
    pub(super) terminal: Option<OwnedFd>,
}

/// Starts what is asked for. It leads a session of its own, so its process id names its process group.
///
/// # Errors
/// Why it could not be started; nothing of it runs then.
pub(super) fn start(request: &Exec, root: Root<'_>, reaper: &Reaper) -> Result<Running, Failure> {
    let Some(program) = request.argv.first() else {
        return Err(failure("no command was given".into(), 127));
    };
    let name = String::from_utf8_lossy(&program.0);
    let accounts = Accounts::of(root.path());
    let user = resolve(request.user.as_deref().unwrap_or("0"), &accounts).map_err(|e| failure(e, 126))?;
    let mut command = command(&program.0, request, &user.home)?;
    root.stand_in(&mut command, request.workdir.as_deref().unwrap_or("/"))?;
    let ends = match request.terminal {
        Some(size) => attach_terminal(&mut command, size, user.uid),
        None => attach_pipes(&mut command),
    };
    let ends = ends.map_err(|e| failure(format!("no input and output for {name}: {e}"), 126))?;
    let terminal = request.terminal.is_some();
    // SAFETY: between fork and exec only system calls are made, on memory prepared before the fork.
    unsafe { command.pre_exec(move || become_user(terminal, user.uid, user.gid, &user.groups)) };
    let child = reaper.spawn(&mut command).map_err(|e| not_started(&name, &e))?;
    // `command` is dropped here with the command's own ends; kept open, they would never report the end.
    Ok(Running { child, ends })
}

/// What a command has for its root.
#[derive(Clone, Copy, Debug)]
pub(super) enum Root<'a> {
    /// The agent's.
    Own,
    /// This folder.
    Other(&'a Path),
}

impl Root<'_> {
    fn path(&self) -> &Path {
        match self {
            Self::Own => Path::new("/"),
            Self::Other(path) => path,
        }
    }

    /// Has the command run below this root, in the folder `workdir` of it, which is made where missing.
    fn stand_in(self, command: &mut Command, workdir: &str) -> Result<(), Failure> {
        let stand = |e: io::Error| failure(format!("working folder {workdir}: {e}"), 126);
        let root = open_root(self.path()).map_err(stand)?;
        let folder = open_folder(&root, workdir).map_err(stand)?;
        let change_root = matches!(self, Self::Other(_));
        let enter = move || {
            if change_root {
                rustix::process::fchdir(&root)?;
                rustix::process::chroot(".")?;
            }
            Ok(rustix::process::fchdir(&folder)?)
        };
        // SAFETY: between fork and exec only system calls are made, on descriptors opened before the fork.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

/// Opens a folder to be the root of others.
pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a folder below `root`, symbolic links on the way resolved as if that were `/`; made where missing.
pub(super) fn open_folder(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let mut folder = open(Path::new("/"))?;
    let mut way = PathBuf::new();
    for part in Path::new(path).components() {
        way.push(part);
        folder = match open(&way) {
            Err(Errno::NOENT) => {
                mkdirat(&folder, part.as_os_str(), Mode::from_raw_mode(0o755))?;
                open(&way)?
            }
            other => other?,
        };
    }
    Ok(folder)
}

/// Program and environment: later variables win over earlier ones.
fn command(program: &[u8], request: &Exec, home: &str) -> Result<Command, Failure> {
    let mut command = Command::new(OsStr::from_bytes(program));
    command.args(request.argv[1..].iter().map(|word| OsStr::from_bytes(&word.0))).env_clear();
    command.env("PATH", DEFAULT_PATH).env("HOME", home);
    if let Some(term) = request.term.as_ref().filter(|_| request.terminal.is_some()) {
        command.env("TERM", term);
    }
    for pair in &request.env {
        let mut parts = pair.0.splitn(2, |byte| *byte == b'=').map(OsStr::from_bytes);
        match (parts.next(), parts.next()) {
            (Some(name), Some(value)) if !name.is_empty() => command.env(name, value),
            _ => return Err(failure(format!("environment {pair:?}: NAME=VALUE is needed"), 126)),
        };
    }
    Ok(command)
}

/// Makes the child the leader of a session, with its terminal if it has one, and drops to the user.
fn become_user(terminal: bool, uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let check = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    reset_dispositions();
    rustix::process::setsid()?;
    if terminal {
        // Standard input is the terminal; 0 means not to take it from another session.
        // SAFETY: no memory is involved.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    // An ordinary process (a test) can only run commands as itself.
    if !geteuid().is_root() {
        return if geteuid().as_raw() == uid {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        };
    }
    // glibc's wrappers would signal every thread, of which a forked child has one: ask the kernel.
    // SAFETY: `groups` is valid for its length; the others take numbers alone.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as libc::c_int)?;
        check(libc::syscall(libc::SYS_setgid, gid) as libc::c_int)?;
        check(libc::syscall(libc::SYS_setuid, uid) as libc::c_int)
    }
}

fn attach_pipes(command: &mut Command) -> io::Result<Ends> {
    let (input, stdin) = io::pipe()?;
    let (stdout, output) = io::pipe()?;
    let (stderr, errors) = io::pipe()?;
    command.stdin(input).stdout(output).stderr(errors);
    Ok(Ends { stdin: stdin.into(), stdout: stdout.into(), stderr: Some(stderr.into()), terminal: None })
}

fn attach_terminal(command: &mut Command, size: WindowSize, owner: u32) -> io::Result<Ends> {
    let (ours, theirs) = pty::open_pair(size, owner)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(Stdio::from(theirs));
    let (stdin, stdout) = (ours.try_clone()?.into(), ours.try_clone()?.into());
    Ok(Ends { stdin, stdout, stderr: None, terminal: Some(ours.into()) })
}

fn not_started(program: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => failure(format!("{program}: not found in the machine"), 127),
        _ => failure(format!("{program}: cannot be run: {error}"), 126),
    }
}

fn failure(message: String, exit_code: u8) -> Failure {
    Failure { message, exit_code }
}
