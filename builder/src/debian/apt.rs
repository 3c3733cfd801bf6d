//! Downloads packages through the system's apt, unprivileged: apt knows where they are and verifies
//! them against the distribution's keys, so smolpack needs neither mirrors nor keys of its own.
//!
//! The system's package lists may be absent (fresh containers) or stale (the package they name is
//! gone). Then fresh ones are fetched into a private folder, once, with the system's sources and keys.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::progress::Progress;

/// Why apt did not deliver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AptError {
    /// No apt here: this is no Debian.
    #[error("{program} is not on this system, which is then no Debian or Ubuntu")]
    NoApt {
        /// The program that was not found.
        program: String,
    },
    /// The distribution does not have the package.
    #[error("the package {package} is not in this system's package sources (/etc/apt)")]
    NoPackage {
        /// The package's name.
        package: String,
    },
    /// apt failed: no network, a signature that does not fit, a full disk.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// What was run.
        command: String,
        /// The end of what it printed.
        said: String,
    },
    /// A file or a process could not be made.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn doing(doing: &'static str) -> impl Fn(io::Error) -> AptError {
    move |source| AptError::Io { doing, source }
}

/// The system's apt, told to work in a folder of ours.
#[derive(Debug)]
pub struct Apt {
    get: PathBuf,
    cache: PathBuf,
    scratch: PathBuf,
    /// Whether the private package lists in `scratch` are used.
    private_lists: bool,
}

impl Apt {
    /// apt as found in `PATH`. Everything it downloads or caches goes into the folder `scratch`,
    /// which the caller removes.
    #[must_use]
    pub fn new(scratch: &Path) -> Self {
        Self::with_programs("apt-get".as_ref(), "apt-cache".as_ref(), scratch)
    }

    /// [`Apt::new`] with the programs named.
    #[must_use]
    pub fn with_programs(get: &Path, cache: &Path, scratch: &Path) -> Self {
        Self {
            get: get.to_owned(),
            cache: cache.to_owned(),
            scratch: scratch.to_owned(),
            private_lists: false,
        }
    }

    /// Downloads the newest `package` and gives the path of its `.deb` in the scratch folder.
    ///
    /// # Errors
    /// Where there is no apt, no such package, or no way to it.
    pub fn download(&mut self, package: &str, progress: &mut dyn Progress) -> Result<PathBuf, AptError> {
        self.with_fresh_lists(progress, &|apt, progress| apt.download_once(package, progress))
    }

    /// Downloads the first dependency of `package` whose name begins with `prefix`: what a
    /// metapackage stands for at the moment.
    ///
    /// # Errors
    /// As [`Apt::download`].
    pub fn download_dependency(
        &mut self,
        package: &str,
        prefix: &str,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, AptError> {
        self.with_fresh_lists(progress, &|apt, progress| {
            let real = apt.dependency(package, prefix)?;
            apt.download_once(&real, progress)
        })
    }

    /// Does `work`; where apt refuses, once more with package lists fetched anew.
    fn with_fresh_lists<T>(
        &mut self,
        progress: &mut dyn Progress,
        work: &dyn Fn(&Self, &mut dyn Progress) -> Result<T, AptError>,
    ) -> Result<T, AptError> {
        let first = match work(self, progress) {
            Err(e @ (AptError::NoPackage { .. } | AptError::Failed { .. })) if !self.private_lists => e,
            settled => return settled,
        };
        progress.note("apt's package lists do not lead to the package: fetching fresh ones");
        // One broken source among several is no reason to give up; it is the reason if nothing works.
        let lists = self.fetch_lists();
        work(self, progress).map_err(|second| match (lists, second) {
            (Err(unreachable), _) if matches!(first, AptError::NoPackage { .. }) => unreachable,
            (Err(_), _) => first,
            (Ok(()), second) => second,
        })
    }

    fn fetch_lists(&mut self) -> Result<(), AptError> {
        for folder in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(self.scratch.join(folder)).map_err(doing("make a folder for apt"))?;
        }
        self.private_lists = true;
        // Without this option apt-get calls it a success when no list could be fetched.
        let mut update = self.command(&self.get);
        update.args(["-qq", "-o", "APT::Update::Error-Mode=any", "update"]);
        run(&mut update).map(drop)
    }

