//! What a Smolfile, its flags and its image make together: the machine's manifest.

use smolpack_format::manifest::{self, Manifest};
use std::collections::BTreeMap;

use crate::image::ImageConfig;
use crate::smolfile::{self, Cpus, DiskSize, EnvEntry, Memory, Smolfile};

const DEFAULT_CPUS: u32 = 2;
const DEFAULT_MEMORY_MIB: u64 = 512;
const DEFAULT_DISK_BYTES: u64 = 8 << 30;

/// Flags that beat the Smolfile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Virtual CPUs.
    pub cpus: Option<Cpus>,
    /// Guest memory.
    pub memory: Option<Memory>,
    /// Room on the root disk.
    pub disk: Option<DiskSize>,
}

/// A machine, before its image has had its say.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// What the user wrote.
    pub smolfile: Smolfile,
    /// What flags say.
    pub overrides: Overrides,
}

impl MachineSpec {
    /// What the Smolfile wants that this version cannot do: an artifact without it would not be the
    /// machine that was asked for.
    #[must_use]
    pub fn unsupported(&self) -> Vec<&'static str> {
        let file = &self.smolfile;
        let snapshot = &file.snapshot;
        let set_up = !file.init.is_empty();
        let wants = [
            (set_up && file.build.network == Some(true), "init with [build] network"),
            (set_up && !file.build.cache.is_empty(), "init with [build] cache"),
            (!snapshot.warm.is_empty(), "[snapshot] warm"),
            (snapshot.ready.is_some(), "[snapshot] ready"),
            (snapshot.start == smolfile::SnapshotStart::Entrypoint, "[snapshot] start = \"entrypoint\""),
        ];
        wants.into_iter().filter_map(|(wanted, key)| wanted.then_some(key)).collect()
    }

    /// The manifest: flags beat `[artifact]`, which beats the top level, which beats the image.
    #[must_use]
    pub fn resolve(&self, image: &ImageConfig, kernel: manifest::Kernel) -> Manifest {
        let file = &self.smolfile;
        let mut m = Manifest::new(manifest::Kind::Machine, self.cpus(), self.memory_mib(), self.disk_bytes());
        (m.entrypoint, m.cmd) = self.command(image);
        (m.env, m.env_from_host) = environment(&image.env, &file.env);
        m.user = file.user.clone().or_else(|| image.user.clone());
        m.workdir = file.workdir.clone().or_else(|| image.workdir.clone());
        m.stop_signal.clone_from(&image.stop_signal);
        m.labels.clone_from(&image.labels);
        m.exposed_ports.clone_from(&image.exposed_ports);
        m.network = self.network();
        m.ports = file.ports.iter().map(port).collect();
        m.mounts = file.volumes.iter().map(mount).collect();
        m.health = file.health.as_ref().map(health);
        m.restart = file.restart.as_ref().map(restart);
        m.secrets = secrets(&file.secrets);
        m.ssh_agent = file.auth.ssh_agent;
        m.docker_socket = file.docker_socket;
        m.services = file.service.iter().map(service).collect();
        m.cpu = match file.cpu {
            smolfile::CpuContract::Portable => manifest::CpuContract::Portable,
            smolfile::CpuContract::V3 => manifest::CpuContract::V3,
            smolfile::CpuContract::Host => manifest::CpuContract::Host,
        };
        m.kernel = Some(kernel);
        m
    }

    /// Virtual CPUs.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let chosen = self.overrides.cpus.or(self.smolfile.artifact.cpus).or(self.smolfile.cpus);
        chosen.map_or(DEFAULT_CPUS, |cpus| cpus.0)
    }

    /// Guest memory, MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        let chosen = self.overrides.memory.or(self.smolfile.artifact.memory).or(self.smolfile.memory);
        chosen.map_or(DEFAULT_MEMORY_MIB, |memory| memory.0)
    }

    /// Size of the root disk, bytes.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let file = &self.smolfile;
        let largest = [file.storage, file.overlay, file.disk].into_iter().flatten().max();
        self.overrides.disk.or(largest).map_or(DEFAULT_DISK_BYTES, |size| size.0)
    }

    /// As with docker, a new entrypoint drops the command that belonged to the old one.
    fn command(&self, image: &ImageConfig) -> (Vec<String>, Vec<String>) {
        let mut command = (image.entrypoint.clone(), image.cmd.clone());
        let file = &self.smolfile;
        let layers = [(&file.entrypoint, &file.cmd), (&file.artifact.entrypoint, &file.artifact.cmd)];
        for (entrypoint, cmd) in layers {
            if let Some(entrypoint) = entrypoint {
                command = (entrypoint.clone(), Vec::new());
            }
            if let Some(cmd) = cmd {
                command.1.clone_from(cmd);
            }
        }
        command
    }

    fn network(&self) -> manifest::Network {
        let network = &self.smolfile.network;
        let ranges = |list: &[smolfile::Cidr]| list.iter().map(|range| range.0.clone()).collect();
        manifest::Network {
            enabled: self.smolfile.net || !network.allow_hosts.is_empty() || !network.allow_cidrs.is_empty(),
            allow_hosts: network.allow_hosts.iter().map(|host| host.0.clone()).collect(),
            allow_cidrs: ranges(&network.allow_cidrs),
            deny_cidrs: ranges(&network.deny_cidrs),
            block_private: network.block_private,
        }
    }
}

