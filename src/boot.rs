//! `smolpack boot`: a machine from an artifact, for as long as one command.

use crate::embedded;
use crate::error::{CliError, READER_GONE};
use crate::output::Output;
use crate::signals;
use crate::source::Source;
use crate::streams::Stream;
use crate::terminal::RawMode;
use clap::{Args, ValueEnum};
use rustix::fs::OFlags;
use smolpack_format::{Manifest, kind_name, verify_artifact};
use smolpack_guest::client::{self, ClientError as AgentError, Input, Session};
use smolpack_guest::protocol::{AGENT_PORT, Bytes, Exec, Exit, Request};
use smolpack_runner::chain::chain;
use smolpack_runner::client::{ClientError, Runner, RunnerProgram};
use smolpack_runner::console::last_lines;
use smolpack_runner::control::{Ended, Launch, OnFull, Start, Started};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a restored machine may take to answer where nobody says.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of the console that are told with a failure.
const CONSOLE_LINES: usize = 30;
/// How long the runner may take to end, or to say why the machine did.
const GRACE: Duration = Duration::from_secs(2);

/// Restore a machine, or boot it cold, and run a command
///
/// Without a command the image's entrypoint and cmd run. The exit status is the command's, 128 + N
/// where signal N ended it, and 125 for failures of smolpack's own.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct BootArgs {
    /// The `.smolmachine`
    file: PathBuf,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// Set a variable: K=V, or K for this environment's value
    #[arg(short, long, value_name = "K=V")]
    env: Vec<OsString>,
    /// Working folder inside the machine
    #[arg(short, long, value_name = "FOLDER")]
    workdir: Option<String>,
    /// User inside the machine: name or uid, with :group or :gid if wanted
    #[arg(short, long)]
    user: Option<String>,
    /// Boot cold even where there is a snapshot
    #[arg(long, conflicts_with = "require_snapshot")]
    cold: bool,
    /// Fail where the snapshot is missing or does not fit this host
    #[arg(long)]
    require_snapshot: bool,
    /// How long a restored machine may take to answer before it is booted cold [default: as the artifact
    /// says, else 10s]
    #[arg(long, value_name = "TIME", value_parser = restore_timeout, conflicts_with = "cold")]
    restore_timeout: Option<Duration>,
    /// Verify the whole file first; else the snapshot's memory is mapped unchecked, as reading all of it
    /// takes longer than the restore, and everything else is checked as it is used
    #[arg(long)]
    verify: bool,
    /// What a write of the machine does where this host has no room for it
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_full: WhenFull,
    /// Keep the guest's console in this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
}

/// What a write of the machine does where the host has no room for it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WhenFull {
    /// Fail: the machine gets an I/O error
    #[default]
    Error,
    /// Wait until there is room
    Wait,
}

impl From<WhenFull> for OnFull {
    fn from(when: WhenFull) -> Self {
        match when {
            WhenFull::Error => Self::Error,
            WhenFull::Wait => Self::Wait,
        }
    }
}

/// Boots, runs, and gives the exit status.
///
/// # Errors
/// Failures of smolpack's own: the artifact, the host, or a machine that ended too early.
pub fn boot(args: &BootArgs, out: &mut Output) -> Result<u8, CliError> {
    if args.tty && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(CliError::bad_input("-t needs a terminal, and standard input or output is none")
            .hint("leave -t out"));
    }
    signals::catch()?;
    let source = Source::open(&args.file)?;
    let manifest = source.artifact().manifest();
    warn_of_what_is_not_done(manifest, out);
    let command = command(args, manifest)?;

    if args.verify {
        let verified = verify_artifact(source.artifact(), &mut |_, _| {});
        verified.map_err(|e| CliError::artifact(source.path(), &e))?;
    }
    let ran = Machine::start(args, &source, out).and_then(|machine| {
        let status = machine.run(args, command)?;
        machine.end(args.console.is_some())?;
        Ok(status)
    });
    match (ran, source.change()) {
        (ran, None) => ran,
        (Err(error), Some(change)) => {
            Err(CliError::failed(format!("{change}; {}", error.message)).hint("get the file anew"))
        }
        (Ok(status), Some(change)) => {
            Output::complain(format_args!("{change}; what the machine did may be wrong"));
            Ok(status)
        }
    }
}

/// What the artifact asks for and this version does not give.
fn warn_of_what_is_not_done(manifest: &Manifest, out: &Output) {
    let wants = [
        (manifest.network.enabled, "network"),
        (!manifest.ports.is_empty(), "ports"),
        (!manifest.mounts.is_empty(), "volumes"),
        (!manifest.secrets.is_empty(), "secrets"),
        (manifest.ssh_agent, "the SSH agent"),
        (manifest.docker_socket, "the docker socket"),
    ];
    let missing: Vec<&str> = wants.into_iter().filter_map(|(wanted, name)| wanted.then_some(name)).collect();
    if !missing.is_empty() {
        out.note(format_args!("this version boots without {}", missing.join(", ")));
    }
}

