//! Kernels in every form they come in, packed by the real tools.

#![allow(clippy::unwrap_used, missing_docs)]

use smolpack_builder::kernel::{Kernel, KernelError, KernelStore};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

struct Work(tempfile::TempDir);

impl Work {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn import(&self, path: &Path) -> Result<Kernel, KernelError> {
        KernelStore::open(&self.0.path().join("data")).unwrap().import(path)
    }
}

/// Passes `input` through a tool that must be there.
fn pipe(command: &[&str], input: &[u8]) -> Vec<u8> {
    let child =
        Command::new(command[0]).args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|e| panic!("these tests need {}: {e}", command[0]));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeding = std::thread::spawn(move || stdin.write_all(&input));
    let out = child.wait_with_output().unwrap();
    feeding.join().unwrap().unwrap();
    assert!(out.status.success(), "{command:?}");
    out.stdout
}

const DRIVERS: &[u8] = b"virtio-mmio\0virtio_blk\0ext4\0vmw_vsock_virtio_transport\0";

/// An ELF of one loaded segment: a banner, names of drivers, and some code-like bytes.
fn vmlinux(drivers: &[u8]) -> Vec<u8> {
    let mut elf = vec![0_u8; 200 << 10];
    for (i, byte) in elf.iter_mut().enumerate().skip(0x1000) {
        *byte = (i * i / 7 % 251) as u8;
    }
    let len = elf.len() as u64;
    let mut put = |at: usize, bytes: &[u8]| elf[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01\0");
    put(16, &2_u16.to_le_bytes());
    put(18, &62_u16.to_le_bytes());
    put(20, &1_u32.to_le_bytes());
    put(24, &0x100_0000_u64.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(52, &64_u16.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &1_u16.to_le_bytes());
    put(64, &1_u32.to_le_bytes());
    put(68, &5_u32.to_le_bytes());
    put(80, &0x100_0000_u64.to_le_bytes());
    put(88, &0x100_0000_u64.to_le_bytes());
    put(96, &len.to_le_bytes());
    put(104, &len.to_le_bytes());
    put(112, &0x1000_u64.to_le_bytes());
    put(0x200, b"Linux version 6.9.0-test (x@y) #1 SMP\n\0");
    put(0x300, drivers);
    elf
}

/// A bzImage around a payload (Documentation/arch/x86/boot.rst).
fn bzimage(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0_u8; 1024];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1F1, &[1]); // one setup sector
    put(0x1FE, &0xAA55_u16.to_le_bytes());
    put(0x202, b"HdrS");
    put(0x206, &0x020F_u16.to_le_bytes());
    put(0x236, &1_u16.to_le_bytes());
    put(0x248, &0_u32.to_le_bytes());
    put(0x24C, &(payload.len() as u32).to_le_bytes());
    image.extend_from_slice(payload);
    image
}

/// As the kernel's build does: compressed, then the length, which gzip has at its end anyway.
fn payload(kind: &str, elf: &[u8]) -> Vec<u8> {
    let mut packed = match kind {
        "gzip" => return pipe(&["gzip", "-n", "-9", "-c"], elf),
        "xz" => pipe(&["xz", "--check=crc32", "--x86", "--lzma2=,dict=32MiB", "-c"], elf),
        "lz4" => pipe(&["lz4", "-l", "-9", "-c", "-"], elf),
        _ => pipe(&["zstd", "-q", "-19", "-c"], elf),
    };
    packed.extend((elf.len() as u32).to_le_bytes());
    packed
}

#[test]
fn every_compression_gives_the_same_kernel_as_the_elf() {
    let work = Work::new();
    let elf = vmlinux(DRIVERS);
    let plain = work.import(&work.file("vmlinux", &elf)).unwrap();
    assert_eq!((plain.version(), plain.record().modules.len()), ("6.9.0-test", 0));
    for kind in ["gzip", "xz", "lz4", "zstd"] {
        let packed = work.import(&work.file(kind, &bzimage(&payload(kind, &elf)))).unwrap();
        assert_eq!(packed.digest(), plain.digest(), "{kind}");
        assert_eq!(fs::read(packed.vmlinux()).unwrap(), fs::read(plain.vmlinux()).unwrap(), "{kind}");
    }
}

#[test]
fn a_kernel_without_a_driver_that_machines_need_is_refused_by_its_name() {
    let work = Work::new();
    let error = work.import(&work.file("vmlinux", &vmlinux(b"virtio_blk\0ext4\0"))).unwrap_err();
    assert!(error.to_string().contains("virtio_mmio") && error.is_bad_input(), "{error}");
}

#[test]
fn what_is_no_kernel_is_one_clear_error_each() {
    let work = Work::new();
    let elf = vmlinux(DRIVERS);
    let mut arm = vec![0; 128];
    arm[56..60].copy_from_slice(b"ARM\x64");
    let mut elf32 = elf.clone();
    elf32[4] = 1;
    let mut old = bzimage(&payload("gzip", &elf));
    old[0x206] = 0;
    for (name, bytes, words) in [
        ("empty", vec![], "empty"),
        ("text", b"hello there".to_vec(), "none of the known formats"),
        ("arm64", arm, "arm64"),
        ("elf32", elf32, "32-bit"),
        ("old", old, "32-bit bzImage"),
        ("cut", elf[..elf.len() / 2].to_vec(), "truncated"),
        ("cut-bzimage", bzimage(&payload("zstd", &elf))[..2000].to_vec(), "truncated"),
        ("gz", pipe(&["gzip", "-c"], &elf), "decompress it first"),
    ] {
        let error = work.import(&work.file(name, &bytes)).unwrap_err();
        let mut said = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            said = format!("{said}: {cause}");
            source = cause.source();
        }
        assert!(said.contains(words) && error.is_bad_input(), "{name}: {said}");
    }
}

