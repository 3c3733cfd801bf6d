//! The Smolfile's tables.

use super::values::{Cidr, CommandLine, Cpus, Delay, EnvEntry, HostName, Memory, Port, Volume};
use schemars::JsonSchema;
use serde::Deserialize;

/// `[dev]`: for a boot from the Smolfile on the developer's machine; never packed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dev {
    /// As the key of the same name above.
    pub volumes: Vec<Volume>,
    /// As the key of the same name above.
    pub ports: Vec<Port>,
    /// As the key of the same name above.
    pub env: Vec<EnvEntry>,
    /// Run at the first boot.
    pub init: Vec<String>,
    /// As the key of the same name above.
    pub workdir: Option<String>,
    /// As the key of the same name above.
    pub user: Option<String>,
}

/// `[artifact]`, or `[pack]`: overrides for the packed machine.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Artifact {
    /// Virtual CPUs.
    pub cpus: Option<Cpus>,
    /// Guest memory.
    pub memory: Option<Memory>,
    /// Replaces the entrypoint, and clears the command.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the command.
    pub cmd: Option<Vec<String>>,
    /// The image's platform: `linux/amd64`.
    pub oci_platform: Option<String>,
}

/// `[network]`: what the machine may reach. Either allow list switches the network on, for what it names
/// and nothing else.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Host names.
    pub allow_hosts: Vec<HostName>,
    /// Address ranges.
    pub allow_cidrs: Vec<Cidr>,
    /// Address ranges that stay closed, whatever is allowed.
    pub deny_cidrs: Vec<Cidr>,
    /// Private, loopback and link-local ranges stay closed.
    pub block_private: bool,
}

/// `[health]`: how to tell that the machine works.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// The check; status 0 is healthy.
    pub exec: CommandLine,
    /// From one check to the next.
    pub interval: Option<Delay>,
    /// After which a check has failed.
    pub timeout: Option<Delay>,
    /// Failures in a row that make the machine unhealthy.
    pub retries: Option<u32>,
    /// From the start, in which failures do not count.
    pub startup_grace: Option<Delay>,
}

/// `[restart]`: when to start the command again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// On which end.
    pub policy: Policy,
    /// At most so many times.
    pub max_retries: Option<u32>,
    /// Longest pause between two starts.
    pub max_backoff: Option<Delay>,
}

/// On which end a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// On none.
    Never,
    /// On any.
    Always,
    /// When the status is not 0.
    OnFailure,
    /// On any, until a user stops it.
    UnlessStopped,
}

/// `[auth]`: what the host lends.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Forward the host's SSH agent.
    pub ssh_agent: bool,
}

/// `[service]`: what the machine offers; information only.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The machine's port.
    pub port: u16,
    /// The address it listens on.
    pub listen: Option<String>,
    /// What it speaks.
    pub protocol: Option<String>,
}

/// A secret's place on the host: `{ from_env = "NAME" }` or `{ from_file = "PATH" }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Secret {
    /// In this environment variable.
    FromEnv(String),
    /// In this file.
    FromFile(String),
}

/// `[fork]`, or `[branch]`: accepted; every machine can fork.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    /// Changes nothing.
    pub enabled: bool,
}

/// `[[copy]]`: files from beside the Smolfile into the image.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// A file or folder beside the Smolfile.
    pub from: String,
    /// Where it goes in the machine, absolute.
    pub to: String,
    /// `name`, `uid`, `name:group` or `uid:gid`; root where absent.
    pub owner: Option<String>,
    /// Permissions in octal, such as `"0644"`; the file's own where absent.
    pub mode: Option<String>,
}

/// `[build]`: how the machine is built.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Build {
    /// A file of patterns that `[[copy]]` leaves out.
    pub ignore: Option<String>,
    /// Folders of the machine kept from one build to the next.
    pub cache: Vec<String>,
    /// Whether set-up commands have the network.
    pub network: bool,
}

/// `[snapshot]`: what is running when memory is captured.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Snapshot {
    /// `true` needs a snapshot, `false` wants none, `"auto"` takes one where the host can.
    pub enabled: SnapshotEnabled,
    /// Commands run before the capture, so that what they read is in memory.
    pub warm: Vec<String>,
    /// When the machine counts as ready.
    pub ready: Option<Ready>,
    /// How long to wait for that.
    pub timeout: Option<Delay>,
    /// What runs when memory is captured.
    pub start: SnapshotStart,
}

/// Whether a build takes a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(from = "EnabledValue")]
#[schemars(with = "EnabledValue")]
pub enum SnapshotEnabled {
    /// Where the host can.
    #[default]
    Auto,
    /// Or the build fails.
    Required,
    /// Not even where the host can.
    Off,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "`enabled` takes true, false or \"auto\"")]
enum EnabledValue {
    Bool(bool),
    Word(AutoWord),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AutoWord {
    Auto,
}

impl From<EnabledValue> for SnapshotEnabled {
    fn from(value: EnabledValue) -> Self {
        match value {
            EnabledValue::Bool(true) => Self::Required,
            EnabledValue::Bool(false) => Self::Off,
            EnabledValue::Word(AutoWord::Auto) => Self::Auto,
        }
    }
}

/// When a machine counts as ready: `{ exec = … }` or `{ port = N }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// This command succeeds.
    Exec(CommandLine),
    /// Something listens on this TCP port.
    Port(u16),
}

/// What runs when memory is captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotStart {
    /// The agent alone.
    #[default]
    Agent,
    /// The machine's command too.
    Entrypoint,
}

/// `[kernel]`: the guest kernel.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KernelChoice {
    /// A kernel's file, as `smolpack kernel import` takes it.
    pub path: Option<String>,
    /// A kernel at hand: its digest, the first digits of it, or its version.
    pub reference: Option<String>,
    /// Added to the kernel's command line.
    pub cmdline: Option<String>,
}

/// What the snapshot may expect of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuContract {
    /// x86-64-v2: nearly every host.
    #[default]
    Portable,
    /// x86-64-v3.
    V3,
    /// Whatever the building host has.
    Host,
}
