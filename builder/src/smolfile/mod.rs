//! The Smolfile: what a user writes about a machine.
//!
//! [`Smolfile::parse`] takes the text; every type checks its own value, so an error points at the value
//! that is wrong. Keys are those of smolvm, so that its files work unchanged, and some of our own.

mod error;
mod tables;
mod values;

pub use error::SmolfileError;
pub use tables::{
    Artifact, Auth, Build, Copy, CpuContract, Dev, Fork, Health, KernelChoice, Network, Policy, Ready,
    Restart, Secret, Service, Snapshot, SnapshotEnabled, SnapshotStart,
};
pub use values::{
    Cidr, CommandLine, Cpus, Delay, DiskSize, EnvEntry, HostName, Ignored, Memory, Port, Unsupported, Volume,
};

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A machine, as its Smolfile describes it. Relative paths are relative to the Smolfile.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Smolfile {
    /// The image: a registry reference, or the path of an OCI or docker-save archive, an OCI layout
    /// folder, a root folder or a root tar. `--image` replaces it.
    pub image: Option<String>,
    /// Replaces the image's entrypoint, and clears its command.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command.
    pub cmd: Option<Vec<String>>,
    /// Environment, added to the image's: `K=V`, or `K` for the value on the host that boots the machine.
    pub env: Vec<EnvEntry>,
    /// Working folder of the command.
    pub workdir: Option<String>,
    /// Who runs the command: `name`, `uid`, `name:group` or `uid:gid`.
    pub user: Option<String>,
    /// Virtual CPUs.
    pub cpus: Option<Cpus>,
    /// Guest memory.
    pub memory: Option<Memory>,
    /// Room on the root disk; the largest of `storage`, `overlay` and `disk` counts.
    pub storage: Option<DiskSize>,
    /// Room on the root disk; the largest of `storage`, `overlay` and `disk` counts.
    pub overlay: Option<DiskSize>,
    /// Room on the root disk; the largest of `storage`, `overlay` and `disk` counts.
    pub disk: Option<DiskSize>,
    /// Outbound network.
    pub net: bool,
    /// Ports of the host that lead into the machine.
    pub ports: Vec<Port>,
    /// Folders or files of the host inside the machine.
    pub volumes: Vec<Volume>,
    /// Set-up commands, run once when the machine is built, as root, each by `/bin/sh -c`.
    pub init: Vec<String>,
    /// For a boot from the Smolfile on the developer's machine; never packed.
    pub dev: Dev,
    /// Overrides for the packed machine. `[pack]` is the same table.
    #[serde(alias = "pack")]
    pub artifact: Artifact,
    /// What the machine may reach. It travels in the artifact.
    pub network: Network,
    /// How to tell that the machine works.
    pub health: Option<Health>,
    /// When to start the command again.
    pub restart: Option<Restart>,
    /// What the host lends.
    pub auth: Auth,
    /// Publish the machine's `/var/run/docker.sock` on the host.
    pub docker_socket: bool,
    /// What the machine offers; information only.
    pub service: Option<Service>,
    /// Secrets by the name the machine sees: where to find them at launch, never their values.
    pub secrets: BTreeMap<String, Secret>,
    /// Accepted for smolvm's sake: every machine can fork. `[branch]` is the same table.
    #[serde(alias = "branch")]
    pub fork: Fork,
    /// Files from beside the Smolfile into the image.
    pub copy: Vec<Copy>,
    /// How the machine is built.
    pub build: Build,
    /// What is running when memory is captured.
    pub snapshot: Snapshot,
    /// The guest kernel; without it the newest one at hand.
    pub kernel: KernelChoice,
    /// What the snapshot may expect of the CPU.
    pub cpu: CpuContract,
    /// Not supported: machines have no GPU. `false` is fine.
    pub gpu: Unsupported,
    /// Not supported: machines have no GPU.
    pub gpu_vram: Unsupported,
    /// Not supported: machines have no GPU.
    pub cuda: Unsupported,
    /// Not supported.
    pub auto_graph: Unsupported,
    /// Not supported: machines run programs of their own architecture.
    pub rosetta: Unsupported,
    /// Accepted for smolvm's sake, and changes nothing.
    pub net_backend: Ignored,
    /// Accepted for smolvm's sake, and changes nothing.
    pub block_io: Ignored,
}

impl Smolfile {
    /// Reads a Smolfile's text; `path` is for error messages.
    ///
    /// # Errors
    /// Points at the first thing that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SmolfileError> {
        let parsed: Self = toml::from_str(text).map_err(|e| SmolfileError::syntax(&e, text, path))?;
        parsed.check().map_err(|(key, what)| SmolfileError::at_key(key, what, text, path))?;
        Ok(parsed)
    }

    /// Reads the Smolfile at `path`.
    ///
    /// # Errors
    /// Where it cannot be read, and as [`parse`](Self::parse).
    pub fn load(path: &Path) -> Result<Self, SmolfileError> {
        let text = std::fs::read_to_string(path).map_err(|e| SmolfileError::unreadable(path, &e))?;
        Self::parse(&text, path)
    }

    /// What concerns more than one value.
    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.entrypoint.as_ref().is_some_and(Vec::is_empty) {
            return Err(("entrypoint", "is empty; leave it out to take the image's"));
        }
        match (&self.kernel.path, &self.kernel.reference) {
            (Some(_), Some(_)) => Err(("kernel", "has both `path` and `reference`; give one of them")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