/// The words, variables, folder and user of the command.
fn command(args: &BootArgs, manifest: &Manifest) -> Result<Exec, CliError> {
    let argv: Vec<Bytes> = if args.command.is_empty() {
        [manifest.entrypoint.as_slice(), manifest.cmd.as_slice()]
            .concat()
            .into_iter()
            .map(Bytes::from)
            .collect()
    } else {
        args.command.iter().map(|word| word.as_bytes().into()).collect()
    };
    if argv.is_empty() {
        return Err(
            CliError::bad_input("the machine has no entrypoint and no cmd").hint("give a command after --")
        );
    }
    let mut env: Vec<Bytes> = manifest.env.iter().map(|pair| pair.as_str().into()).collect();
    env.extend(manifest.env_from_host.iter().filter_map(|name| from_host(name.as_ref())));
    for pair in &args.env {
        let has_value = pair.as_bytes().contains(&b'=');
        env.extend(if has_value { Some(pair.as_bytes().into()) } else { from_host(pair) });
    }
    Ok(Exec {
        argv,
        env,
        workdir: args.workdir.clone().or_else(|| manifest.workdir.clone()),
        user: args.user.clone().or_else(|| manifest.user.clone()),
        terminal: if args.tty { Some(crate::terminal::size()?) } else { None },
        term: std::env::var("TERM").ok(),
    })
}

fn from_host(name: &OsStr) -> Option<Bytes> {
    std::env::var_os(name).map(|value| [name.as_bytes(), b"=", value.as_bytes()].concat().into())
}

/// The console's log: where the user wants it, or a file without a name.
fn console(args: &BootArgs) -> Result<File, CliError> {
    let Some(path) = &args.console else {
        return tempfile::tempfile()
            .map_err(|e| CliError::failed(format!("cannot make a temporary file: {e}")));
    };
    let failed = |e: io::Error| CliError::failed(format!("cannot open {}: {e}", path.display()));
    // A pipe nobody reads must not be waited for, and may be told apart only when it is open.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let log = OpenOptions::new().create(true).append(true).read(true).custom_flags(flags).open(path);
    let log = log.map_err(failed)?;
    match log.metadata().map_err(failed)?.file_type() {
        kind if kind.is_file() || kind.is_char_device() => Ok(log),
        kind => Err(CliError::bad_input(format!(
            "the console cannot be kept in {}: it is {}",
            path.display(),
            kind_name(kind)
        ))
        .hint("name a file or a terminal")),
    }
}

fn restore_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err("give some time, such as 10s".to_owned()),
        Err(e) => Err(format!("{e}; give a time such as 10s or 500ms")),
    }
}

fn report(started: &Started, took: Duration, out: &Output) {
    match (&started.cold_reason, started.restored) {
        (_, true) => out.note(format_args!("restored in {:.0} ms", took.as_secs_f64() * 1000.0)),
        (Some(reason), _) => out.note(format_args!("booting cold: {reason}")),
        (None, _) => out.note("booting cold, as asked"),
    }
    for (step, micros) in &started.timings_us {
        out.detail(format_args!("{micros:>8} us  {step}"));
    }
}

/// A running machine.
struct Machine {
    runner: Runner,
    console: File,
}

impl Machine {
    /// A machine that is up: restored, where that brings up one that answers in time, else booted cold.
    fn start(args: &BootArgs, source: &Source, out: &Output) -> Result<Self, CliError> {
        let began = Instant::now();
        let start = match (args.cold, args.require_snapshot) {
            (true, _) => Start::Cold,
            (_, true) => Start::Restore,
            _ => Start::Any,
        };
        let (machine, mut started) = Self::launch(args, source, start)?;
        let took = began.elapsed();
        let silent =
            if started.restored { machine.is_silent(args, source.artifact().manifest())? } else { None };
        let Some(reason) = silent else {
            report(&started, took, out);
            return Ok(machine);
        };
        if args.require_snapshot {
            let error = CliError::failed(reason + &last_lines(&machine.console, CONSOLE_LINES));
            return Err(error.hint("let it boot cold, or give it longer with --restore-timeout"));
        }
        drop(machine);
        let (machine, cold) = Self::launch(args, source, Start::Cold)?;
        started = Started { cold_reason: Some(format!("{reason}.")), ..cold };
        report(&started, took, out);
        Ok(machine)
    }

    fn launch(args: &BootArgs, source: &Source, start: Start) -> Result<(Self, Started), CliError> {
        let console = console(args)?;
        let machine = Self { runner: RunnerProgram::Embedded(embedded::RUNNER).spawn()?, console };
        let launch =
            Launch { on_full: args.on_full.into(), ..Launch::new(start, source.artifact().manifest()) };
        let started = machine.runner.launch(launch, source.file(), &machine.console)?;
        Ok((machine, started))
    }

