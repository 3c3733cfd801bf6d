//! `smolpack doctor`: what this host can do, and what mends what it cannot.

use crate::error::CliError;
use crate::output::Output;
use crate::paths;
use rustix::fs::statvfs;
use serde::Serialize;
use smolpack_builder::kernel::KernelStore;
use smolpack_runner::host::KvmStatus;
use std::fmt;
use std::path::{Path, PathBuf};

/// A build spools layers and writes the artifact twice (cold, then with its snapshot).
const WANTED_FREE_BYTES: u64 = 4 << 30;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All is well.
    Ok,
    /// Something works less well, or is done on demand.
    Warning,
    /// Something does not work.
    Failed,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// The command that mends it, or what to do.
    pub remedy: Option<String>,
}

/// All checks.
#[derive(Debug, Serialize)]
pub struct Report {
    /// In the order in which they are printed.
    pub checks: Vec<Check>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let mark = match check.status {
                Status::Ok => "ok",
                Status::Warning => "warning",
                Status::Failed => "failed",
            };
            writeln!(f, "{:<8} {:<8} {}", mark, check.name, check.found)?;
            if let Some(remedy) = &check.remedy {
                writeln!(f, "{:18}try: {remedy}", "")?;
            }
        }
        Ok(())
    }
}

/// Runs every check.
///
/// # Errors
/// Where a check failed (after printing all of them), or the user's folders are unknown.
pub fn doctor(out: &mut Output) -> Result<(), CliError> {
    let data = paths::data()?;
    let report = Report {
        checks: vec![
            kvm(KvmStatus::probe()),
            kernel(&data),
            program("qemu-system-x86_64", "qemu", "sudo apt-get install qemu-system-x86"),
            space("data", &data),
            space("cache", &paths::cache()?),
        ],
    };
    out.data(&report)?;
    match report.checks.iter().filter(|check| check.status == Status::Failed).count() {
        0 => Ok(()),
        n => Err(CliError::failed(format!("{n} of {} checks failed", report.checks.len()))),
    }
}

fn kvm(status: KvmStatus) -> Check {
    Check {
        name: "kvm",
        status: if status.runs_linux() { Status::Ok } else { Status::Failed },
        found: status.describe().to_owned(),
        remedy: status.remedy().map(str::to_owned),
    }
}

fn kernel(data: &Path) -> Check {
    let found = KernelStore::open(data).and_then(|store| store.default_kernel());
    let (status, found, remedy) = match found {
        Ok(Some(kernel)) => (Status::Ok, format!("guest kernel {}", kernel.version()), None),
        Ok(None) => (
            Status::Warning,
            "no guest kernel yet; the first build fetches one".to_owned(),
            Some("smolpack kernel fetch".to_owned()),
        ),
        Err(e) => (Status::Failed, e.to_string(), Some("smolpack kernel fetch".to_owned())),
    };
    Check { name: "kernel", status, found, remedy }
}

fn program(program: &str, name: &'static str, remedy: &str) -> Check {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| path.is_file()) {
        Some(path) => Check { name, status: Status::Ok, found: path.display().to_string(), remedy: None },
        None => Check {
            name,
            status: Status::Warning,
            found: format!("{program} is not installed; only the emulated test lab needs it"),
            remedy: Some(remedy.to_owned()),
        },
    }
}

fn space(name: &'static str, folder: &Path) -> Check {
    let existing = nearest_existing(folder);
    match statvfs(&existing) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let enough = free >= WANTED_FREE_BYTES;
            Check {
                name,
                status: if enough { Status::Ok } else { Status::Warning },
                found: format!("{:.1} GiB free in {}", free as f64 / f64::from(1 << 30), existing.display()),
                remedy: (!enough).then(|| {
                    let variable = if name == "data" { "XDG_DATA_HOME" } else { "XDG_CACHE_HOME" };
                    format!("free some space, or point {variable} at a larger disk")
                }),
            }
        }
        Err(e) => Check {
            name,
            status: Status::Failed,
            found: format!("cannot look at {}: {e}", existing.display()),
            remedy: None,
        },
    }
}

fn nearest_existing(folder: &Path) -> PathBuf {
    folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kvm_trouble_comes_with_a_remedy() {
        for status in [KvmStatus::Missing, KvmStatus::Denied, KvmStatus::NoHardware] {
            let check = kvm(status);
            assert_eq!(check.status, Status::Failed);
            assert!(check.remedy.is_some(), "{status:?}");
        }
        assert_eq!(kvm(KvmStatus::Svm).remedy, None);
    }

    #[test]
    fn a_missing_program_names_the_command_that_installs_it() {
        let check = program("no-such-program-here", "qemu", "sudo apt-get install it");
        assert_eq!(
            (check.status, check.remedy.as_deref()),
            (Status::Warning, Some("sudo apt-get install it"))
        );
    }

    #[test]
    fn space_is_that_of_the_nearest_existing_folder() {
        assert_eq!(nearest_existing(Path::new("/proc/self/no/such")), Path::new("/proc/self"));
    }
}
