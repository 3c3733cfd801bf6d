//! From an initramfs to a machine: modules, the root disk, the file systems a distribution expects.

use rustix::fs::{CWD, Mode, chmod, mkdirat};
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{Resource, Rlimit, chdir, chroot, setrlimit};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::setup;
use crate::protocol::SETUP_WORD;

const NEW_ROOT: &str = "/newroot";
const ROOT_DISK: &str = "/dev/vda";
/// The disk is there as soon as its driver has bound: milliseconds, even under emulation below this.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Open files a process may have, and may raise that to: what distributions give. The kernel's own
/// 4,096 is too few for databases.
const OPEN_FILES: Rlimit = Rlimit { current: Some(1024), maximum: Some(524_288) };

/// Turns the initramfs into the machine's root. Afterwards `/` is the root disk, but for a machine that is for
/// set-up commands, where the disk is mounted beside the initramfs.
///
/// # Errors
/// Says which step failed on what; the machine cannot go on then.
pub fn boot() -> Result<(), String> {
    mount_at("devtmpfs", "/dev", MountFlags::NOSUID, None).or_else(already_mounted)?;
    mount_at("proc", "/proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    mount_at("sysfs", "/sys", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    load_modules(Path::new("/modules"))?;
    wait_for(Path::new(ROOT_DISK))?;
    if is_for_setup() {
        mount_disk(setup::DISK)?;
        setup::begin(Path::new(setup::DISK))?;
    } else {
        mount_disk(NEW_ROOT)?;
        switch_root()?;
    }
    mount_the_rest();
    name_the_host();
    loopback_up();
    Ok(())
}

fn is_for_setup() -> bool {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    cmdline.split_whitespace().any(|word| word == SETUP_WORD)
}

fn mount_disk(at: &str) -> Result<(), String> {
    make_folder(at);
    mount(ROOT_DISK, at, "ext4", MountFlags::empty(), None)
        .map_err(|e| format!("cannot mount {ROOT_DISK} as ext4: {e}"))
}

fn mount_at(kind: &str, at: &str, flags: MountFlags, data: Option<&CStr>) -> Result<(), String> {
    make_folder(at);
    mount(kind, at, kind, flags, data).map_err(|e| format!("cannot mount {kind} at {at}: {e}"))
}

/// The kernel may have mounted devtmpfs itself (`CONFIG_DEVTMPFS_MOUNT`).
fn already_mounted(why: String) -> Result<(), String> {
    if Path::new("/dev/null").exists() { Ok(()) } else { Err(why) }
}

fn make_folder(path: &str) {
    // A folder that cannot be made shows when something is mounted on it.
    let _ = mkdirat(CWD, path, Mode::from_raw_mode(0o755));
}

fn load_modules(folder: &Path) -> Result<(), String> {
    let mut files: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        // A kernel with everything built in has none.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(format!("cannot read {}: {e}", folder.display())),
    };
    files.sort();
    files.iter().try_for_each(|file| {
        let opened = fs::File::open(file).map_err(|e| format!("cannot open {}: {e}", file.display()))?;
        match rustix::system::finit_module(&opened, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(format!("cannot load {}: {e}", file.display())),
        }
    })
}

fn wait_for(path: &Path) -> Result<(), String> {
    let started = Instant::now();
    while !path.exists() {
        if started.elapsed() > DISK_TIMEOUT {
            return Err(format!("no root disk: {} did not appear", path.display()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Moves the kernel's file systems over, frees the initramfs, and makes the disk the root.
fn switch_root() -> Result<(), String> {
    for name in ["dev", "proc", "sys"] {
        let target = format!("{NEW_ROOT}/{name}");
        make_folder(&target);
        mount_move(format!("/{name}"), &target)
            .map_err(|e| format!("cannot move /{name} to {target}: {e}"))?;
    }
    // The initramfs lives in memory; its files are of no use from here.
    let _ = fs::remove_dir_all("/modules");
    let _ = fs::remove_file("/init");
    let failed = |e: rustix::io::Errno| format!("cannot make {NEW_ROOT} the root: {e}");
    chdir(NEW_ROOT).map_err(failed)?;
    mount_move(".", "/").map_err(failed)?;
    chroot(".").map_err(failed)?;
    chdir("/").map_err(failed)
}

/// What a distribution's init would mount. A machine works without any one of these, so a failure is
/// told on the console and no more.
fn mount_the_rest() {
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    let quiet = safe | MountFlags::NOEXEC;
    let wanted = [
        ("devpts", "/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, Some(c"mode=620,gid=5,ptmxmode=666")),
        ("tmpfs", "/dev/shm", safe, Some(c"mode=1777")),
        ("mqueue", "/dev/mqueue", quiet, None),
        ("tmpfs", "/run", safe, Some(c"mode=755")),
        ("cgroup2", "/sys/fs/cgroup", quiet, Some(c"nsdelegate")),
    ];
    for (kind, at, flags, data) in wanted {
        if let Err(why) = mount_at(kind, at, flags, data) {
            eprintln!("smolpack-guest: {why}");
        }
    }
    make_folder("/run/lock");
    make_temporary_folder();
    let _ = setrlimit(Resource::Nofile, OPEN_FILES);
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "fd/0"),
        ("/dev/stdout", "fd/1"),
        ("/dev/stderr", "fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(target, link);
    }
}

/// An image from nothing but a program may lack `/tmp`; one that has it decides its mode.
fn make_temporary_folder() {
    if mkdirat(CWD, "/tmp", Mode::from_raw_mode(0o777)).is_ok() {
        let _ = chmod("/tmp", Mode::from_raw_mode(0o1777)); // what umask took and more
    }
}

fn name_the_host() {
    let text = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let name = name.filter(|name| name.len() <= 64).unwrap_or("smolpack");
    if let Err(e) = rustix::system::sethostname(name.as_bytes()) {
        eprintln!("smolpack-guest: cannot set the host name {name}: {e}");
    }
    write_if_empty("/etc/hosts", &format!("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n"));
}

fn write_if_empty(path: &str, text: &str) {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > 0) {
        return;
    }
    make_folder("/etc");
    // An image may well have no /etc, or a link there that leads nowhere.
    let _ = fs::write(path, text);
}

/// Brings `lo` up (`SIOCSIFFLAGS`, netdevice(7)).
fn loopback_up() {
    use std::os::fd::AsRawFd;
    let Ok(socket) = std::net::UdpSocket::bind("0.0.0.0:0") else { return };
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a whole `ifreq` that outlives the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } != 0 {
        eprintln!("smolpack-guest: cannot bring lo up: {}", io::Error::last_os_error());
    }
}
