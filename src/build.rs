//! `smolpack build`: an artifact from a Smolfile and an image.

use crate::error::CliError;
use crate::inspect::SectionLine;
use crate::output::Output;
use crate::{embedded, inspect, paths, plan::plan, publish, secrets};
use clap::Args;
use serde::Serialize;
use smolpack_builder::build::{BuildError, Built, MachineOptions, Request, SetupOptions, build as run};
use smolpack_builder::image::{self, Credentials, ImageSource, LoadOptions, Platform, RegistryAccess};
use smolpack_builder::kernel::KernelStore;
use smolpack_builder::machine::{MachineSpec, Overrides};
use smolpack_builder::smolfile::{Cpus, DiskSize, Memory, Smolfile, SnapshotEnabled};
use smolpack_builder::tree::Timestamp;
use smolpack_format::{Artifact, folder_of, manifest, read_text_file};
use smolpack_runner::chain::chain;
use smolpack_runner::client::RunnerProgram;
use smolpack_runner::host::KvmStatus;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No file of logins is longer, bytes.
const LOGINS_MAX: u64 = 16 << 20;
/// How long a new machine's agent may take to answer. Under emulation a boot takes seconds.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);

/// Build an artifact from a Smolfile and an image
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct BuildArgs {
    /// The Smolfile, or the folder it is in
    #[arg(default_value = ".")]
    context: PathBuf,
    /// Where the artifact goes [default: the folder's name, with .smolmachine]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The image, instead of the Smolfile's; `-` reads an archive from standard input
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Virtual CPUs, 1 to 32
    #[arg(long, value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Guest memory: MiB, or a size such as 1GiB
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| Memory::parse(text))]
    memory: Option<Memory>,
    /// Room on the root disk: GiB, or a size such as 500MiB
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| DiskSize::parse(text))]
    disk: Option<DiskSize>,
    /// Fail where no snapshot can be taken
    #[arg(long, conflicts_with = "no_snapshot")]
    require_snapshot: bool,
    /// Take no snapshot: the machine boots cold
    #[arg(long)]
    no_snapshot: bool,
    /// Build twice, and fail where the two differ; a snapshot is not part of it
    #[arg(long)]
    verify_reproducible: bool,
    /// Run all set-up commands, whatever is kept of earlier builds
    #[arg(long)]
    no_cache: bool,
    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with_all = ["iidfile", "metadata_file"])]
    dry_run: bool,
    /// Write the artifact's digest to this file
    #[arg(long, value_name = "FILE")]
    iidfile: Option<PathBuf>,
    /// Write digests, sizes and times to this file, as JSON
    #[arg(long, value_name = "FILE")]
    metadata_file: Option<PathBuf>,
    /// A registry, HOST:PORT, to speak to without TLS
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<String>,
    /// Trust this certificate authority, a PEM file, beside the system's
    #[arg(long, value_name = "FILE")]
    ca: Vec<PathBuf>,
}

fn cpus(text: &str) -> Result<Cpus, String> {
    match text.parse() {
        Ok(cpus @ 1..=32) => Ok(Cpus(cpus)),
        _ => Err("give 1 to 32".to_owned()),
    }
}

/// What was built.
#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    digest: String,
    bytes: u64,
    snapshot: bool,
    image: Option<manifest::Image>,
    kernel: Option<manifest::Kernel>,
    sections: Vec<SectionLine>,
    phases: Vec<Phase>,
}

#[derive(Debug, Serialize)]
struct Phase {
    name: String,
    seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.snapshot { "with its memory" } else { "boots cold" };
        let mib = self.bytes as f64 / f64::from(1 << 20);
        write!(f, "{}  {}  {mib:.1} MiB, {how}", self.file.display(), self.digest)
    }
}

/// Builds it and says what was built.
///
/// # Errors
/// Says what failed, on what, and what to do; the output is then as it was.
pub fn build(args: &BuildArgs, out: &mut Output) -> Result<(), CliError> {
    let (path, context) = smolfile_at(&args.context)?;
    let smolfile = Smolfile::load(&path).map_err(|e| CliError::smolfile(&e, Output::colour()))?;
    let source = image_source(args, &smolfile, &context)?;
    let overrides = Overrides { cpus: args.cpus, memory: args.memory, disk: args.disk };
    let output = args.output.clone().map_or_else(|| default_output(&context), Ok)?;
    let runner = RunnerProgram::Embedded(embedded::RUNNER);
    let kvm = KvmStatus::probe();
    let snapshot = wants_snapshot(args, smolfile.snapshot.enabled, kvm, out)?;
    let timeout = smolfile.snapshot.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0);
    let machines = if kvm.runs_linux() {
        Ok(MachineOptions { runner: &runner, timeout })
    } else {
        Err(kvm.describe().to_owned())
    };
    let setup = SetupOptions { secrets: secrets::for_setup(&smolfile)?, fresh: args.no_cache };
    let kernels = KernelStore::open(&paths::data()?)?;
    let registry = registry(args)?;
    let cache = paths::cache()?;
    let images = LoadOptions {
        platform: platform(&smolfile)?,
        cache: &cache,
        registry: &registry,
        limits: image::Limits::default(),
    };
    let request = Request {
        spec: &MachineSpec { smolfile, overrides },
        context: &context,
        source: &source,
        images: &images,
        kernels: &kernels,
        agent: embedded::GUEST,
        created: source_date_epoch()?,
        output: &output,
        verify: args.verify_reproducible,
        setup: &setup,
        machines,
        snapshot,
    };
    if args.dry_run {
        return out.data(&plan(&request)?);
    }
    let mut bars = out.progress();
    let Built { digest, bytes } = run(&request, &mut bars)?;
    let phases = bars.finish().into_iter();
    let artifact = Artifact::open(&output).map_err(|e| CliError::artifact(&output, &e))?;
    let report = Report {
        digest: digest.to_string(),
        bytes,
        snapshot,
        image: artifact.manifest().image.clone(),
        kernel: artifact.manifest().kernel.clone(),
        sections: inspect::sections(&artifact),
        phases: phases.map(|(name, took)| Phase { name, seconds: took.as_secs_f64() }).collect(),
        file: output,
    };
    hand_out(args, &report)?;
    out.data(&report)
}