    fn dependency(&self, package: &str, prefix: &str) -> Result<String, AptError> {
        let mut depends = self.command(&self.cache);
        depends.args(["depends", "--important", package]);
        let none = || AptError::NoPackage { package: package.to_owned() };
        let listed = run(&mut depends).map_err(|e| match e {
            AptError::Failed { ref said, .. } if said.contains("No packages found") => none(),
            other => other,
        })?;
        listed
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .ok_or_else(none)
    }

    fn download_once(&self, package: &str, progress: &mut dyn Progress) -> Result<PathBuf, AptError> {
        let size = self.size(package)?;
        progress.phase(&format!("download {package}"), size);
        let mut download = self.command(&self.get);
        download.args(["-qq", "-o", "APT::Status-Fd=1", "download", package]);
        let mut done = 0;
        run_with(&mut download, &mut |line| {
            let Some((size, percent)) = size.zip(status_percent(line)) else { return };
            let now = part_of(size, percent);
            progress.advance(now.saturating_sub(done));
            done = done.max(now);
        })?;
        self.downloaded(package)
    }

    /// The length of a package's file, bytes. Its line reads `'URI' NAME SIZE HASH`.
    fn size(&self, package: &str) -> Result<Option<u64>, AptError> {
        let mut uris = self.command(&self.get);
        uris.args(["-qq", "--print-uris", "download", package]);
        let printed = run(&mut uris).map_err(|e| match e {
            AptError::Failed { ref said, .. } if said.contains("Unable to locate package") => {
                AptError::NoPackage { package: package.to_owned() }
            }
            other => other,
        })?;
        let line = printed.lines().find(|line| line.starts_with('\''));
        Ok(line.and_then(|line| line.split_whitespace().nth(2)?.parse().ok()))
    }

    /// apt names the file `PACKAGE_VERSION_ARCHITECTURE.deb`.
    fn downloaded(&self, package: &str) -> Result<PathBuf, AptError> {
        let name = package.split(':').next().unwrap_or(package);
        let entries = std::fs::read_dir(&self.scratch).map_err(doing("read the download folder"))?;
        for entry in entries {
            let path = entry.map_err(doing("read the download folder"))?.path();
            let file = path.file_name().and_then(|f| f.to_str()).unwrap_or_default();
            if Path::new(&file).extension().is_some_and(|end| end == "deb")
                && file.split('_').next() == Some(name)
            {
                return Ok(path);
            }
        }
        Err(AptError::Failed { command: format!("apt-get download {package}"), said: "no file came".into() })
    }

    /// A command in the scratch folder, speaking English, never asking.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.scratch).env("LC_ALL", "C").stdin(Stdio::null());
        let mut options = vec![
            "APT::Get::AllowUnauthenticated=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::http::Timeout=20".to_owned(),
            "Acquire::https::Timeout=20".to_owned(),
        ];
        if rustix::process::geteuid().is_root() {
            // root's apt drops to a user who may not write into our folder, and complains.
            options.push("APT::Sandbox::User=root".to_owned());
        }
        if self.private_lists {
            options.push(format!("Dir::State::Lists={}", self.scratch.join("lists").display()));
            options.push(format!("Dir::Cache={}", self.scratch.join("cache").display()));
        }
        for option in options {
            command.arg("-o").arg(option);
        }
        command
    }
}

fn spawn(command: &mut Command) -> Result<Child, AptError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => AptError::NoApt { program: command.get_program().display().to_string() },
        _ => AptError::Io { doing: "start apt", source },
    })
}

/// Exact enough for a progress bar.
#[allow(clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn part_of(size: u64, percent: f64) -> u64 {
    (size as f64 * (percent / 100.0).clamp(0.0, 1.0)) as u64
}

/// The percentage in apt's `dlstatus:N:PERCENT:TEXT`.
fn status_percent(line: &str) -> Option<f64> {
    let mut fields = line.split(':');
    (fields.next()? == "dlstatus").then(|| fields.nth(1)?.parse().ok())?
}

/// Runs a command to its end and gives what it printed.
fn run(command: &mut Command) -> Result<String, AptError> {
    let mut printed = String::new();
    run_with(command, &mut |line| {
        printed.push_str(line);
        printed.push('\n');
    })?;
    Ok(printed)
}

