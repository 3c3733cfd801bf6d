//! Runs a command for a stream.
//!
//! One thread reads frames (input, signals, sizes), one each pumps stdout and stderr, and the calling
//! thread waits for the end. When the host vanishes the command's process group is killed.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::power::signal_group;
use super::{Reaper, pty, user};
use crate::protocol::{Exec, Exit, Failure, Frame, Kind, Signal, WindowSize};

/// A quiet pipe is given up this long after the command's end, though a child of it holds it open.
const QUIET: Duration = Duration::from_millis(100);
/// And a busy one after this.
const BUSY: Duration = Duration::from_secs(2);
const STACK: usize = 128 << 10;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The stream's sending side, shared by the pumps.
#[derive(Clone)]
pub(super) struct Sender(Arc<Mutex<UnixStream>>);

impl Sender {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A command's ends on our side.
struct Ends {
    input: Option<OwnedFd>,
    output: Vec<(Kind, OwnedFd)>,
    terminal: Option<OwnedFd>,
}

/// Runs the command; its last frame is `Exit`.
///
/// # Errors
/// Why it could not be started; nothing of it runs then.
pub(super) fn exec(
    request: &Exec,
    stream: UnixStream,
    sender: &Sender,
    reaper: &Reaper,
) -> Result<Exit, Failure> {
    let mut command = command(request)?;
    let ours =
        attach(&mut command, request.terminal).map_err(|e| failure(format!("no terminal: {e}"), 126))?;
    let (mut child, ended) = reaper.spawn(&mut command).map_err(|e| not_started(&request.argv[0], &e))?;
    // The command holds its ends itself now; kept open here, they would never report the end.
    drop(command);
    let ends = ours.unwrap_or_else(|| pipes(&mut child));
    let pid = child.id();
    let (alive, over) = io::pipe().map_err(|e| failure(format!("no pipe: {e}"), 126))?;
    let over = OwnedFd::from(over);
    let alive = Arc::new(OwnedFd::from(alive));

    let pumps: Vec<JoinHandle<()>> = ends
        .output
        .into_iter()
        .filter_map(|(kind, from)| {
            let (sender, alive) = (sender.clone(), Arc::clone(&alive));
            let pump = move || pump(kind, &File::from(from), &alive, &sender, pid);
            Builder::new().name("output".into()).stack_size(STACK).spawn(pump).ok()
        })
        .collect();
    let watched = stream.try_clone().ok();
    let (input, terminal) = (ends.input, ends.terminal);
    let running = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&running);
    let frames = Builder::new().name("input".into()).stack_size(STACK).spawn(move || {
        read_frames(stream, input.map(File::from), terminal.as_ref(), pid);
        // What the command left running in the background outlives it; its group is not ours to kill.
        if still.load(Ordering::Acquire) {
            signal_group(pid, libc::SIGHUP);
            signal_group(pid, libc::SIGKILL);
        }
    });

    let exit = ended.recv().unwrap_or(Exit::Signal(0));
    running.store(false, Ordering::Release);
    drop(over); // every pump sees the hang-up of `alive`
    for pump in pumps {
        let _ = pump.join();
    }
    if let (Ok(_), Some(stream)) = (frames, watched) {
        // Ends the reader; the sending side stays open for `Exit`.
        let _ = stream.shutdown(std::net::Shutdown::Read);
    }
    Ok(exit)
}

fn command(request: &Exec) -> Result<Command, Failure> {
    let Some(program) = request.argv.first() else {
        return Err(failure("no command was given".into(), 127));
    };
    let user =
        user::resolve(request.user.as_deref().unwrap_or("0"), Path::new("/")).map_err(|e| failure(e, 126))?;
    let workdir = request.workdir.as_deref().unwrap_or("/");
    std::fs::create_dir_all(workdir).map_err(|e| failure(format!("working folder {workdir}: {e}"), 126))?;

    let mut command = Command::new(program);
    command.args(&request.argv[1..]).current_dir(workdir).env_clear();
    command.env("PATH", DEFAULT_PATH).env("HOME", &user.home);
    if let Some(term) = request.term.as_ref().filter(|_| request.terminal.is_some()) {
        command.env("TERM", term);
    }
    command.envs(
        request.env.iter().filter_map(|pair| pair.split_once('=')).filter(|(name, _)| !name.is_empty()),
    );
    let terminal = request.terminal.is_some();
    let groups = user.groups.clone();
    // SAFETY: between fork and exec only system calls are made, on memory prepared before the fork.
    unsafe { command.pre_exec(move || become_user(terminal, user.uid, user.gid, &groups)) };
    Ok(command)
}

