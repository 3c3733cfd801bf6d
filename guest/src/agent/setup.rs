//! Set-up commands: each runs over an overlay whose upper folder is what it changed.
//!
//! The disk holds the machine to be in `lower`; step N adds the folders `N/u` (upper) and `N/w` (the
//! kernel's work folder). Both lie beside `lower`, for overlayfs refuses an upper folder below a lower one.

use rustix::fs::{
    AtFlags, CWD, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags, chmod, chown, getxattr, lstat, mkdirat,
    setxattr, utimensat,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use rustix::process::{Gid, Uid};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::exec::{self, Root, Running, open_folder, open_root};
use super::{Reaper, power, tar};
use crate::protocol::{Difference, Failure, SetUp};

/// Where the disk of a machine for set-up is mounted.
pub(super) const DISK: &str = "/disk";
/// Where a step sees the machine to be.
const MERGED: &str = "/merged";
/// Whether this machine is for set-up.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Readies a machine for set-up commands; `disk` is mounted.
///
/// # Errors
/// The disk has no machine to set up.
pub(super) fn begin(disk: &Path) -> Result<(), String> {
    // Names in an overlay's options are relative to this, and so short enough for hundreds of steps.
    rustix::process::chdir(disk).map_err(|e| format!("cannot enter {}: {e}", disk.display()))?;
    if !Path::new("lower").is_dir() {
        return Err("the disk has no folder `lower` to set up".into());
    }
    BEGUN.store(true, Ordering::Relaxed);
    Ok(())
}

/// Starts a command over what the steps before it made.
///
/// # Errors
/// Why it could not be started.
pub(super) fn start(request: &SetUp, reaper: &Reaper) -> Result<Running, Failure> {
    let ready = check_begun().and_then(|()| lay_over(request.step)).and_then(|()| furnish(request));
    ready.map_err(|message| Failure { message, exit_code: 126 })?;
    exec::start(&request.command, Root::Other(Path::new(MERGED)), reaper)
}

/// Writes what a step changed as a tar. Nothing of the step runs or is mounted after this.
///
/// # Errors
/// Says what cannot be read or sent.
pub(super) fn difference(request: Difference, output: &mut impl Write) -> Result<(), String> {
    check_begun()?;
    power::end_all(libc::SIGKILL);
    unmount(MERGED, UnmountFlags::DETACH).map_err(|e| format!("cannot unmount {MERGED}: {e}"))?;
    // Only then the files say where they have holes.
    rustix::fs::sync();
    tar::write(&upper(request.step), request.latest, output)
}

fn check_begun() -> Result<(), String> {
    if BEGUN.load(Ordering::Relaxed) { Ok(()) } else { Err("this machine was not started for set-up".into()) }
}

fn upper(step: u32) -> PathBuf {
    PathBuf::from(format!("{step}/u"))
}

/// Mounts the overlay of a step.
fn lay_over(step: u32) -> Result<(), String> {
    let below: Vec<String> = (0..step).rev().map(|n| format!("{n}/u")).chain(["lower".to_owned()]).collect();
    let upper = upper(step);
    for folder in [PathBuf::from(step.to_string()), upper.clone(), format!("{step}/w").into(), MERGED.into()]
    {
        match mkdirat(CWD, &folder, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(format!("cannot make the folder {}: {e}", folder.display())),
        }
    }
    // The root of an overlay is its upper folder: it has to look like the one below.
    copy_metadata(Path::new(&below[0]), &upper)
        .map_err(|e| format!("cannot make a root for the step: {e}"))?;
    // What lies in the upper folder must be whole files, at their names, to be laid down as a layer.
    let options = format!(
        "lowerdir={},upperdir={},workdir={step}/w,redirect_dir=off,metacopy=off,index=off,xino=off\0",
        below.join(":"),
        upper.display()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).map_err(|e| e.to_string())?;
    mount("overlay", MERGED, "overlay", MountFlags::empty(), Some(options)).map_err(|e| match e {
        rustix::io::Errno::NODEV => {
            "the guest's kernel has no overlay file system, which set-up needs".into()
        }
        e => format!("cannot mount the step's overlay: {e}"),
    })
}

fn copy_metadata(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let stat = lstat(from)?;
    chown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    chmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    for name in tar::xattr_names(from)? {
        let mut value = vec![0; getxattr(from, &*name, &mut [0_u8; 0][..])?];
        let len = getxattr(from, &*name, &mut value[..])?;
        if !name.starts_with(tar::OVERLAY) {
            setxattr(to, &*name, &value[..len], XattrFlags::empty())?;
        }
    }
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
    };
    utimensat(CWD, to, &times, AtFlags::empty())
}

/// Mounts what a command expects to find, and puts the secrets where nothing but memory holds them.
fn furnish(request: &SetUp) -> Result<(), String> {
    let failed = |what: &str, e: io::Error| format!("cannot mount {what} for the step: {e}");
    let root = open_root(Path::new(MERGED)).map_err(|e| failed("its root", e))?;
    // A folder may be a link in the image: the descriptor is the folder it leads to.
    let at = |folder: &OwnedFd| format!("/proc/self/fd/{}", folder.as_raw_fd());
    for name in ["/dev", "/proc", "/sys"] {
        let folder = open_folder(&root, name).map_err(|e| failed(name, e))?;
        mount_bind_recursive(name, at(&folder)).map_err(|e| failed(name, e.into()))?;
    }
    let run = open_folder(&root, "/run").map_err(|e| failed("/run", e))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", at(&run), "tmpfs", flags, Some(c"mode=755")).map_err(|e| failed("/run", e.into()))?;
    let run = open_folder(&root, "/run").map_err(|e| failed("/run", e))?;
    fs::create_dir(format!("{}/lock", at(&run))).map_err(|e| failed("/run/lock", e))?;
    if request.secrets.is_empty() {
        return Ok(());
    }
    let secrets = open_folder(&root, "/run/secrets").map_err(|e| failed("/run/secrets", e))?;
    for (name, value) in &request.secrets {
        let file = format!("{}/{name}", at(&secrets));
        fs::write(&file, &value.0)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o400)))
            .map_err(|e| format!("cannot hand over the secret {name}: {e}"))?;
    }
    Ok(())
}
