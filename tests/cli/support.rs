//! A small image and kernel, and ways to run the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A home of its own for one test run: the user's kernels and layers are not touched.
pub(crate) fn home() -> &'static Path {
    static HOME: OnceLock<tempfile::TempDir> = OnceLock::new();
    HOME.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// The program, in that home, told to take no snapshot where the test does not want one.
pub(crate) fn smolpack() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smolpack"));
    command.env("XDG_DATA_HOME", home().join("data")).env("XDG_CACHE_HOME", home().join("cache"));
    command.env_remove("SOURCE_DATE_EPOCH");
    command
}

/// Runs it in `folder` and gives exit status, stdout and stderr.
pub(crate) fn run_in(folder: &Path, args: &[&str]) -> (i32, String, String) {
    finish(smolpack().current_dir(folder).args(args).output().unwrap())
}

pub(crate) fn finish(out: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
}

/// A folder with a Smolfile whose image is a root folder of a few files, and a kernel to build with.
pub(crate) fn context() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("root/etc/passwd"), b"root:x:0:0::/root:/bin/sh\n");
    write(&folder.path().join("root/bin/sh"), &vec![7; 300_000]);
    write(&folder.path().join("vmlinux"), &kernel());
    write(
        &folder.path().join("Smolfile"),
        b"image = \"./root\"\ndisk = \"32MiB\"\n[kernel]\npath = \"vmlinux\"\n[snapshot]\nenabled = false\n",
    );
    folder
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The smallest file that counts as a kernel with every driver built in: an ELF of one segment that
/// holds a version and the names under which the drivers register.
fn kernel() -> Vec<u8> {
    let mut elf = vec![0_u8; 0x1000];
    elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let mut put = |at: usize, bytes: &[u8]| elf[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &2_u16.to_le_bytes()); // executable
    put(18, &62_u16.to_le_bytes()); // x86-64
    put(20, &1_u32.to_le_bytes());
    put(24, &0x100_0000_u64.to_le_bytes()); // entry
    put(32, &64_u64.to_le_bytes()); // program headers
    put(52, &64_u16.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &1_u16.to_le_bytes());
    put(64, &1_u32.to_le_bytes()); // load
    put(68, &5_u32.to_le_bytes());
    put(72, &0_u64.to_le_bytes());
    put(80, &0x100_0000_u64.to_le_bytes());
    put(88, &0x100_0000_u64.to_le_bytes());
    put(96, &0x1000_u64.to_le_bytes());
    put(104, &0x1000_u64.to_le_bytes());
    put(112, &0x1000_u64.to_le_bytes());
    put(0x200, b"Linux version 6.9.0-test (x@y) #1 SMP\n\0");
    put(0x300, b"virtio-mmio\0virtio_blk\0ext4\0vmw_vsock_virtio_transport\0");
    elf
}

/// A built artifact of [`context`].
pub(crate) fn artifact() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = home().join("machine.smolmachine");
        let (code, _, err) = run_in(context().path(), &["build", "-o", file.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        file
    })
}
