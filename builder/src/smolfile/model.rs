//! What a Smolfile can say, as types. Their documentation is the text of the JSON Schema.

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::compat;
use super::values::{
    Cidr, CommandLine, ContextPath, Cpus, Delay, DiskSize, EnvEntry, EnvName, FileMode, GuestPath, HostName,
    HostPath, ImageName, KernelCmdline, KernelReference, Memory, OciPlatform, Port, Secret, ServiceProtocol,
    UserSpec, Volume,
};

/// A machine, as its user describes it: what to build it from, what runs in it, what it may use.
///
/// Every key may be left out. Relative paths are relative to the Smolfile's folder.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields, transform = compat::add_to_schema)]
pub struct Smolfile {
    /// What the root disk is made from: a registry reference, or the path of an OCI layout, an image
    /// archive, a root folder or a root tar. Without it the machine is the minimal image.
    #[schemars(with = "ImageName")]
    pub image: Option<String>,
    /// The program to run and its first arguments, in place of the image's. The image's `cmd` then
    /// no longer counts. An empty list is the same as none.
    #[schemars(with = "Vec<String>")]
    pub entrypoint: Option<Vec<String>>,
    /// Arguments that follow `entrypoint`, in place of the image's. An empty list is the same as none.
    #[schemars(with = "Vec<String>")]
    pub cmd: Option<Vec<String>>,
    /// The environment, `NAME=VALUE`, added to the image's. A bare `NAME` takes the host's value and
    /// is kept as a reference.
    pub env: Vec<EnvEntry>,
    /// The folder commands start in, in place of the image's.
    #[schemars(with = "GuestPath")]
    pub workdir: Option<String>,
    /// Who runs commands, in place of the image's: `name`, `uid` or `uid:gid`. Set-up commands always run as
    /// root.
    #[schemars(with = "UserSpec")]
    pub user: Option<String>,

    /// How many virtual CPUs the machine has.
    #[schemars(with = "Cpus", extend("default" = 2))]
    pub cpus: Option<Cpus>,
    /// How much memory the machine has: MiB as a number, or a size such as "2GiB".
    #[schemars(with = "Memory", extend("default" = 512))]
    pub memory: Option<Memory>,
    /// The size of the root disk: GiB as a number, or a size such as "512MiB".
    #[schemars(with = "DiskSize")]
    pub disk: Option<DiskSize>,
    /// Room on the root disk, as `disk`; of the three the largest counts.
    #[schemars(with = "DiskSize")]
    pub storage: Option<DiskSize>,
    /// Room on the root disk, as `disk`; of the three the largest counts.
    #[schemars(with = "DiskSize")]
    pub overlay: Option<DiskSize>,
    /// What the guest may expect of the CPU, and a host must have to restore a snapshot.
    #[schemars(extend("default" = "portable"))]
    pub cpu: CpuContract,

    /// Outbound network. Off unless this is true or `[network]` allows something.
    #[schemars(extend("default" = false))]
    pub net: bool,
    /// Ports of the host that lead into the guest.
    pub ports: Vec<Port>,
    /// Folders and files of the host, seen in the guest.
    pub volumes: Vec<Volume>,
    /// Set-up commands: run once, when the machine is built, as root, by `/bin/sh -c`.
    pub init: Vec<String>,
    /// Publish the guest's `/var/run/docker.sock` as a socket on the host.
    #[schemars(extend("default" = false))]
    pub docker_socket: bool,

    /// What differs on the developer's machine; never packed.
    pub dev: Dev,
    /// What differs in the packed artifact. `pack` is another name for it.
    pub artifact: Artifact,
    /// What the guest may reach.
    pub network: Network,
    /// How to tell that the machine works.
    #[schemars(with = "Health")]
    pub health: Option<Health>,
    /// When to start the command again.
    #[schemars(with = "Restart")]
    pub restart: Option<Restart>,
    /// What of the host's authority is lent to the guest.
    pub auth: Auth,
    /// What the machine offers; information for other tools.
    #[schemars(with = "Service")]
    pub service: Option<Service>,
    /// Secrets, by the name of the variable the guest sees: where the booting host finds each. The
    /// values are never in the file, on the disk or in a snapshot.
    pub secrets: BTreeMap<String, Secret>,

