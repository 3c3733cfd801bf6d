//! Reads each section of a Smolfile: which keys it has, and what must hold between them.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::compat;
use super::model::{
    Artifact, Auth, Build, Copy, Dev, Health, KernelChoice, Network, Ready, Restart, Service, Smolfile,
    Snapshot,
};
use super::reader::{Decode, Field, TableReader, whole_number};
use super::report::{Diagnostics, Problem};
use super::values::{
    CommandLine, ContextPath, Delay, EnvName, FileMode, GuestPath, HostPath, ImageName, KernelCmdline,
    KernelReference, OciPlatform, Port, Secret, ServiceProtocol, UserSpec, ValueError, Volume, port_number,
};

/// Reads the whole file. Problems are in the reader's diagnostics; the result counts only without any.
pub(super) fn smolfile(mut top: TableReader<'_, '_, '_>) -> Smolfile {
    top.exclusive("artifact", "pack", "they mean the same: move everything into `[artifact]`");
    let artifact: Option<Artifact> = top.value("artifact");
    let pack = top.value("pack");
    let file = Smolfile {
        image: top.text::<ImageName>("image"),
        entrypoint: words(&mut top, "entrypoint"),
        cmd: words(&mut top, "cmd"),
        env: top.or_default("env"),
        workdir: top.text::<GuestPath>("workdir"),
        user: top.text::<UserSpec>("user"),
        cpus: top.value("cpus"),
        memory: top.value("memory"),
        disk: top.value("disk"),
        storage: top.value("storage"),
        overlay: top.value("overlay"),
        cpu: top.or_default("cpu"),
        net: top.or_default("net"),
        ports: ports(&mut top),
        volumes: volumes(&mut top),
        init: top.or_default("init"),
        docker_socket: top.or_default("docker_socket"),
        dev: top.or_default("dev"),
        artifact: artifact.or(pack).unwrap_or_default(),
        network: top.or_default("network"),
        health: top.value::<Checks>("health").and_then(|checks| checks.0),
        restart: top.value("restart"),
        auth: top.or_default("auth"),
        service: top.value("service"),
        secrets: top.or_default("secrets"),
        copy: top.or_default("copy"),
        build: top.or_default("build"),
        snapshot: top.or_default("snapshot"),
        kernel: top.or_default("kernel"),
    };
    compat::check(&mut top);
    check_setup_secrets(&mut top, &file);
    top.finish();
    file
}

/// Set-up commands find secrets as files of their names.
fn check_setup_secrets(top: &mut TableReader<'_, '_, '_>, file: &Smolfile) {
    let Some(field) = top.field("build") else { return };
    for name in &file.build.secrets {
        if !file.secrets.contains_key(name) {
            let what = format!("its `secrets` has {name}, which `[secrets]` does not define");
            field.refused(ValueError::new(what), top.out);
        } else if name.contains('/') || matches!(name.as_str(), "." | "..") {
            let what = format!("its `secrets` has {name}, which cannot be the name of a file");
            field.refused(ValueError::new(what), top.out);
        }
    }
}

/// A command's words. An empty list is the same as none, as the peer has it; the first word names a program.
fn words(table: &mut TableReader<'_, '_, '_>, key: &'static str) -> Option<Vec<String>> {
    let field = table.field(key)?;
    let words: Vec<String> = Decode::decode(&field, table.out)?;
    if key == "entrypoint" && words.first().is_some_and(String::is_empty) {
        field.refused(ValueError::new("the program's name is empty"), table.out);
    }
    (!words.is_empty()).then_some(words)
}

fn ports(table: &mut TableReader<'_, '_, '_>) -> Vec<Port> {
    table.distinct("ports", Port::collides, "a port of the host")
}

fn volumes(table: &mut TableReader<'_, '_, '_>) -> Vec<Volume> {
    table.distinct("volumes", |a: &Volume, b| a.guest == b.guest, "a folder of the guest")
}

impl Decode for Dev {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let dev = Self {
            volumes: volumes(&mut table),
            ports: ports(&mut table),
            env: table.or_default("env"),
            init: table.or_default("init"),
            workdir: table.text::<GuestPath>("workdir"),
            user: table.text::<UserSpec>("user"),
        };
        table.finish();
        Some(dev)
    }
}