#[test]
fn damage_and_cuts_never_panic() {
    let seed = std::env::var("SMOLPACK_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(u64::from(std::process::id()));
    println!("SMOLPACK_SEED={seed}");
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let work = Work::new();
    let elf = vmlinux(DRIVERS);
    let images: Vec<_> = ["gzip", "xz", "lz4", "zstd"].map(|kind| bzimage(&payload(kind, &elf))).into();
    for _ in 0..150 {
        let mut bytes = images[random(images.len())].clone();
        for _ in 0..random(4) {
            let at = if random(2) == 0 { random(1100) } else { random(bytes.len()) };
            bytes[at] = random(256) as u8;
        }
        let keep = if random(2) == 0 { bytes.len() } else { random(bytes.len()) };
        let _ = work.import(&work.file("x", &bytes[..keep]));
    }
}

#[test]
fn an_initrd_is_a_cpio_archive_the_same_every_time() {
    let work = Work::new();
    let kernel = work.import(&work.file("vmlinux", &vmlinux(DRIVERS))).unwrap();
    let initrd = kernel.initrd(b"the agent").unwrap();
    assert_eq!(initrd, kernel.initrd(b"the agent").unwrap());
    let listed = String::from_utf8(pipe(&["cpio", "--quiet", "-it"], &initrd)).unwrap();
    for name in ["init", "dev", "proc", "sys", "newroot", "dev/console"] {
        assert!(listed.lines().any(|line| line.trim_start_matches('/') == name), "{name} in {listed}");
    }
}

#[test]
fn kernels_are_found_by_version_and_digest_listed_newest_first_and_removed() {
    let work = Work::new();
    let store = KernelStore::open(&work.0.path().join("data")).unwrap();
    assert!(store.default_kernel().unwrap().is_none());
    let first = work.import(&work.file("one", &vmlinux(DRIVERS))).unwrap();
    let mut other = vmlinux(DRIVERS);
    other[0x800] = 1;
    let second = work.import(&work.file("two", &other)).unwrap();
    let digests: Vec<_> = store.list().unwrap().iter().map(|k| k.digest().to_owned()).collect();
    assert_eq!(digests, [second.digest(), first.digest()]);
    assert_eq!(store.find(&first.digest()[..12]).unwrap().digest(), first.digest());
    assert!(matches!(store.find("6.9.0-test"), Err(KernelError::Ambiguous { .. })));
    store.remove(first.digest()).unwrap();
    assert_eq!(store.default_kernel().unwrap().unwrap().digest(), second.digest());
    assert!(matches!(store.find(first.digest()), Err(KernelError::Unknown { .. })));
}

#[test]
fn a_debian_package_brings_its_modules_in_the_order_to_load_them() {
    let work = Work::new();
    let root = work.0.path().join("root");
    let modules = root.join("lib/modules/6.9.0-test");
    // What modpost writes into a module, compiled for real: `depends=` says what must be there first.
    let module = |depends: &str| {
        let text = format!("__attribute__((section(\".modinfo\"))) char info[] = \"depends={depends}\";");
        let source = work.file("module.c", text.as_bytes());
        let object = work.0.path().join("module.o");
        assert!(Command::new("cc").arg("-c").arg(source).arg("-o").arg(&object).status().unwrap().success());
        pipe(&["xz", "--check=crc32", "-c"], &fs::read(&object).unwrap())
    };
    fs::create_dir_all(modules.join("kernel")).unwrap();
    for (name, depends) in [
        ("virtio", ""),
        ("virtio_mmio", "virtio"),
        ("virtio_blk", "virtio"),
        ("vsock", ""),
        ("vmw_vsock_virtio_transport", "vsock,virtio"),
        ("unrelated", ""),
    ] {
        fs::write(modules.join(format!("kernel/{name}.ko.xz")), module(depends)).unwrap();
    }
    fs::write(modules.join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
    fs::create_dir_all(root.join("boot")).unwrap();
    fs::write(root.join("boot/vmlinuz-6.9.0-test"), bzimage(&payload("lz4", &vmlinux(b"ext4\0")))).unwrap();
    fs::create_dir_all(root.join("DEBIAN")).unwrap();
    let control = "Package: linux-image-6.9.0-test\nVersion: 1\nArchitecture: amd64\nMaintainer: x <x@y>\nDescription: x\n";
    fs::write(root.join("DEBIAN/control"), control).unwrap();
    let package = work.0.path().join("kernel.deb");
    let built = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-b"])
        .arg(&root)
        .arg(&package)
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");

    let kernel = work.import(&package).unwrap();
    let order: Vec<_> = kernel.record().modules.iter().map(|m| m.name.as_str()).collect();
    let place = |name: &str| {
        order.iter().position(|other| *other == name).unwrap_or_else(|| panic!("{name}: {order:?}"))
    };
    assert!(!order.contains(&"unrelated"), "{order:?}");
    assert!(place("virtio") < place("virtio_mmio") && place("vsock") < place("vmw_vsock_virtio_transport"));
    let listed = String::from_utf8(pipe(&["cpio", "--quiet", "-it"], &kernel.initrd(b"x").unwrap())).unwrap();
    assert!(listed.contains("modules/00-virtio.ko"), "{listed}");
}
