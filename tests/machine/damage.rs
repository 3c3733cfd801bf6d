//! Damaged artifacts, and hosts without room.

use crate::support::{boot, build, hello, repository, scratch, smolpack, stdout, text};
use smolpack_format::{Artifact, ChunkData, SectionKind};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A copy of the machine of [`hello`].
fn copy(name: &str) -> PathBuf {
    let path = scratch().join(name);
    std::fs::copy(hello(), &path).unwrap();
    path
}

/// Flips a bit in the middle of each chunk of a section.
fn damage(path: &Path, kind: SectionKind) {
    let artifact = Artifact::open(path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    for chunk in artifact.section(kind).unwrap().unwrap().chunks() {
        let middle = match chunk.data {
            ChunkData::Raw { offset } => offset + chunk.len / 2,
            ChunkData::Zstd { offset, stored } => offset + stored / 2,
            ChunkData::Zero | ChunkData::Parent => continue,
        };
        let mut byte = [0];
        artifact.file().read_exact_at(&mut byte, middle).unwrap();
        file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    }
}

#[test]
fn a_flipped_bit_is_noticed_before_it_is_used() {
    for (kind, args) in [
        (SectionKind::Kernel, &["--cold"][..]),
        (SectionKind::Initrd, &["--cold"]),
        (SectionKind::VmState, &[]),
        (SectionKind::Memory, &["--verify"]),
    ] {
        let file = copy(&format!("{kind}.smolmachine"));
        damage(&file, kind);
        let out = boot(&[args, &[file.to_str().unwrap(), "--", "echo", "ran"]].concat());
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(125), String::new()), "{kind}");
        let said = text(&out.stderr);
        assert!(said.contains(&format!("section {kind}")), "{kind}: {said}");
    }
    let file = copy("disk.smolmachine");
    damage(&file, SectionKind::Disk);
    // No program can be read from such a disk whole.
    let out = boot(&["-q", file.to_str().unwrap(), "--", "dd", "if=/dev/vda", "of=/dev/null", "bs=1M"]);
    assert!(!out.status.success());
    let said = text(&out.stderr);
    assert!(said.contains("section disk, byte") && said.contains("the guest gets an I/O error"), "{said}");
}

/// Starts a machine that says when it is up, and goes on when it is told to.
fn waiting(file: &Path, script: &str) -> Child {
    let mut child = smolpack()
        .args([
            "boot",
            "-qi",
            file.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &format!("echo up; read x; {script}"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    child
}

/// Tells it to go on.
fn go_on(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

#[test]
fn an_artifact_that_changes_under_a_running_machine_is_named() {
    let file = copy("truncated.smolmachine");
    let child = waiting(&file, "dd if=/dev/vda of=/dev/null bs=1M");
    File::options().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    let out = go_on(child);
    let said = text(&out.stderr);
    assert!(said.contains("truncated.smolmachine was truncated while the machine ran"), "{said}");

    let file = copy("overwritten.smolmachine");
    let child = waiting(&file, "true");
    damage(&file, SectionKind::Memory);
    let said = text(&go_on(child).stderr);
    assert!(said.contains("overwritten.smolmachine was overwritten while the machine ran"), "{said}");

    // Another file under the same name is not the one that runs.
    let file = copy("replaced.smolmachine");
    let child = waiting(&file, "true");
    std::fs::rename(copy("other.smolmachine"), &file).unwrap();
    let out = go_on(child);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
}

/// A folder with room for 4 MiB.
struct Small(PathBuf);

impl Small {
    fn new(name: &str) -> Self {
        let folder = scratch().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&folder).status();
        assert!(mount.unwrap().success());
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_host_is_told_and_mended_by_room() {
    let small = Small::new("small");
    let large = build("large", &repository().join("recipes/hello"), &["--disk", "128MiB"]);
    let ballast = small.0.join("ballast");
    std::fs::write(&ballast, vec![1; 3 << 20]).unwrap();
    let script =
        "dd if=/dev/urandom of=/new bs=64k count=40 conv=fsync 2>/dev/null && echo written || echo full";
    let run = |args: &[&str]| {
        let mut command = smolpack();
        command.arg("boot").arg("-q").args(args).args([large.as_str(), "--", "sh", "-c", script]);
        command.env("TMPDIR", &small.0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let out = run(&[]).wait_with_output().unwrap();
    assert_eq!(stdout(&out), "full\n");
    let said = text(&out.stderr);
    assert!(said.contains(&format!("{} has no room", small.0.display())) && said.contains("bytes are free"));
    assert_eq!(said.lines().count(), 1, "{said}");

    let mut waits = run(&["--on-full", "wait"]);
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(waits.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.contains("the machine waits until there is some"), "{line}");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(stdout(&waits.wait_with_output().unwrap()), "written\n");
}
