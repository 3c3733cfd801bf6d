//! The manifest: what the machine is. Also what `smolpack inspect --json` prints.
//!
//! Its bytes are canonical JSON, and their SHA-256 is the artifact's digest. It names every section
//! with its digest, so that digest covers all content. Keys a reader does not know are ignored (a later
//! minor version may add some); a known key with a value of the wrong type is an error. A key
//! without a value is left out: there is no null.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Code, Digest, FormatError, Part, canonical};

/// What a container describes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Manifest {
    /// A machine of its own, or a checkpoint of one.
    pub kind: Kind,
    /// The digest of the artifact a checkpoint builds upon; absent in a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Digest>,
    /// What its maker called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The image the disk was made from; absent if it came from a folder or is the minimal image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What the guest runs on.
    pub platform: Platform,
    /// The command's fixed first words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// The command's default arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Environment, each `KEY=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Names of variables whose value the booting host supplies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from_host: Vec<String>,
    /// Who runs the command: `name`, `uid`, `name:group` or `uid:gid`. Absent: root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where the command runs. Absent: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The signal that asks the command to stop: `SIGTERM` or a number. Absent: SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// The image's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Ports the image says it listens on, as `80/tcp`; a hint, they are not published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<String>,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Guest memory in MiB.
    pub memory_mib: u64,
    /// The root disk's size in bytes, as the guest sees it.
    pub disk_bytes: u64,
    /// What the guest may reach.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network: Network,
    /// Ports of the host that lead into the guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortForward>,
    /// Folders and files of the host that the machine wants to see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// How to tell that the machine works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// When to start the command again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Secrets by the name the guest sees: where to get them at launch, never their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretSource>,
    /// Forward the host's SSH agent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ssh_agent: bool,
    /// Publish the guest's `/var/run/docker.sock` on the host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub docker_socket: bool,
    /// Services the machine offers; information only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// What the guest may expect of the CPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cpu: CpuContract,
    /// The guest kernel. A checkpoint may leave it to its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// How memory was captured; absent where there is no snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// What the build read, by name: the Smolfile, layers, copied files, the guest agent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Digest>,
    /// Every section, in the order of the section index. The writer fills this in.
    #[serde(default)]
    pub sections: Vec<SectionSummary>,
}

/// Whether a container stands alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Complete: it needs no other file.
    #[default]
    Machine,
    /// The state of a machine that ran; its disk is the parent's plus an overlay.
    Checkpoint,
}

/// The image a disk was made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Image {
    /// As it was asked for.
    pub reference: String,
    /// The digest of its manifest for the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// What the guest runs on, in the words of OCI.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`.
    pub architecture: String,
}

impl Default for Platform {
    fn default() -> Self {
        Self { os: "linux".into(), architecture: "amd64".into() }
    }
}

/// What the guest may reach. An allow list means nothing else may be reached.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Network {
    /// Outbound network at all.
    #[serde(default)]
    pub enabled: bool,
    /// Host names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// Address ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_cidrs: Vec<String>,
    /// Address ranges refused even where allowed above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny_cidrs: Vec<String>,
    /// Refuse private, loopback and link-local ranges.
    #[serde(default, skip_serializing_if = "is_default")]
    pub block_private: bool,
}

/// A transport protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that leads into the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortForward {
    /// The host's address to listen on. Absent: 127.0.0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The host's port.
    pub host: u16,
    /// The guest's port.
    pub guest: u16,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A folder or file of the host inside the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mount {
    /// The host's path, as written; `~` is the booting user's home.
    pub host: String,
    /// The guest's absolute path.
    pub guest: String,
    /// The guest may not write.
    #[serde(default, skip_serializing_if = "is_default")]
    pub read_only: bool,
}

/// How to tell that the machine works. Times are in milliseconds; an absent one is the runner's default.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// The command to run; status 0 is healthy.
    pub exec: Vec<String>,
    /// Time from one check to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// Time after which a check has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Failures in a row that make the machine unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Time after the start in which failures do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_grace_ms: Option<u64>,
}

/// When to start the command again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Restart {
    /// On which end.
    pub policy: RestartPolicy,
    /// At most so many times. Absent: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// Longest pause between two starts, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backoff_ms: Option<u64>,
}

/// On which end a command is started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// On none.
    #[default]
    Never,
    /// On any.
    Always,
    /// When the status is not 0.
    OnFailure,
    /// On any, until a user stops it.
    UnlessStopped,
}

