//! What a Smolfile may say, what is refused and where that is pointed at.

mod errors;
mod peer;
mod schema;
mod values;

use std::path::Path;

use super::*;

/// A file with every key there is.
const FULL: &str = include_str!("full.toml");

fn parse(text: &str) -> Result<Smolfile, SmolfileError> {
    Smolfile::parse(text, Path::new("Smolfile"))
}

fn problems(text: &str) -> Problems {
    match parse(text) {
        Err(SmolfileError::Invalid(problems)) => problems,
        other => panic!("{text}\nexpected problems, got {other:?}"),
    }
}

#[test]
fn every_key_is_read() {
    let file = parse(FULL).unwrap();
    assert_eq!(file.image.as_deref(), Some("registry.example/team/app:1.2"));
    assert_eq!(file.entrypoint, Some(vec!["/bin/server".to_owned()]));
    assert_eq!(file.cmd, Some(vec!["--port".to_owned(), "80".to_owned()]));
    assert_eq!((file.workdir.as_deref(), file.user.as_deref()), (Some("/srv"), Some("www:www")));
    assert_eq!((file.cpus, file.memory), (Some(Cpus(4)), Some(Memory(1024))));
    assert_eq!((file.disk, file.storage), (Some(DiskSize(8 << 30)), Some(DiskSize(20 << 30))));
    assert_eq!(file.overlay, Some(DiskSize(5 << 30)));
    assert_eq!(file.cpu, CpuContract::V3);
    assert!(file.net && file.docker_socket && file.auth.ssh_agent);
    assert_eq!(file.init, ["apt-get update"]);
    assert_eq!((file.volumes.len(), file.ports.len(), file.env.len()), (2, 4, 3));
    assert_eq!(file.copy[0].mode.as_deref(), Some("0755"));
    assert_eq!(file.kernel.cmdline.as_deref(), Some("loglevel=4"));
}

#[test]
fn every_table_is_read() {
    let file = parse(FULL).unwrap();
    assert_eq!((file.dev.volumes.len(), file.dev.ports.len(), file.dev.init.len()), (1, 1, 1));
    assert_eq!((file.dev.workdir.as_deref(), file.dev.user.as_deref()), (Some("/src"), Some("1000")));
    assert_eq!((file.artifact.cpus, file.artifact.memory), (Some(Cpus(2)), Some(Memory(256))));
    assert_eq!(file.artifact.oci_platform.as_deref(), Some("linux/amd64"));
    assert_eq!((file.network.allow_hosts.len(), file.network.allow_cidrs.len()), (2, 2));
    assert!(file.network.block_private);
    let health = file.health.unwrap();
    assert_eq!((health.interval.unwrap().millis(), health.retries), (10_000, Some(3)));
    assert_eq!(health.startup_grace.unwrap().millis(), 90_000);
    let restart = file.restart.unwrap();
    assert_eq!((restart.policy, restart.max_retries), (Policy::OnFailure, Some(5)));
    let service = file.service.unwrap();
    assert_eq!((service.port, service.listen.as_deref()), (80, Some("0.0.0.0")));
    assert_eq!(file.secrets["TOKEN"], Secret::FromEnv("CI_TOKEN".into()));
    assert_eq!(file.secrets["CERT"], Secret::FromFile("~/cert.pem".into()));
    assert_eq!((file.build.cache.len(), file.build.network), (1, Some(true)));
    assert_eq!(file.snapshot.ready, Some(Ready::Port(80)));
    assert_eq!(file.snapshot.start, SnapshotStart::Entrypoint);
    assert_eq!(file.snapshot.enabled, SnapshotEnabled::Required);
}

#[test]
fn an_empty_file_is_a_machine_of_defaults() {
    let file = parse("# nothing\n").unwrap();
    assert_eq!(file, Smolfile::default());
    assert_eq!((file.image, file.cpu), (None, CpuContract::Portable));
    assert_eq!((file.snapshot.enabled, file.snapshot.start), (SnapshotEnabled::Auto, SnapshotStart::Agent));
}

#[test]
fn pack_is_another_name_for_artifact() {
    assert_eq!(parse("[pack]\ncpus = 3").unwrap().artifact.cpus, Some(Cpus(3)));
}

#[test]
fn a_missing_file_a_long_one_and_one_that_is_no_text_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Smolfile");
    assert!(Smolfile::load(&path).unwrap_err().to_string().contains("cannot read the Smolfile"));
    std::fs::write(&path, b"image = \"\xff\"").unwrap();
    assert!(Smolfile::load(&path).unwrap_err().to_string().contains("byte 9 is not valid UTF-8"));
    std::fs::write(&path, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert!(Smolfile::load(&path).unwrap_err().to_string().contains("longer than 1048576 bytes"));
    std::fs::write(&path, "cpus = 8").unwrap();
    assert_eq!(Smolfile::load(&path).unwrap().cpus, Some(Cpus(8)));
}

/// A small generator of our own, so that a failure repeats from the seed it prints.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    /// Breaks a text in one of the ways that people and tools do.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const PIECES: [&str; 12] =
            ["[", "]", "{", "}", "=", "\"", "\\", "\n", "é", "[[copy]]\n", "0x", "'''"];
        let at = self.below(bytes.len());
        match self.below(4) {
            0 => bytes[at] = self.below(256) as u8,
            1 => drop(bytes.remove(at)),
            2 => drop(bytes.splice(at..at, PIECES[self.below(PIECES.len())].bytes())),
            _ => {
                let end = (at + self.below(40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = self.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

#[test]
fn mutations_of_a_valid_file_never_panic_and_always_draw() {
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    for _ in 0..1500 {
        let mut bytes = FULL.as_bytes().to_vec();
        for _ in 0..=random.below(4) {
            random.mutate(&mut bytes);
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(SmolfileError::Invalid(problems)) = parse(&text) {
            let drawn = problems.render(false);
            assert!(drawn.contains("Smolfile:"), "seed {seed}\n{drawn}");
            assert!(!drawn.contains('\u{1b}'), "seed {seed}: an escape reached the terminal");
            for problem in problems.list() {
                let (line, _) = problems.position(problem);
                assert!(line <= text.matches('\n').count() + 1, "seed {seed}");
            }
        }
    }
}