/// The image's variables in its order, replaced or added to by name; and those the host supplies.
fn environment(image: &[String], ours: &[EnvEntry]) -> (Vec<String>, Vec<String>) {
    let mut set: Vec<(String, String)> = Vec::new();
    let mut from_host: Vec<String> = Vec::new();
    let image = image.iter().filter_map(|pair| pair.split_once('='));
    let entries =
        image.map(|(name, value)| EnvEntry::Set(name.into(), value.into())).chain(ours.iter().cloned());
    for entry in entries {
        match entry {
            EnvEntry::Set(name, value) => {
                from_host.retain(|other| *other != name);
                match set.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, old)) => *old = value,
                    None => set.push((name, value)),
                }
            }
            EnvEntry::FromHost(name) => {
                set.retain(|(other, _)| *other != name);
                if !from_host.contains(&name) {
                    from_host.push(name);
                }
            }
        }
    }
    (set.into_iter().map(|(name, value)| format!("{name}={value}")).collect(), from_host)
}

fn port(port: &smolfile::Port) -> manifest::PortForward {
    manifest::PortForward {
        ip: port.ip.map(|ip| ip.to_string()),
        host: port.host,
        guest: port.guest,
        protocol: if port.udp { manifest::Protocol::Udp } else { manifest::Protocol::Tcp },
    }
}

fn mount(volume: &smolfile::Volume) -> manifest::Mount {
    manifest::Mount { host: volume.host.clone(), guest: volume.guest.clone(), read_only: volume.read_only }
}

fn health(health: &smolfile::Health) -> manifest::Health {
    manifest::Health {
        exec: health.exec.0.clone(),
        interval_ms: health.interval.map(smolfile::Delay::millis),
        timeout_ms: health.timeout.map(smolfile::Delay::millis),
        retries: health.retries,
        startup_grace_ms: health.startup_grace.map(smolfile::Delay::millis),
    }
}

fn restart(restart: &smolfile::Restart) -> manifest::Restart {
    manifest::Restart {
        policy: match restart.policy {
            smolfile::Policy::Never => manifest::RestartPolicy::Never,
            smolfile::Policy::Always => manifest::RestartPolicy::Always,
            smolfile::Policy::OnFailure => manifest::RestartPolicy::OnFailure,
            smolfile::Policy::UnlessStopped => manifest::RestartPolicy::UnlessStopped,
        },
        max_retries: restart.max_retries,
        max_backoff_ms: restart.max_backoff.map(smolfile::Delay::millis),
    }
}

fn service(service: &smolfile::Service) -> manifest::Service {
    manifest::Service {
        port: service.port,
        listen: service.listen.clone(),
        protocol: service.protocol.clone(),
    }
}

fn secrets(secrets: &BTreeMap<String, smolfile::Secret>) -> BTreeMap<String, manifest::SecretSource> {
    let source = |secret: &smolfile::Secret| match secret.clone() {
        smolfile::Secret::FromEnv(name) => manifest::SecretSource::FromEnv(name),
        smolfile::Secret::FromFile(path) => manifest::SecretSource::FromFile(path),
    };
    secrets.iter().map(|(name, secret)| (name.clone(), source(secret))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn resolve(text: &str, overrides: Overrides) -> Manifest {
        let smolfile = Smolfile::parse(text, Path::new("Smolfile")).unwrap();
        let image = ImageConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["arg".into()],
            env: vec!["PATH=/bin".into(), "A=image".into()],
            user: Some("www".into()),
            workdir: Some("/srv".into()),
            ..ImageConfig::default()
        };
        let digest = smolpack_format::Digest::of(b"");
        let kernel = manifest::Kernel { version: "6.1".into(), digest, cmdline: String::new() };
        MachineSpec { smolfile, overrides }.resolve(&image, kernel)
    }

    #[test]
    fn the_image_speaks_where_nobody_else_does() {
        let m = resolve("", Overrides::default());
        assert_eq!((m.cpus, m.memory_mib, m.disk_bytes), (2, 512, 8 << 30));
        assert_eq!((m.entrypoint, m.cmd), (vec!["/entry".to_owned()], vec!["arg".to_owned()]));
        assert_eq!((m.user.as_deref(), m.workdir.as_deref()), (Some("www"), Some("/srv")));
        assert!(!m.network.enabled);
    }

    #[test]
    fn flags_beat_the_artifact_table_which_beats_the_top_level() {
        let text = "cpus = 8\nmemory = 1024\nstorage = 1\noverlay = 3\n[artifact]\nmemory = 2048";
        let overrides = Overrides { cpus: Some(Cpus(4)), ..Overrides::default() };
        let m = resolve(text, overrides);
        assert_eq!((m.cpus, m.memory_mib, m.disk_bytes), (4, 2048, 3 << 30));
    }

    #[test]
    fn a_new_entrypoint_drops_the_images_command() {
        let m = resolve("entrypoint = [\"/x\"]", Overrides::default());
        assert_eq!((m.entrypoint, m.cmd), (vec!["/x".to_owned()], vec![]));
        let m = resolve("cmd = [\"y\"]", Overrides::default());
        assert_eq!((m.entrypoint, m.cmd), (vec!["/entry".to_owned()], vec!["y".to_owned()]));
    }

    #[test]
    fn variables_replace_by_name_and_a_bare_name_is_the_hosts() {
        let m = resolve("env = [\"A=ours\", \"B=1\", \"PATH\"]", Overrides::default());
        assert_eq!(
            (m.env, m.env_from_host),
            (vec!["A=ours".to_owned(), "B=1".into()], vec!["PATH".to_owned()])
        );
    }

    #[test]
    fn an_allow_list_switches_the_network_on() {
        let m = resolve("[network]\nallow_hosts = [\"x.org\"]", Overrides::default());
        assert!(m.network.enabled);
    }
}