impl Decode for Artifact {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let artifact = Self {
            cpus: table.value("cpus"),
            memory: table.value("memory"),
            entrypoint: words(&mut table, "entrypoint"),
            cmd: words(&mut table, "cmd"),
            oci_platform: table.text::<OciPlatform>("oci_platform"),
        };
        table.finish();
        Some(artifact)
    }
}

impl Decode for Network {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let network = Self {
            allow_hosts: table.or_default("allow_hosts"),
            allow_cidrs: table.or_default("allow_cidrs"),
            deny_cidrs: table.or_default("deny_cidrs"),
            block_private: table.or_default("block_private"),
        };
        table.finish();
        Some(network)
    }
}

/// `[health]`, which without a command checks nothing: the peer takes it so.
struct Checks(Option<Health>);

impl Decode for Checks {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let exec: Option<CommandLine> = table.value("exec");
        let interval = positive(&mut table, "interval");
        let timeout = positive(&mut table, "timeout");
        let retries = retries(&mut table);
        let startup_grace = table.value("startup_grace");
        table.finish();
        Some(Self(exec.map(|exec| Health { exec, interval, timeout, retries, startup_grace })))
    }
}

/// A length of time that cannot be nothing.
fn positive(table: &mut TableReader<'_, '_, '_>, key: &'static str) -> Option<Delay> {
    let field = table.field(key)?;
    let delay = Delay::decode(&field, table.out)?;
    if delay.0.is_zero() {
        field.refused(ValueError::new("must be longer than nothing"), table.out);
    }
    Some(delay)
}

fn retries(table: &mut TableReader<'_, '_, '_>) -> Option<u32> {
    let field = table.field("retries")?;
    let count = u32::decode(&field, table.out)?;
    if count == 0 {
        field.refused(ValueError::new("must be at least 1: it counts failures in a row"), table.out);
    }
    Some(count)
}

impl Decode for Restart {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let restart = Self {
            policy: table.or_default("policy"),
            max_retries: table.value("max_retries"),
            max_backoff: positive(&mut table, "max_backoff"),
        };
        table.finish();
        Some(restart)
    }
}

impl Decode for Auth {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let auth = Self { ssh_agent: table.or_default("ssh_agent") };
        table.finish();
        Some(auth)
    }
}

impl Decode for Service {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let port = port(&mut table, "port");
        let listen = listen(&mut table);
        let protocol = table.text::<ServiceProtocol>("protocol");
        if let (Some(port), Some(Listen::Port(other))) = (port, &listen)
            && port != *other
        {
            table.exclusive("port", "listen", "they name different ports: keep one");
        }
        if table.key_span("port").is_none() && !matches!(listen, Some(Listen::Port(_))) {
            field.refused(ValueError::new("`port` is missing"), table.out);
        }
        table.finish();
        let (port, listen) = match listen {
            Some(Listen::Port(other)) => (port.or(Some(other)), None),
            Some(Listen::Address(address)) => (port, Some(address)),
            None => (port, None),
        };
        Some(Self { port: port?, listen, protocol })
    }
}

/// What `listen` holds: the peer's files have the port there.
enum Listen {
    Port(u16),
    Address(String),
}

fn listen(table: &mut TableReader<'_, '_, '_>) -> Option<Listen> {
    let field = table.field("listen")?;
    match field.value.get_ref() {
        DeValue::Integer(_) => port_of(&field, table.out).map(Listen::Port),
        _ => String::decode(&field, table.out).map(Listen::Address),
    }
}

fn port(table: &mut TableReader<'_, '_, '_>, key: &'static str) -> Option<u16> {
    let field = table.field(key)?;
    port_of(&field, table.out)
}

fn port_of(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<u16> {
    let number = whole_number(field, "a port, an integer from 1 to 65535", out)?;
    field.checked(port_number(number), out)
}

impl Decode for BTreeMap<String, Secret> {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut secrets = Self::new();
        TableReader::open(field, out)?.for_each(|name, span, field, out| {
            let secret = Secret::decode(field, out);
            match name.parse::<EnvName>() {
                Ok(name) => secrets.extend(secret.map(|secret| (name.into(), secret))),
                Err(error) => {
                    let title = format!("`{}` cannot name a secret", field.path);
                    out.push(Problem::new(title, span, error.problem).help(error.help));
                }
            }
        });
        Some(secrets)
    }
}