/// Where the booting host finds a secret: `{"from_env": NAME}` or `{"from_file": PATH}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// In this environment variable.
    FromEnv(String),
    /// In this file.
    FromFile(String),
}

/// A service the machine offers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Service {
    /// The guest's port.
    pub port: u16,
    /// The address it listens on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// What it speaks, such as `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// What the guest may expect of the CPU, and a host must have to restore a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CpuContract {
    /// x86-64-v2.
    #[default]
    Portable,
    /// x86-64-v3.
    V3,
    /// Whatever the building host had.
    Host,
}

/// The guest kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub version: String,
    /// The digest of the file as imported; the section may hold the same file or its ELF inside.
    pub digest: Digest,
    /// Its command line.
    #[serde(default)]
    pub cmdline: String,
}

/// How memory was captured: enough to tell without opening the state whether a host may fit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// The CPU vendor, as CPUID spells it (`AuthenticAMD`).
    pub cpu_vendor: String,
    /// What ran the guest: `vmx`, `svm` or `pvm`. States of different ones are not interchangeable.
    pub backend: String,
    /// Version of the runner's device model.
    pub device_model: u32,
    /// What was running.
    #[serde(default)]
    pub start: SnapshotStart,
    /// How long a restored machine may take to answer before it is booted cold, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_timeout_ms: Option<u64>,
}

/// What was running when memory was captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotStart {
    /// The agent alone; the command starts after the restore.
    #[default]
    Agent,
    /// The image's command.
    Entrypoint,
}

/// A section, as the manifest names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SectionSummary {
    /// The kind's name.
    pub kind: String,
    /// Logical bytes.
    pub length: u64,
    /// SHA-256 of its content table.
    pub digest: Digest,
    /// What an attachment is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Manifest {
    /// A manifest with the fields that have no default, and nothing else.
    #[must_use]
    pub fn new(kind: Kind, cpus: u32, memory_mib: u64, disk_bytes: u64) -> Self {
        Self {
            kind,
            parent: None,
            name: None,
            image: None,
            platform: Platform::default(),
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            env: Vec::new(),
            env_from_host: Vec::new(),
            user: None,
            workdir: None,
            stop_signal: None,
            labels: BTreeMap::new(),
            exposed_ports: Vec::new(),
            cpus,
            memory_mib,
            disk_bytes,
            network: Network::default(),
            ports: Vec::new(),
            mounts: Vec::new(),
            health: None,
            restart: None,
            secrets: BTreeMap::new(),
            ssh_agent: false,
            docker_socket: false,
            services: Vec::new(),
            cpu: CpuContract::default(),
            kernel: None,
            snapshot: None,
            inputs: BTreeMap::new(),
            sections: Vec::new(),
        }
    }

    /// Reads a manifest that lies at byte `at` of a file.
    pub(crate) fn decode(bytes: &[u8], at: u64) -> Result<Self, FormatError> {
        let bad = |code, what| FormatError::new(code, Part::Manifest, at, what);
        let value: serde_json::Value = serde_json::from_slice(bytes)
            .map_err(|e| bad(Code::ManifestSyntax, format!("no valid JSON: {e}")))?;
        let again = canonical::to_vec(&value).map_err(|what| bad(Code::ManifestNotCanonical, what))?;
        if let Some(i) = first_difference(&again, bytes) {
            let what = format!("differs from its canonical form at its byte {i}");
            return Err(bad(Code::ManifestNotCanonical, what));
        }
        let manifest: Self =
            serde_json::from_value(value).map_err(|e| bad(Code::ManifestInvalid, e.to_string()))?;
        manifest.check().map_err(|what| bad(Code::ManifestInvalid, what))?;
        Ok(manifest)
    }

    /// The manifest's canonical bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let bad = |what: String| FormatError::new(Code::ManifestInvalid, Part::Manifest, None, what);
        self.check().map_err(bad)?;
        let value = serde_json::to_value(self).map_err(|e| bad(e.to_string()))?;
        canonical::to_vec(&value).map_err(bad)
    }

    /// What types alone do not say.
    fn check(&self) -> Result<(), String> {
        match (self.kind, self.parent) {
            (Kind::Machine, Some(_)) => Err("a machine has no parent".into()),
            (Kind::Checkpoint, None) => Err("a checkpoint names its parent".into()),
            _ => Ok(()),
        }
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let differs = a.iter().zip(b).position(|(a, b)| a != b);
    differs.or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
