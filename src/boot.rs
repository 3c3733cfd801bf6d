//! `smolpack boot`: a machine from an artifact, for as long as one command.

use crate::embedded;
use crate::error::CliError;
use crate::output::Output;
use crate::signals::Signals;
use crate::terminal::RawMode;
use clap::Args;
use smolpack_format::{Artifact, Manifest};
use smolpack_guest::client::{ClientError as AgentError, Input, Session};
use smolpack_guest::protocol::{AGENT_PORT, Exec, Exit};
use smolpack_runner::chain::chain;
use smolpack_runner::client::{ClientError, Runner, RunnerProgram};
use smolpack_runner::console::last_lines;
use smolpack_runner::control::{Ended, Launch, Start, Started};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Instant;

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
    command: Vec<String>,
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// Set a variable: K=V, or K for this environment's value
    #[arg(short, long, value_name = "K=V")]
    env: Vec<String>,
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
    /// Keep the guest's console in this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
}

/// Boots, runs, and gives the exit status.
///
/// # Errors
/// Failures of smolpack's own: the artifact, the host, or a machine that ended too early.
pub fn boot(args: &BootArgs, out: &mut Output) -> Result<u8, CliError> {
    let began = Instant::now();
    if args.tty && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(CliError::bad_input("-t needs a terminal, and standard input or output is none")
            .hint("leave -t out"));
    }
    let signals = Signals::catch()?;
    let unreadable = |e: io::Error| CliError::failed(format!("cannot open {}: {e}", args.file.display()));
    let file = File::open(&args.file).map_err(unreadable)?;
    let artifact = Artifact::from_file(file.try_clone().map_err(unreadable)?)
        .map_err(|e| CliError::artifact(&args.file, &e))?;
    let manifest = artifact.manifest();
    warn_of_what_is_not_done(manifest, out);
    let command = command(args, manifest)?;

    let console = console(args)?;
    let machine = Machine { runner: RunnerProgram::Embedded(embedded::RUNNER).spawn()?, console };
    let started = machine.launch(args, manifest, &file)?;
    report(&started, began, out);
    let status = machine.run(args, command, &signals)?;
    // The command has ended: nobody needs to wait while the kernel frees the guest's memory.
    machine.runner.abandon();
    Ok(status)
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
    let argv = if args.command.is_empty() {
        [manifest.entrypoint.as_slice(), manifest.cmd.as_slice()].concat()
    } else {
        args.command.clone()
    };
    if argv.is_empty() {
        return Err(
            CliError::bad_input("the machine has no entrypoint and no cmd").hint("give a command after --")
        );
    }
    let mut env = manifest.env.clone();
    for name in &manifest.env_from_host {
        env.extend(from_host(name));
    }
    for pair in &args.env {
        env.extend(if pair.contains('=') { Some(pair.clone()) } else { from_host(pair) });
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

fn from_host(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| format!("{name}={value}"))
}

/// The console's log: a file of the user's, or one without a name.
fn console(args: &BootArgs) -> Result<File, CliError> {
    match &args.console {
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)
            .map_err(|e| CliError::failed(format!("cannot open {}: {e}", path.display()))),
        None => {
            tempfile::tempfile().map_err(|e| CliError::failed(format!("cannot make a temporary file: {e}")))
        }
    }
}

fn report(started: &Started, began: Instant, out: &Output) {
    let took = began.elapsed().as_secs_f64() * 1000.0;
    match (&started.cold_reason, started.restored) {
        (_, true) => out.note(format_args!("restored in {took:.0} ms")),
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
    fn launch(&self, args: &BootArgs, manifest: &Manifest, file: &File) -> Result<Started, CliError> {
        let start = match (args.cold, args.require_snapshot) {
            (true, _) => Start::Cold,
            (_, true) => Start::Restore,
            _ => Start::Any,
        };
        Ok(self.runner.launch(Launch::new(start, manifest), file, &self.console)?)
    }

    /// Runs the command to its end. A signal to this program ends the machine, and with it the stream.
    fn run(&self, args: &BootArgs, command: Exec, signals: &Signals) -> Result<u8, CliError> {
        let stream = self.runner.connect(AGENT_PORT)?;
        let control =
            stream.try_clone().map_err(|e| CliError::failed(format!("cannot watch the stream: {e}")))?;
        let session = Session::exec(stream, command).map_err(|e| self.ended(&AgentError::from(e)))?;
        let raw = if args.tty { Some(RawMode::enter()?) } else { None };
        feed(session.input(), args.interactive || args.tty);
        signals.watch(control, args.tty.then(|| session.input()))?;
        let exit = session.wait(&mut io::stdout().lock(), &mut io::stderr().lock());
        drop(raw);
        match (signals.received(), exit) {
            (Some(status), _) => Ok(status),
            (None, Ok(Exit::Code(code))) => Ok(code),
            (None, Ok(Exit::Signal(signal))) => Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))),
            (None, Err(AgentError::Failed(failure))) if failure.exit_code != 0 => {
                Output::command_failed(&failure.message);
                Ok(failure.exit_code)
            }
            (None, Err(e)) => Err(self.ended(&e)),
        }
    }

    /// Why the stream broke: what the runner says, with the console's last lines.
    fn ended(&self, error: &AgentError) -> CliError {
        let why = match self.runner.wait() {
            Ok(Ended::PowerOff) => "the machine switched itself off before the command ended".to_owned(),
            Ok(Ended::Reset) => {
                "the machine reset before the command ended; its kernel may have crashed".to_owned()
            }
            Ok(Ended::Killed) => "the machine was stopped before the command ended".to_owned(),
            Err(ClientError::Talk(_)) => chain(error),
            Err(e) => chain(&e),
        };
        CliError::failed(why + &last_lines(&self.console, 30))
    }
}

/// Passes standard input on, in a thread that ends with the process: a read cannot be called back.
fn feed(input: Input, wanted: bool) {
    if !wanted {
        // A machine that is gone already shows when its output is read.
        let _ = input.close();
        return;
    }
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    let _ = input.close();
                    return;
                }
                Ok(n) => {
                    if input.data(&buffer[..n]).is_err() {
                        return;
                    }
                }
            }
        }
    });
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