    /// Why a restored machine does not answer in the time it has. Nothing has been asked of it before.
    fn is_silent(&self, args: &BootArgs, manifest: &Manifest) -> Result<Option<String>, CliError> {
        let told = manifest.snapshot.as_ref().and_then(|snapshot| snapshot.restore_timeout_ms);
        let timeout = args.restore_timeout.or(told.map(Duration::from_millis)).unwrap_or(RESTORE_TIMEOUT);
        let stream = match self.runner.connect(AGENT_PORT) {
            Err(ClientError::Talk(e)) => Err(AgentError::Stream(e)),
            stream => Ok(stream?),
        };
        let answer = stream.and_then(|stream| {
            stream.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
            client::ask(stream, &Request::Ping)
        });
        let Err(error) = answer else { return Ok(None) };
        let why = match error {
            AgentError::Stream(e) if e.kind() == io::ErrorKind::WouldBlock => {
                format!("it did not answer within {}", humantime::format_duration(timeout))
            }
            error => self.why_ended(&error),
        };
        Ok(Some(format!("The restored machine did not come up: {why}")))
    }

    /// Runs the command to its end.
    fn run(&self, args: &BootArgs, command: Exec) -> Result<u8, CliError> {
        let shared = |e: io::Error| CliError::failed(format!("cannot share the standard streams: {e}"));
        let mut stdout = Stream::of(io::stdout()).map_err(shared)?;
        let mut stderr = Stream::of(io::stderr()).map_err(shared)?;
        let stdin = Stream::of(io::stdin()).map_err(shared)?;
        let stream = self.runner.connect(AGENT_PORT)?;
        let session = Session::exec(stream, command).map_err(|e| self.ended(&e))?;
        let raw = if args.tty {
            signals::pass_resizes_on(session.input())?;
            Some(RawMode::enter()?)
        } else {
            None
        };
        if args.interactive || args.tty {
            feed(stdin, session.input())?;
        } else {
            // A machine that is gone already shows when its output is read.
            let _ = session.input().close();
        }
        let exit = session.relay(&mut stdout, &mut stderr);
        drop(raw);
        match exit {
            Ok(Exit::Code(code)) => Ok(code),
            Ok(Exit::Signal(signal)) => Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
            Err(AgentError::Failed(failure)) if failure.exit_code != 0 => {
                Output::complain(&failure.message);
                Ok(failure.exit_code)
            }
            Err(AgentError::Output { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
                Ok(READER_GONE)
            }
            Err(e) => Err(self.ended(&e)),
        }
    }

    /// Why there is no exit status. Where the stream broke the runner says why, and the console's last lines.
    fn ended(&self, error: &AgentError) -> CliError {
        if !matches!(error, AgentError::Stream(_)) {
            return CliError::failed(chain(error));
        }
        CliError::failed(self.why_ended(error) + &last_lines(&self.console, CONSOLE_LINES))
    }

    /// Why the stream to the agent broke.
    fn why_ended(&self, error: &AgentError) -> String {
        match self.runner.ended_within(GRACE) {
            Ok(None) => format!("the machine runs, but its agent is gone: {}", chain(error)),
            Ok(Some(Ended::PowerOff)) => "the machine switched itself off".to_owned(),
            Ok(Some(Ended::Reset)) => "the machine reset; its kernel may have crashed".to_owned(),
            Ok(Some(Ended::Killed)) => "the machine was stopped".to_owned(),
            Err(ClientError::Talk(_)) => chain(error),
            Err(e) => chain(&e),
        }
    }

    /// Ends the machine after its command; the console's log is complete then, where it is kept.
    fn end(self, keeps_console: bool) -> Result<(), CliError> {
        if keeps_console {
            self.runner.kill()?;
            if self.runner.ended_within(GRACE)?.is_none() {
                return Err(CliError::failed(
                    "the runner does not end, and the console's log is not complete",
                ));
            }
        }
        // Nobody needs to wait while the kernel frees the guest's memory.
        self.runner.abandon();
        Ok(())
    }
}

/// Passes standard input on, in a thread that ends with the process: a read cannot be called back.
fn feed(mut stdin: Stream, input: Input) -> Result<(), CliError> {
    let pass_on = move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = match stdin.read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    Output::complain(format_args!("cannot read standard input: {e}"));
                    0
                }
                Ok(read) => read,
            };
            // Where the machine or the command is gone shows when its output is read.
            let passed_on = if read == 0 { input.close() } else { input.data(&buffer[..read]) };
            if read == 0 || passed_on.is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("input".into())
        .spawn(pass_on)
        .map(drop)
        .map_err(|e| CliError::failed(format!("cannot start a thread: {e}")))
}

impl From<ClientError> for CliError {
    fn from(e: ClientError) -> Self {
        let error = Self::failed(chain(&e));
        match e.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