    /// Files of the build context to put on the root disk.
    pub copy: Vec<Copy>,
    /// How the machine is built.
    pub build: Build,
    /// What is running when memory is captured.
    pub snapshot: Snapshot,
    /// The guest's kernel.
    pub kernel: KernelChoice,
}

/// `[dev]`: applied when a machine boots from the Smolfile itself.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Dev {
    /// More volumes.
    pub volumes: Vec<Volume>,
    /// More ports.
    pub ports: Vec<Port>,
    /// More environment; wins over the file's.
    pub env: Vec<EnvEntry>,
    /// More set-up commands, run at the first boot.
    pub init: Vec<String>,
    /// Another folder for commands.
    #[schemars(with = "GuestPath")]
    pub workdir: Option<String>,
    /// Another user for commands.
    #[schemars(with = "UserSpec")]
    pub user: Option<String>,
}

/// `[artifact]`: applied when the machine is packed.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Artifact {
    /// In place of the file's `cpus`.
    #[schemars(with = "Cpus")]
    pub cpus: Option<Cpus>,
    /// In place of the file's `memory`.
    #[schemars(with = "Memory")]
    pub memory: Option<Memory>,
    /// In place of the file's `entrypoint`.
    #[schemars(with = "Vec<String>")]
    pub entrypoint: Option<Vec<String>>,
    /// In place of the file's `cmd`.
    #[schemars(with = "Vec<String>")]
    pub cmd: Option<Vec<String>>,
    /// The platform to take out of the image.
    #[schemars(with = "OciPlatform")]
    pub oci_platform: Option<String>,
}

/// `[network]`: an allow list turns the network on, and nothing else may be reached then. The policy
/// travels in the artifact.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Network {
    /// Hosts that may be reached, by name.
    pub allow_hosts: Vec<HostName>,
    /// Addresses that may be reached.
    pub allow_cidrs: Vec<Cidr>,
    /// Addresses that may not be reached, even where allowed above.
    pub deny_cidrs: Vec<Cidr>,
    /// Refuse private, loopback and link-local addresses.
    #[schemars(extend("default" = false))]
    pub block_private: bool,
}

/// `[health]`: a command that is run in the guest from time to time.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields, transform = compat::none_required)]
pub struct Health {
    /// The command; status 0 is healthy. Without it nothing is checked.
    pub exec: CommandLine,
    /// Time from one check to the next.
    #[schemars(with = "Delay")]
    pub interval: Option<Delay>,
    /// Time after which a check has failed.
    #[schemars(with = "Delay")]
    pub timeout: Option<Delay>,
    /// How many failures in a row make the machine unhealthy; at least 1.
    #[schemars(with = "u32", range(min = 1))]
    pub retries: Option<u32>,
    /// Time after the start in which failures do not count.
    #[schemars(with = "Delay")]
    pub startup_grace: Option<Delay>,
}

/// `[restart]`: what happens when the command ends.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Restart {
    /// On which ends the command is started again.
    #[schemars(extend("default" = "never"))]
    pub policy: Policy,
    /// How often at most.
    #[schemars(with = "u32")]
    pub max_retries: Option<u32>,
    /// The longest pause between two starts.
    #[schemars(with = "Delay")]
    pub max_backoff: Option<Delay>,
}

/// On which ends a command is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "kebab-case")]
pub enum Policy {
    /// On none.
    #[default]
    Never,
    /// On any.
    Always,
    /// When the status is not 0.
    OnFailure,
    /// On any, until a user stops the machine.
    UnlessStopped,
}

/// `[auth]`: what of the host's authority is lent to the guest.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Auth {
    /// Forward the socket of the host's SSH agent.
    #[schemars(extend("default" = false))]
    pub ssh_agent: bool,
}