impl Decode for Secret {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let help = "write { from_env = \"NAME\" } or { from_file = \"/path\" }: a secret's value has no place in \
                    a file that is shared";
        if let DeValue::String(_) = field.value.get_ref() {
            field.refused(ValueError::new("a secret is a reference, not a value").help(help), out);
            return None;
        }
        let mut table = TableReader::open(field, out)?;
        let from_env = table.text::<EnvName>("from_env").map(Self::FromEnv);
        let from_file = secret_file(&mut table).map(Self::FromFile);
        table.exclusive("from_env", "from_file", "a secret has one source");
        if table.key_span("from_env").or(table.key_span("from_file")).is_none() {
            field.refused(ValueError::new("has no source").help(help), table.out);
        }
        table.finish();
        from_env.or(from_file)
    }
}

/// The file is looked for on the host that boots, where this Smolfile's folder may not exist.
fn secret_file(table: &mut TableReader<'_, '_, '_>) -> Option<String> {
    let field = table.field("from_file")?;
    let path = HostPath::decode(&field, table.out)?;
    if !path.is_anchored() {
        let error = ValueError::new("a relative path means nothing on another host")
            .help("write an absolute path, or one below `~/`");
        field.refused(error, table.out);
    }
    Some(path.into())
}

impl Decode for Copy {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let from = required::<ContextPath>(&mut table, field, "from");
        let to = required::<GuestPath>(&mut table, field, "to");
        let owner = table.text::<UserSpec>("owner");
        let mode = table.text::<FileMode>("mode");
        table.finish();
        Some(Self { from: from?.into(), to: to?.into(), owner, mode })
    }
}

/// A key without which its table means nothing.
fn required<T: Decode>(
    table: &mut TableReader<'_, '_, '_>,
    around: &Field<'_, '_>,
    key: &'static str,
) -> Option<T> {
    let value = table.value(key);
    if table.key_span(key).is_none() {
        around.refused(ValueError::new(format!("`{key}` is missing")), table.out);
    }
    value
}

impl Decode for Build {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let build = Self {
            ignore: table.text::<ContextPath>("ignore"),
            cache: cache_folders(&mut table),
            secrets: setup_secrets(&mut table),
            network: table.value("network"),
        };
        table.finish();
        Some(build)
    }
}

fn cache_folders(table: &mut TableReader<'_, '_, '_>) -> Vec<String> {
    let folders = table.distinct::<GuestPath>("cache", |a, b| a == b, "a folder of the guest");
    folders.into_iter().map(String::from).collect()
}

fn setup_secrets(table: &mut TableReader<'_, '_, '_>) -> Vec<String> {
    let names = table.distinct::<EnvName>("secrets", |a, b| a == b, "a secret");
    names.into_iter().map(String::from).collect()
}

impl Decode for Snapshot {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let snapshot = Self {
            enabled: table.or_default("enabled"),
            warm: table.or_default("warm"),
            ready: table.value("ready"),
            timeout: positive(&mut table, "timeout"),
            restore_timeout: positive(&mut table, "restore_timeout"),
            start: table.or_default("start"),
        };
        table.finish();
        Some(snapshot)
    }
}

impl Decode for Ready {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let exec = table.value("exec").map(Self::Exec);
        let port = port(&mut table, "port").map(Self::Port);
        table.exclusive("exec", "port", "wait for a command or for a port");
        if table.key_span("exec").or(table.key_span("port")).is_none() {
            let error = ValueError::new("waits for nothing")
                .help("write { exec = [\"program\"] } or { port = 8080 }");
            field.refused(error, table.out);
        }
        table.finish();
        exec.or(port)
    }
}

impl Decode for KernelChoice {
    fn decode(field: &Field<'_, '_>, out: &mut Diagnostics) -> Option<Self> {
        let mut table = TableReader::open(field, out)?;
        let kernel = Self {
            path: table.text::<HostPath>("path"),
            reference: table.text::<KernelReference>("reference"),
            cmdline: table.text::<KernelCmdline>("cmdline"),
        };
        table.exclusive("path", "reference", "name the kernel in one way");
        table.finish();
        Some(kernel)
    }
}