/// Writes the files that other programs go on from.
fn hand_out(args: &BuildArgs, report: &Report) -> Result<(), CliError> {
    let put = |path: &Option<PathBuf>, text: &str| match path {
        Some(path) => publish::line(path, text)
            .map_err(|e| CliError::failed(format!("cannot write {}: {e}", path.display()))),
        None => Ok(()),
    };
    put(&args.iidfile, &report.digest)?;
    let json = serde_json::to_string_pretty(report);
    put(&args.metadata_file, &json.map_err(|e| CliError::failed(format!("cannot express as JSON: {e}")))?)
}

/// The Smolfile, and the folder its paths are relative to.
pub(crate) fn smolfile_at(context: &Path) -> Result<(PathBuf, PathBuf), CliError> {
    if context.is_dir() {
        let file = context.join("Smolfile");
        if file.is_file() {
            return Ok((file, context.to_owned()));
        }
        return Err(CliError::bad_input(format!("there is no Smolfile in {}", context.display()))
            .hint("name the folder of one, or the file itself"));
    }
    Ok((context.to_owned(), folder_of(context).to_owned()))
}

/// A flag's path is the user's, relative to where they are; a Smolfile's is relative to it.
fn image_source(args: &BuildArgs, smolfile: &Smolfile, context: &Path) -> Result<ImageSource, CliError> {
    if args.verify_reproducible && args.image.as_deref() == Some("-") {
        return Err(CliError::bad_input("an image on standard input can be read once, not twice")
            .hint("write it to a file for --verify-reproducible"));
    }
    let (text, base) = match (&args.image, &smolfile.image) {
        (Some(flag), _) => (flag, Path::new(".")),
        (None, Some(key)) => (key, context),
        (None, None) => {
            return Err(CliError::bad_input("the Smolfile names no image")
                .hint("image = \"registry/name:tag\" in it, or --image"));
        }
    };
    image::detect(text, base).map_err(|e| BuildError::from(e).into())
}

fn default_output(context: &Path) -> Result<PathBuf, CliError> {
    let folder = context.canonicalize().ok();
    let name = folder.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    name.map(|name| PathBuf::from(format!("{name}.smolmachine"))).ok_or_else(|| {
        CliError::bad_input("the Smolfile's folder has no name to call the artifact by").hint("-o FILE")
    })
}

fn wants_snapshot(
    args: &BuildArgs,
    enabled: SnapshotEnabled,
    kvm: KvmStatus,
    out: &Output,
) -> Result<bool, CliError> {
    let required = args.require_snapshot || (enabled == SnapshotEnabled::Required && !args.no_snapshot);
    if !required && (args.no_snapshot || enabled == SnapshotEnabled::Off) {
        return Ok(false);
    }
    if kvm.runs_linux() {
        return Ok(true);
    }
    if required {
        let error = CliError::failed(format!("no snapshot can be taken: {}", kvm.describe()));
        return Err(match kvm.remedy() {
            Some(remedy) => error.hint(remedy),
            None => error,
        });
    }
    out.note(format_args!("no snapshot: {}; the artifact will boot cold", kvm.describe()));
    Ok(false)
}

fn platform(smolfile: &Smolfile) -> Result<Platform, CliError> {
    let wanted = smolfile.artifact.oci_platform.as_deref().unwrap_or("linux/amd64");
    let platform: Platform = wanted.parse().map_err(CliError::bad_input)?;
    if platform.os == "linux" && platform.architecture == "amd64" {
        return Ok(platform);
    }
    Err(CliError::bad_input(format!("machines for {platform} cannot be built by this version"))
        .hint("oci_platform = \"linux/amd64\""))
}

/// Logins as docker keeps them, where it does.
fn registry(args: &BuildArgs) -> Result<RegistryAccess, CliError> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let file =
        folder.or_else(|| paths::home().map(|home| home.join(".docker"))).map(|dir| dir.join("config.json"));
    let credentials = match file.map(|file| (read_text_file(&file, LOGINS_MAX), file)) {
        Some((Ok(bytes), file)) => Credentials::from_docker_config(&bytes, &file.display().to_string())?,
        _ => Credentials::default(),
    };
    Ok(RegistryAccess {
        credentials,
        plain_http: args.plain_http.clone(),
        authorities: args.ca.clone(),
        retry: image::Retry::default(),
    })
}

/// `SOURCE_DATE_EPOCH`, as the reproducible builds project defines it.
fn source_date_epoch() -> Result<Option<Timestamp>, CliError> {
    let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = value.to_str().and_then(|text| text.parse().ok());
    let seconds = seconds.ok_or_else(|| {
        CliError::bad_input(format!(
            "SOURCE_DATE_EPOCH is {}; it must be a number of seconds",
            value.display()
        ))
    })?;
    Ok(Some(Timestamp { seconds, nanoseconds: 0 }))
}

impl From<BuildError> for CliError {
    fn from(e: BuildError) -> Self {
        let text = chain(&e);
        let error = if e.is_bad_input() { Self::bad_input(text) } else { Self::failed(text) };
        match e.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