/// `[service]`: information for other tools.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields, transform = compat::add_service_listen)]
pub struct Service {
    /// The guest's port. A number under `listen` is the same.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// The address it listens on.
    #[schemars(skip)]
    pub listen: Option<String>,
    /// What it speaks, such as `http`.
    #[schemars(with = "ServiceProtocol")]
    pub protocol: Option<String>,
}

/// `[[copy]]`: a file or folder of the build context, put on the root disk.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Copy {
    /// In the build context.
    #[schemars(with = "ContextPath")]
    pub from: String,
    /// In the guest.
    #[schemars(with = "GuestPath")]
    pub to: String,
    /// Who owns it. Without it: root.
    #[schemars(with = "UserSpec")]
    pub owner: Option<String>,
    /// Its permissions, in octal, such as "0755". Without it: those of the source.
    #[schemars(with = "FileMode")]
    pub mode: Option<String>,
}

/// `[build]`: how the machine is built.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Build {
    /// A file of the build context that lists what `[[copy]]` leaves out.
    #[schemars(with = "ContextPath")]
    pub ignore: Option<String>,
    /// Folders of the guest that set-up commands find again in the next build, and that do not end on the disk.
    #[schemars(with = "Vec<GuestPath>")]
    pub cache: Vec<String>,
    /// Names of `[secrets]` that set-up commands find as files in `/run/secrets`. Their values come from the
    /// building host and stay in memory.
    #[schemars(with = "Vec<EnvName>")]
    pub secrets: Vec<String>,
    /// Whether set-up commands have outbound network. Without it: as the machine itself.
    #[schemars(with = "bool")]
    pub network: Option<bool>,
}

/// `[snapshot]`: what is running when memory is captured.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Snapshot {
    /// Whether memory is captured: true, false, or "auto" to do so where the building host can.
    #[schemars(extend("default" = "auto"))]
    pub enabled: SnapshotEnabled,
    /// Commands run before memory is captured, by `/bin/sh -c`, to warm caches.
    pub warm: Vec<String>,
    /// What must hold before memory is captured.
    #[schemars(with = "Ready")]
    pub ready: Option<Ready>,
    /// How long to wait for `ready`.
    #[schemars(with = "Delay")]
    pub timeout: Option<Delay>,
    /// How long a restored machine may take to answer before it is booted cold.
    #[schemars(with = "Delay", extend("default" = "10s"))]
    pub restore_timeout: Option<Delay>,
    /// What runs when memory is captured: only the agent, or the machine's own command as well.
    #[schemars(extend("default" = "agent"))]
    pub start: SnapshotStart,
}

/// Whether memory is captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotEnabled {
    /// Where the building host can.
    #[default]
    Auto,
    /// Always; a host that cannot is an error.
    Required,
    /// Never.
    Off,
}

/// What must hold before memory is captured.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Ready {
    /// This command ends with status 0.
    Exec(CommandLine),
    /// Something listens on this port of the guest.
    Port(#[schemars(range(min = 1))] u16),
}

/// What runs when memory is captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum SnapshotStart {
    /// Only the guest agent.
    #[default]
    Agent,
    /// The machine's command too.
    Entrypoint,
}

/// `[kernel]`: the guest's kernel. Without it smolpack's default is used.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct KernelChoice {
    /// A kernel file.
    #[schemars(with = "HostPath")]
    pub path: Option<String>,
    /// A kernel that was imported or fetched before.
    #[schemars(with = "KernelReference")]
    pub reference: Option<String>,
    /// Words added to the kernel's command line.
    #[schemars(with = "KernelCmdline")]
    pub cmdline: Option<String>,
}

/// What the guest may expect of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum CpuContract {
    /// x86-64-v2: any server of the last fifteen years.
    #[default]
    Portable,
    /// x86-64-v3: with AVX2.
    V3,
    /// All that the building host has; the snapshot restores on its like only.
    Host,
}
