//! Set-up commands: each runs in a machine, over an overlay, and what it changed becomes a layer.
//!
//! A step whose result is kept from an earlier build does not run. The machine is booted for the first step
//! that has to; its disk holds the files as they are by then, those of steps before it included.

mod fingerprint;
mod output;
mod report;
mod secrets;

pub use report::{SetupReport, StepReport};

use smolpack_format::Writer;
use smolpack_guest::client::{self, Session};
use smolpack_guest::protocol::{Difference, Exec, Exit, SETUP_WORD, SetUp};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::machine::{Machine, MachineFailure, MachineOptions};
use super::{BuildError, Request, cold, existing_folder, unnamed};
use crate::image::{self, Changes, Digest, Image, StepCache};
use crate::kernel::Kernel;
use crate::progress::Progress;
use fingerprint::fingerprint;
use output::{Lines, Transcript};
use report::Ingredients;
use secrets::{Mask, Watch, telling};

/// How set-up commands are run.
#[derive(Clone, Debug, Default)]
pub struct SetupOptions {
    /// The secrets that `[build] secrets` names, and their values.
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Whether all steps run, whatever is kept of earlier builds.
    pub fresh: bool,
}

/// Why set-up failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A command did.
    #[error("{place} failed with {status}: {command}{lines}\nits whole output: {}", log.display())]
    Failed {
        /// Which.
        place: String,
        /// The command.
        command: String,
        /// How it ended.
        status: String,
        /// Its last lines, each behind a bar.
        lines: String,
        /// The log.
        log: PathBuf,
    },
    /// There is nothing to run it in.
    #[error("set-up commands need a machine to run in, and none can be booted here: {0}")]
    NoMachine(String),
    /// The machine did not come up, or ended.
    #[error("{place}: {why}{console}")]
    Machine {
        /// Which step it was for.
        place: String,
        /// Why.
        #[source]
        why: MachineFailure,
        /// The last lines of its console, under a heading.
        console: String,
    },
    /// A secret would be on the disk.
    #[error("{place} left the secret {secret} in {file}")]
    Secret {
        /// Which step.
        place: String,
        /// The secret's name.
        secret: String,
        /// Where it was left.
        file: String,
    },
}

/// Runs what has to run of the Smolfile's `init`, and lays all of it on the image. `top` is the highest layer
/// of the image itself; `fresh` runs all steps, whatever is kept of earlier builds.
pub(super) fn run(
    request: &Request<'_>,
    kernel: &Kernel,
    image: &mut Image,
    top: u32,
    fresh: bool,
    progress: &mut dyn Progress,
) -> Result<(), BuildError> {
    let commands = &request.spec.smolfile.init;
    if commands.is_empty() {
        return Ok(());
    }
    if request.spec.smolfile.net {
        progress.note("set-up commands have no network in this version, whatever `net` says");
    }
    let cache = request.images.cache;
    let before = SetupReport::load(cache, request.context)?.unwrap_or_default();
    let mut setup = Setup {
        common: common(request, kernel, image, top)?,
        request,
        kernel,
        fresh,
        steps: StepCache::open(cache),
        before,
        report: SetupReport::default(),
        machine: None,
    };
    let done = setup.all(commands, image, progress);
    // What became of the steps is worth keeping above all where one failed.
    setup.report.save(cache, request.context)?;
    done
}

