use super::*;
use std::time::Duration;

fn parse(text: &str) -> Result<Smolfile, String> {
    Smolfile::parse(text, Path::new("Smolfile")).map_err(|e| e.to_string())
}

const FULL: &str = r#"
image = "registry.example/library/debian:12"
entrypoint = ["/bin/server"]
cmd = ["--port", "80"]
env = ["A=b=c", "TOKEN", "EMPTY="]
workdir = "/srv"
user = "www:www"
cpus = 4
memory = "1GiB"
storage = 20
overlay = "5GiB"
net = true
ports = ["8080:80", 53, "127.0.0.1:9000:9001/udp", "[::1]:1:2"]
volumes = ["./data:/data", "~/x:/x:ro"]
init = ["apt-get update"]
docker_socket = true
cpu = "v3"
gpu = false
gpu_vram = 0
net_backend = "gvproxy"
block_io = "sync"

[dev]
volumes = [".:/src"]
env = ["DEBUG=1"]

[pack]
cpus = 2
memory = 256

[network]
allow_hosts = ["example.com", "*.example.org"]
allow_cidrs = ["10.0.0.0/8", "::1"]
deny_cidrs = ["10.1.0.0/16"]
block_private = true

[health]
exec = ["curl", "-f", "localhost"]
interval = "10s"
timeout = 5
retries = 3
startup_grace = "1m30s"

[restart]
policy = "on-failure"
max_retries = 5
max_backoff = "1m"

[auth]
ssh_agent = true

[service]
port = 80
listen = "0.0.0.0"
protocol = "http"

[secrets]
TOKEN = { from_env = "CI_TOKEN" }
CERT = { from_file = "./cert.pem" }

[branch]
enabled = true

[[copy]]
from = "app"
to = "/srv/app"
owner = "www"
mode = "0755"

[build]
ignore = ".smolignore"
network = true

[snapshot]
enabled = "auto"
warm = ["true"]
ready = { port = 80 }
timeout = "30s"
start = "entrypoint"

[kernel]
cmdline = "quiet"
"#;

#[test]
fn every_key_is_read() {
    let file = parse(FULL).unwrap();
    assert_eq!(file.env[0], EnvEntry::Set("A".into(), "b=c".into()));
    assert_eq!(file.env[1], EnvEntry::FromHost("TOKEN".into()));
    assert_eq!(file.env[2], EnvEntry::Set("EMPTY".into(), String::new()));
    assert_eq!((file.cpus, file.memory), (Some(Cpus(4)), Some(Memory(1024))));
    assert_eq!((file.storage, file.overlay), (Some(DiskSize(20 << 30)), Some(DiskSize(5 << 30))));
    let ports: Vec<_> = file.ports.iter().map(|p| (p.host, p.guest, p.udp, p.ip.is_some())).collect();
    assert_eq!(
        ports,
        [(8080, 80, false, false), (53, 53, false, false), (9000, 9001, true, true), (1, 2, false, true)]
    );
    assert_eq!(file.volumes[1], Volume { host: "~/x".into(), guest: "/x".into(), read_only: true });
    assert_eq!((file.artifact.cpus, file.artifact.memory), (Some(Cpus(2)), Some(Memory(256))));
    assert_eq!(file.network.allow_cidrs[1], Cidr("::1/128".into()));
    let health = file.health.unwrap();
    assert_eq!(health.startup_grace, Some(Delay(Duration::from_secs(90))));
    assert_eq!(health.timeout, Some(Delay(Duration::from_secs(5))));
    assert_eq!(file.restart.unwrap().policy, Policy::OnFailure);
    assert_eq!(file.secrets["CERT"], Secret::FromFile("./cert.pem".into()));
    assert_eq!(file.snapshot.ready, Some(Ready::Port(80)));
    assert_eq!(file.snapshot.start, SnapshotStart::Entrypoint);
    assert_eq!(file.cpu, CpuContract::V3);
}

