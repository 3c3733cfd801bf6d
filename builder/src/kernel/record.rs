//! What is written down of a kept kernel: `kernel.json` in its folder.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::modules::Module;
use smolpack_registry::hex;

/// A kernel's description, as `kernel.json` keeps it and `kernel list --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRecord {
    /// 64 lower-case hexadecimal digits: the SHA-256 of the lines `smolpack kernel 1`,
    /// `vmlinux DIGEST`, and `NAME DIGEST` for each module in load order.
    pub digest: String,
    /// As `uname -r` prints it.
    pub version: String,
    /// The name of the file that it was imported from.
    pub source: String,
    /// When it was last imported or fetched, RFC 3339 in UTC with nanoseconds.
    #[serde(with = "rfc3339")]
    pub added: SystemTime,
    /// The ELF image.
    pub vmlinux: KernelFile,
    /// The modules that the initrd holds, in load order. Empty where all drivers are built in.
    pub modules: Vec<KernelFile>,
    /// Drivers that the kernel has in no form, by module name. Machines boot without them, but lack
    /// what they are for: `virtio_net` networks, `virtiofs` mounts, `virtio_balloon` memory return.
    pub missing_drivers: Vec<String>,
}

/// A file of a kept kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFile {
    /// `vmlinux`, or the module's name with underscores.
    pub name: String,
    /// Length, bytes.
    pub size: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

impl KernelFile {
    pub(super) fn of(name: &str, data: &[u8]) -> Self {
        Self { name: name.to_owned(), size: data.len() as u64, sha256: hex(&Sha256::digest(data)) }
    }

    /// What is wrong with `data`, if it is not this file's.
    pub(super) fn mismatch(&self, data: &[u8]) -> Option<String> {
        (Self::of(&self.name, data) != *self).then(|| format!("{} is not what was imported", self.name))
    }
}

impl KernelRecord {
    pub(super) fn new(version: String, source: &str, vmlinux: &[u8], modules: &[Module]) -> Self {
        let vmlinux = KernelFile::of("vmlinux", vmlinux);
        let modules: Vec<_> = modules.iter().map(|m| KernelFile::of(&m.name, &m.data)).collect();
        Self {
            digest: digest(&vmlinux, &modules),
            version,
            source: source.to_owned(),
            added: SystemTime::now(),
            vmlinux,
            modules,
            missing_drivers: Vec::new(),
        }
    }

    /// Whether the digest is that of the files listed.
    pub(super) fn is_consistent(&self) -> bool {
        self.digest == digest(&self.vmlinux, &self.modules)
    }
}

fn digest(vmlinux: &KernelFile, modules: &[KernelFile]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"smolpack kernel 1\n");
    for file in std::iter::once(vmlinux).chain(modules) {
        hash.update(format!("{} {}\n", file.name, file.sha256));
    }
    hex(&hash.finalize())
}

mod rfc3339 {
    use super::SystemTime;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_rfc3339_nanos(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_rfc3339(&text).map_err(D::Error::custom)
    }
}