/// What the results of all steps depend on.
fn common(
    request: &Request<'_>,
    kernel: &Kernel,
    image: &Image,
    top: u32,
) -> Result<Ingredients, BuildError> {
    let machine = cold::describe(request, kernel, image)?;
    let known = image.digest.as_ref().map(|_| top);
    let text = |digest: &Digest| digest.to_string();
    let digest_of = |lines: &[String]| Digest::of(lines.join("\0").as_bytes()).to_string();
    let secrets: Vec<&str> = request.setup.secrets.keys().map(String::as_str).collect();
    let time = request.time(image);
    let ingredients = [
        ("the image", image.digest.as_ref().map_or_else(|| "a folder".to_owned(), text)),
        ("the files that set-up begins with", fingerprint(&image.tree, known)?),
        ("the kernel", kernel.digest().to_owned()),
        ("smolpack", Digest::of(request.agent).to_string()),
        ("the environment", digest_of(&machine.env)),
        ("the working folder", machine.workdir.unwrap_or_default()),
        ("the names of secrets", secrets.join(" ")),
        ("the latest time of files", format!("{}.{:09}", time.seconds, time.nanoseconds)),
    ];
    Ok(ingredients.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

struct Setup<'a> {
    request: &'a Request<'a>,
    kernel: &'a Kernel,
    fresh: bool,
    steps: StepCache,
    common: Ingredients,
    before: SetupReport,
    report: SetupReport,
    /// Booted for a step, and the number of steps it has run.
    machine: Option<(Machine, u32)>,
}

impl Setup<'_> {
    fn all(
        &mut self,
        commands: &[String],
        image: &mut Image,
        progress: &mut dyn Progress,
    ) -> Result<(), BuildError> {
        let mut earlier: Vec<String> = Vec::new();
        for (number, command) in commands.iter().enumerate() {
            let place = format!("set-up step {} of {}", number + 1, commands.len());
            let mut ingredients = self.common.clone();
            ingredients.insert("the command".to_owned(), command.clone());
            ingredients.insert("what earlier steps made".to_owned(), earlier.join(" "));
            let changes = self.step(number, &place, ingredients, image, progress)?;
            let (latest, limits) = (self.request.time(image), self.request.images.limits);
            image::lay_on(image, &changes, latest, limits, &place)?;
            earlier.push(changes.digest.to_string());
        }
        Ok(())
    }

    /// What a step changed, from the cache or by running it.
    fn step(
        &mut self,
        number: usize,
        place: &str,
        ingredients: Ingredients,
        image: &Image,
        progress: &mut dyn Progress,
    ) -> Result<Changes, BuildError> {
        let command = ingredients.get("the command").cloned().unwrap_or_default();
        let key = Digest::of(format!("smolpack set-up 1\n{ingredients:?}").as_bytes());
        let kept = if self.fresh { None } else { self.steps.find(&key)? };
        let why = match (&kept, self.fresh) {
            (Some(_), _) => "nothing that it depends on changed".to_owned(),
            (None, true) => "all steps were asked for".to_owned(),
            (None, false) => self.before.why(number, &ingredients),
        };
        let cached = kept.is_some();
        progress.phase(place, None);
        progress.note(&format!("{place}: {} ({why}): {command}", if cached { "cached" } else { "runs" }));
        let log = self.steps.log_path(&key);
        self.report.steps.push(StepReport { command: command.clone(), cached, why, ingredients, log });
        if let Some(changes) = kept {
            // A machine that runs lacks this step's files.
            self.machine = None;
            return Ok(changes);
        }
        self.run(place, &command, &key, image, progress)
    }

    fn run(
        &mut self,
        place: &str,
        command: &str,
        key: &Digest,
        image: &Image,
        progress: &mut dyn Progress,
    ) -> Result<Changes, BuildError> {
        let (machine, step) = match self.machine.take() {
            Some(running) => running,
            None => (self.boot(place, image, progress)?, 0),
        };
        let failed = |why| SetupError::Machine { place: place.to_owned(), why, console: machine.console() };
        let exec = self.command(command, image)?;
        let secrets = &self.request.setup.secrets;
        let masked = telling(secrets);
        let transcript = RefCell::new(Transcript::new(progress, self.steps.draft()?));
        let handed_over = secrets.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let exit =
            attend(&machine, SetUp { step, command: exec, secrets: handed_over }, &masked, &transcript);
        let transcript = transcript.into_inner();
        let lines = transcript.last_lines();
        if let Some(e) = transcript.failed {
            return Err(e.into());
        }
        let log = self.steps.publish_log(key, transcript.log)?;
        let status = match exit.map_err(failed)? {
            Exit::Code(0) => None,
            Exit::Code(code) => Some(format!("exit status {code}")),
            Exit::Signal(number) => Some(format!("signal {number}")),
        };
        if let Some(status) = status {
            let (place, command) = (place.to_owned(), command.to_owned());
            return Err(SetupError::Failed { place, command, status, lines, log }.into());
        }
        let mut changed = Watch::new(&masked, self.steps.draft()?);
        let time = self.request.time(image);
        let difference = Difference { step, latest: (time.seconds, time.nanoseconds) };
        let stream = machine.connect().map_err(failed)?;
        client::difference(stream, difference, &mut changed).map_err(|e| failed(machine.explain(e)))?;
        if let Some((secret, at)) = changed.found {
            let file = changed.into_inner().file_at(at).unwrap_or_else(|| "what it changed".to_owned());
            return Err(
                SetupError::Secret { place: place.to_owned(), secret: secret.to_owned(), file }.into()
            );
        }
        let changes = self.steps.publish(key, changed.into_inner())?;
        self.machine = Some((machine, step + 1));
        Ok(changes)
    }

    /// Boots a machine over the files as they are.
    fn boot(&self, place: &str, image: &Image, progress: &mut dyn Progress) -> Result<Machine, BuildError> {
        let options: &MachineOptions<'_> =
            self.request.machines.as_ref().map_err(|why| SetupError::NoMachine(why.clone()))?;
        let folder = existing_folder(self.request.output)?;
        let lower = Image {
            reference: image.reference.clone(),
            digest: image.digest.clone(),
            config: image.config.clone(),
            tree: image.tree.below(b"lower"),
        };
        let disk = unnamed(folder)?;
        cold::write(Writer::to_file(disk.try_clone()?)?, self.request, self.kernel, &lower, progress)?;
        progress.phase(place, None);
        let failed = |why, console| SetupError::Machine { place: place.to_owned(), why, console };
        let machine = Machine::new(options).map_err(|why| failed(why, String::new()))?;
        machine.boot(&disk, SETUP_WORD).map_err(|why| failed(why, machine.console()))?;
        Ok(machine)
    }

    /// The command as the agent runs it: as root, with the variables that are the machine's own.
    fn command(&self, command: &str, image: &Image) -> Result<Exec, BuildError> {
        let machine = cold::describe(self.request, self.kernel, image)?;
        let mut env = machine.env;
        if let Some(time) = self.request.created.or(image.config.created) {
            env.push(format!("SOURCE_DATE_EPOCH={}", time.seconds));
        }
        let argv = ["/bin/sh", "-c", command].map(Into::into).into();
        let env = env.into_iter().map(Into::into).collect();
        Ok(Exec { argv, env, workdir: machine.workdir, ..Exec::default() })
    }
}

/// Runs a command to its end, its output masked and passed on.
fn attend(
    machine: &Machine,
    command: SetUp,
    masked: &[(&str, &[u8])],
    transcript: &RefCell<Transcript<'_>>,
) -> Result<Exit, MachineFailure> {
    let session = Session::set_up(machine.connect()?, command).map_err(|e| machine.explain(e))?;
    // A machine that is gone already shows when the output is read.
    let _ = session.input().close();
    let mut stdout = Mask::new(masked, Lines::new(transcript));
    let mut stderr = Mask::new(masked, Lines::new(transcript));
    let exit = session.wait(&mut stdout, &mut stderr).map_err(|e| machine.explain(e));
    stdout.finish()?;
    stderr.finish()?;
    exit
}
