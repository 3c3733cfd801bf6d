//! The agent as PID 1, booted by a real kernel under QEMU (TCG, no KVM needed).
//!
//! Kernel and modules are the lab's (`tests/lab/prepare`). There is no vsock device, so no host can talk to
//! the agent here; what it prints, that it switches the machine off, and what it leaves on the disk
//! can be seen. `tests/machine` talks to it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use tempfile::TempDir;

/// A machine to boot.
struct Machine {
    folder: TempDir,
    modules: Vec<PathBuf>,
}

impl Machine {
    /// Has the lab's modules but those whose names end in one of `without`.
    fn new(without: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let entries = fs::read_dir(lab().join("modules")).unwrap();
        let mut modules: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        modules.retain(|path| !without.iter().any(|name| path.to_str().unwrap().ends_with(name)));
        Self { folder, modules }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An ext4 disk with the contents of `root`.
    fn make_disk(&self, root: &Path) {
        let disk = self.path("disk");
        run(Command::new("/sbin/mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(root).arg(&disk).arg("16M"));
    }

    fn make_initrd(&self) {
        let tree = self.path("initrd.d");
        fs::create_dir_all(tree.join("modules")).unwrap();
        fs::copy(agent(), tree.join("init")).unwrap();
        for module in &self.modules {
            fs::copy(module, tree.join("modules").join(module.file_name().unwrap())).unwrap();
        }
        let script = "find . | cpio --quiet -o -H newc >../initrd";
        run(Command::new("sh").args(["-ec", script]).current_dir(tree));
    }

    /// Boots until the machine switches itself off, and gives its console. One at a time: emulation
    /// takes a whole processor.
    fn boot(&self) -> String {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        self.make_initrd();
        let _turn = ONE_AT_A_TIME.lock();
        let mut qemu = Command::new("timeout");
        qemu.args(["120", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "256", "-nic", "none"]);
        qemu.args(["-display", "none", "-monitor", "none", "-no-reboot", "-serial"]);
        qemu.arg(format!("file:{}", self.path("console").display()));
        qemu.arg("-kernel").arg(lab().join("vmlinuz")).arg("-initrd").arg(self.path("initrd"));
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        if self.path("disk").exists() {
            let disk = self.path("disk");
            qemu.arg("-drive").arg(format!("if=virtio,format=raw,file={}", disk.display()));
        }
        let status = qemu.stdin(Stdio::null()).status().unwrap();
        let console = fs::read_to_string(self.path("console")).unwrap_or_default();
        assert!(status.success(), "{status}: the machine did not switch itself off: {console}");
        console
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The folder with the lab's kernel and modules.
fn lab() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| run(&mut Command::new(repository().join("tests/lab/prepare"))).trim().into())
}

/// The agent as it ships: static, built where `build.rs` of the root package does.
fn agent() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("embedded");
        let triple = "x86_64-unknown-linux-gnu";
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(repository()).args(["build", "--quiet", "--profile", "embedded"]);
        cargo.args(["--target", triple, "--package", "smolpack-guest", "--bin", "smolpack-guest"]);
        cargo.arg("--target-dir").arg(&target).env_remove("RUSTFLAGS");
        run(cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static"));
        target.join(triple).join("embedded/smolpack-guest")
    })
}

#[test]
fn the_agent_is_static_and_at_most_two_mebibytes() {
    let bytes = fs::read(agent()).unwrap();
    assert!(bytes.len() <= 2 << 20, "{} bytes", bytes.len());
    // PT_INTERP names a loader, which an initramfs does not have.
    let programs = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    let (size, count) = (usize::from(bytes[54]), usize::from(bytes[56]));
    let kinds = (0..count).map(|n| bytes[programs + n * size]);
    assert!(kinds.into_iter().all(|kind| kind != 3), "it needs a dynamic loader");
}

#[test]
fn it_runs_nowhere_else() {
    let output = Command::new(agent()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("first process of a machine"));
}

#[test]
fn without_a_disk_the_machine_says_so_and_switches_off() {
    let console = Machine::new(&[]).boot();
    assert!(console.contains("smolpack-guest: no root disk: /dev/vda did not appear"), "{console}");
}

#[test]
fn a_disk_that_is_not_ext4_is_named() {
    let machine = Machine::new(&[]);
    fs::write(machine.path("disk"), vec![b'x'; 4 << 20]).unwrap();
    let console = machine.boot();
    assert!(console.contains("smolpack-guest: cannot mount /dev/vda as ext4: Invalid argument"), "{console}");
}

#[test]
fn a_damaged_module_is_named() {
    let mut machine = Machine::new(&[]);
    let damaged = machine.path("00-damaged.ko");
    fs::write(&damaged, b"\x7fELF and no more").unwrap();
    machine.modules.push(damaged);
    let console = machine.boot();
    assert!(console.contains("smolpack-guest: cannot load /modules/00-damaged.ko: "), "{console}");
}

/// The disk is as empty as one can be; that there is no vsock ends the boot after everything else.
#[test]
fn a_disk_without_any_folder_becomes_the_root_and_is_left_clean() {
    let machine =
        Machine::new(&["vsock.ko", "vmw_vsock_virtio_transport_common.ko", "vmw_vsock_virtio_transport.ko"]);
    let root = tempfile::tempdir().unwrap();
    machine.make_disk(root.path());
    let console = machine.boot();
    let said: Vec<&str> = console.lines().filter(|line| line.contains("smolpack-guest")).collect();
    assert_eq!(said.len(), 1, "{console}");
    assert!(said[0].contains("cannot listen on vsock port 1024: Address family not supported"), "{console}");

    let disk = machine.path("disk");
    let debugfs = |command: &str| run(Command::new("/sbin/debugfs").args(["-R", command]).arg(&disk));
    assert_eq!(debugfs("cat /etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 smolpack\n");
    let folders = debugfs("ls -p /");
    for folder in ["dev", "proc", "sys", "run", "etc", "tmp"] {
        assert!(folders.contains(&format!("/{folder}/")), "no /{folder}: {folders}");
    }
    assert!(debugfs("stat /tmp").contains("Mode:  01777"), "{}", debugfs("stat /tmp"));
    run(Command::new("/sbin/e2fsck").arg("-fn").arg(&disk));
    let summary = debugfs("show_super_stats -h");
    assert!(!summary.contains("needs_recovery"), "not unmounted cleanly: {summary}");
}