#[test]
fn an_empty_file_is_a_machine_of_defaults() {
    let file = parse("").unwrap();
    assert!(file.image.is_none() && !file.net && file.snapshot.enabled == SnapshotEnabled::Auto);
}

#[test]
fn an_error_points_at_line_and_column_and_names_the_nearest_key() {
    let said = parse("image = \"x\"\n\ncpu_s = 4\n").unwrap_err();
    assert_eq!(
        said,
        "error: unknown key `cpu_s`\n --> Smolfile:3:1\n  |\n3 | cpu_s = 4\n  | ^^^^^ did you mean `cpus`?"
    );
}

#[test]
fn what_is_wrong_is_said_where_it_is() {
    for (text, place, words) in [
        ("cpus = 33", ":1:8", "1 to 32"),
        ("cpus = 0", ":1:8", "1 to 32"),
        ("cpus = \"two\"", ":1:8", "expected"),
        ("memory = 63", ":1:10", "at least 64 MiB"),
        ("memory = -5", ":1:10", "at least 64 MiB"),
        ("memory = \"5 bananas\"", ":1:10", "not a size"),
        ("memory = true", ":1:10", "neither a whole number nor a string"),
        ("storage = \"1MiB\"", ":1:11", "16 MiB"),
        ("net = \"yes\"", ":1:7", "expected"),
        ("ports = [\n \"80\",\n \"http:80\"]", ":3:2", "not a port"),
        ("ports = [\"0:80\"]", ":1:10", "not a port"),
        ("ports = [\"80/sctp\"]", ":1:10", "not a port"),
        ("ports = [70000]", ":1:10", "not a port"),
        ("volumes = [\"/a:/etc\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/proc/x\"]", ":1:12", "system folder"),
        ("volumes = [\"/a:/b/../etc\"]", ":1:12", "upwards"),
        ("volumes = [\"/a\"]", ":1:12", "not a volume"),
        ("env = [\"=x\"]", ":1:8", "no name"),
        ("gpu = true", ":1:7", "does not support"),
        ("cuda = \"12\"", ":1:8", "does not support"),
        ("cpu = \"v9\"", ":1:7", "unknown value"),
        ("[health]\nexec = [\"x\"]\ninterval = \"ten\"", ":3:12", "not a time span"),
        ("[health]\nexec = []", ":2:8", "empty command"),
        ("[health]\ninterval = \"1s\"", ":1:1", "`exec` is missing"),
        ("[network]\nallow_cidrs = [\"10.0.0.1/8\"]", ":2:16", "beyond the prefix"),
        ("[network]\nallow_cidrs = [\"10.0.0.0/33\"]", ":2:16", "too long"),
        ("[network]\nallow_hosts = [\"https://x.org/y\"]", ":2:16", "not a host name"),
        ("[network]\nallow_host = []", ":2:1", "did you mean `allow_hosts`"),
        ("[restart]\npolicy = \"sometimes\"", ":2:10", "unknown value"),
        ("[snapshot]\nenabled = \"maybe\"", ":2:11", "true, false or"),
        ("[secrets]\nA = { from_vault = \"x\" }", ":2:7", "unknown value"),
        ("[nonsense]\nx = 1", ":1:2", "unknown key"),
        ("entrypoint = []", ":1:1", "is empty"),
        ("[kernel]\npath = \"a\"\nreference = \"b\"", ":1:1", "both"),
        ("image = \"a\"\nimage = \"b\"", ":2:1", "duplicate"),
        ("image = ", ":1:", ""),
    ] {
        let said = parse(text).unwrap_err();
        assert!(said.contains(&format!("Smolfile{place}")), "{text}\n{said}");
        assert!(said.contains(words), "{text}\n{said}");
        assert!(said.contains('^'), "{text}\n{said}");
    }
}

#[test]
fn mutations_of_a_valid_file_never_panic() {
    let seed = std::process::id();
    println!("seed {seed}");
    let mut state = u64::from(seed) | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..3000 {
        let mut bytes = FULL.as_bytes().to_vec();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"[]{}=\"\\\n,\xE9"[random(10)]),
            }
        }
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }
}