/// Makes the child the leader of a session, with its terminal if it has one, and drops to the user.
fn become_user(terminal: bool, uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let check = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    rustix::process::setsid()?;
    if terminal {
        // Standard input is the terminal; 0 means not to take it from another session.
        // SAFETY: no memory is involved.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    }
    // glibc's wrappers would signal every thread, of which a forked child has one: ask the kernel.
    // SAFETY: `groups` is valid for its length; the others take numbers alone.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as libc::c_int)?;
        check(libc::syscall(libc::SYS_setgid, gid) as libc::c_int)?;
        check(libc::syscall(libc::SYS_setuid, uid) as libc::c_int)
    }
}

/// Connects the command to pipes, or to a terminal, whose end it gives.
fn attach(command: &mut Command, terminal: Option<WindowSize>) -> io::Result<Option<Ends>> {
    let Some(size) = terminal else {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        return Ok(None);
    };
    let (ours, theirs) = pty::open_pair(size)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    Ok(Some(Ends {
        input: Some(ours.try_clone()?.into()),
        terminal: Some(ours.try_clone()?.into()),
        output: vec![(Kind::Stdout, ours.into())],
    }))
}

fn pipes(child: &mut std::process::Child) -> Ends {
    let stdout = child.stdout.take().map(|pipe| (Kind::Stdout, pipe.into()));
    let stderr = child.stderr.take().map(|pipe| (Kind::Stderr, pipe.into()));
    Ends {
        input: child.stdin.take().map(OwnedFd::from),
        output: stdout.into_iter().chain(stderr).collect(),
        terminal: None,
    }
}

/// Moves output into frames until it ends. After the command's end, what is left in the pipe.
fn pump(kind: Kind, mut from: &File, alive: &OwnedFd, sender: &Sender, pid: u32) {
    let mut buffer = vec![0; 64 << 10];
    let mut ended = None;
    loop {
        match ready(from, alive, ended.is_some()) {
            Ready::Data => {}
            Ready::CommandEnded => {
                ended = Some(Instant::now());
                continue;
            }
            Ready::Quiet => return,
        }
        if ended.is_some_and(|at| at.elapsed() > BUSY) {
            return;
        }
        match from.read(&mut buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A terminal whose last holder has gone reports EIO.
            Ok(0) | Err(_) => return,
            Ok(n) => {
                if sender.send(&Frame { kind, payload: buffer[..n].to_vec() }).is_err() {
                    signal_group(pid, libc::SIGKILL);
                    return;
                }
            }
        }
    }
}

enum Ready {
    Data,
    CommandEnded,
    Quiet,
}

fn ready(from: &File, alive: &OwnedFd, ended: bool) -> Ready {
    let quiet = Timespec { tv_sec: 0, tv_nsec: QUIET.subsec_nanos().into() };
    loop {
        let mut fds = [PollFd::new(from, PollFlags::IN), PollFd::new(alive, PollFlags::IN)];
        let watched = if ended { &mut fds[..1] } else { &mut fds[..] };
        match poll(watched, ended.then_some(&quiet)) {
            Ok(0) => return Ready::Quiet,
            Ok(_) if !fds[0].revents().is_empty() => return Ready::Data,
            Ok(_) => return Ready::CommandEnded,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Ready::Quiet,
        }
    }
}

/// Passes on what the host sends, until its end or nonsense.
fn read_frames(mut stream: UnixStream, mut input: Option<File>, terminal: Option<&OwnedFd>, pid: u32) {
    while let Ok(Some(frame)) = Frame::read(&mut stream) {
        match frame.kind {
            Kind::Stdin if frame.payload.is_empty() => end_input(&mut input, terminal),
            Kind::Stdin => {
                if !feed(input.as_mut(), &frame.payload, &stream) {
                    input = None;
                }
            }
            Kind::Resize => {
                if let (Some(terminal), Ok(size)) = (terminal, frame.decode::<WindowSize>()) {
                    let _ = pty::resize(terminal.as_fd(), size);
                }
            }
            Kind::Signal => {
                if let Ok(signal) = frame.decode::<Signal>() {
                    signal_group(pid, signal.number);
                }
            }
            _ => break,
        }
    }
}

/// A pipe is closed; a terminal gets its end-of-file character.
fn end_input(input: &mut Option<File>, terminal: Option<&OwnedFd>) {
    if let (Some(file), Some(_)) = (input.as_mut(), terminal) {
        let _ = file.write_all(&[4]);
    } else {
        *input = None;
    }
}

/// Writes input; false when the command takes no more, or the host goes away while it does not read.
fn feed(input: Option<&mut File>, mut bytes: &[u8], stream: &UnixStream) -> bool {
    let Some(input) = input else { return true };
    while !bytes.is_empty() {
        let gone = PollFlags::RDHUP;
        let mut fds = [PollFd::new(&*input, PollFlags::OUT), PollFd::new(stream, gone)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
            Ok(_) if !fds[0].revents().contains(PollFlags::OUT) => return false,
            Ok(_) => {}
        }
        // A pipe that polls writable takes PIPE_BUF bytes without blocking (pipe(7)).
        let some = &bytes[..bytes.len().min(4096)];
        match input.write(some) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
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