/// Runs a command to its end and shows `on_line` what it prints, as it does.
fn run_with(command: &mut Command, on_line: &mut dyn FnMut(&str)) -> Result<(), AptError> {
    let mut child = spawn(command)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Both are read at once, or a full pipe would stop apt.
    let said = std::thread::scope(|scope| {
        let read = || stderr.map(read_lossy).unwrap_or_default();
        let said = std::thread::Builder::new().spawn_scoped(scope, read);
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok)
        {
            on_line(&String::from_utf8_lossy(&line));
        }
        Ok(said?.join().unwrap_or_default())
    });
    let said = said.map_err(doing("start a thread"))?;
    let status = child.wait().map_err(doing("wait for apt"))?;
    if status.success() {
        return Ok(());
    }
    Err(AptError::Failed { command: shown(command), said: last_words(&said, status) })
}

/// What can be read of the first 64 KiB, enough for a message; the rest is read away.
fn read_lossy(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.by_ref().take(64 << 10).read_to_end(&mut bytes);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The command without the options that are ours alone.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    let mut args = command.get_args();
    while let Some(arg) = args.next() {
        if arg == "-o" {
            args.next();
        } else {
            words.push(arg.to_string_lossy().into_owned());
        }
    }
    words.join(" ")
}

/// The errors among what apt printed, on one line.
fn last_words(text: &str, status: ExitStatus) -> String {
    let errors: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("E: ")).take(3).collect();
    match (errors.is_empty(), text.trim()) {
        (false, _) => errors.join("; "),
        (true, "") => status.to_string(),
        (true, words) => words.lines().last().unwrap_or(words).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use std::os::unix::fs::PermissionsExt;

    /// A folder with scripts that stand in for apt.
    fn fake_apt(get: &str, cache: &str) -> (tempfile::TempDir, Apt) {
        let dir = tempfile::tempdir().unwrap();
        for (name, body) in [("apt-get", get), ("apt-cache", cache)] {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let scratch = dir.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        let apt = Apt::with_programs(&dir.path().join("apt-get"), &dir.path().join("apt-cache"), &scratch);
        (dir, apt)
    }

    #[test]
    fn no_apt_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = dir.path().join("apt-get");
        let mut apt = Apt::with_programs(&nothing, &nothing, dir.path());
        let err = apt.download("hello", &mut Silent).unwrap_err();
        assert!(matches!(err, AptError::NoApt { .. }), "{err}");
    }

    #[test]
    fn no_network_says_what_apt_said() {
        let (_dir, mut apt) =
            fake_apt("echo 'E: Could not connect' >&2; exit 100", "echo '  Depends: linux-image-1'");
        let err = apt.download_dependency("meta", "linux-image-", &mut Silent).unwrap_err();
        assert!(err.to_string().ends_with("failed: Could not connect"), "{err}");
    }

    #[test]
    fn lists_are_fetched_when_the_package_is_unknown_then_the_package_is_missing() {
        let (dir, mut apt) = fake_apt(
            "echo \"$@\" >> ../log; case \"$*\" in *update*) exit 0;; esac; echo 'E: Unable to locate package x' >&2; exit 100",
            "exit 0",
        );
        let err = apt.download("x", &mut Silent).unwrap_err();
        assert!(matches!(err, AptError::NoPackage { .. }), "{err}");
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(log.lines().filter(|line| line.ends_with("update")).count(), 1, "{log}");
        assert!(log.lines().last().unwrap().contains("Dir::State::Lists="), "{log}");
    }

    #[derive(Default)]
    struct Sum(u64, Option<u64>);

    impl Progress for Sum {
        fn phase(&mut self, _: &str, total: Option<u64>) {
            self.1 = total;
        }
        fn advance(&mut self, bytes: u64) {
            self.0 += bytes;
        }
        fn note(&mut self, _: &str) {}
        fn output(&mut self, _: &str) {}
    }

    #[test]
    fn the_first_dependency_with_the_prefix_is_downloaded() {
        let (_dir, mut apt) = fake_apt(
            "case \"$*\" in *--print-uris*) echo \"'uri' f 200 h\"; exit;; esac; \
             for last; do :; done; echo dlstatus:1:50.0:x; : > ${last}_1_amd64.deb",
            "printf '%s\\n' meta '  Depends: linux-base' '  Depends: linux-image-9'",
        );
        let mut seen = Sum::default();
        let path = apt.download_dependency("meta", "linux-image-", &mut seen).unwrap();
        assert_eq!(path.file_name().unwrap(), "linux-image-9_1_amd64.deb");
        assert_eq!((seen.0, seen.1), (100, Some(200)));
    }
}
