//! Output that cannot be written, and paths that lead to no file.

use crate::support::{artifact, context, finish, run_in, smolpack};
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every verb that prints data, in the folder of a Smolfile, with the artifact beside it.
const DATA: &[&[&str]] = &[
    &["build", "-o", "x.smolmachine"],
    &["build", "--dry-run", "-o", "x.smolmachine"],
    &["check"],
    &["inspect", "machine.smolmachine"],
    &["verify", "machine.smolmachine"],
    &["diff", "machine.smolmachine", "x.smolmachine"],
    &["kernel", "list"],
    &["cache", "ls"],
    &["cache", "prune"],
    &["cache", "verify"],
    &["doctor"],
];

fn folder() -> tempfile::TempDir {
    let folder = context();
    std::fs::copy(artifact(), folder.path().join("machine.smolmachine")).unwrap();
    folder
}

/// Runs it for as long as ten seconds, with standard output going there.
fn run_to(folder: &Path, args: &[&str], stdout: impl Into<Stdio>) -> (i32, String, String) {
    let mut command = smolpack();
    command.current_dir(folder).args(args).stdout(stdout).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    finish(child.wait_with_output().unwrap())
}

#[test]
fn data_that_cannot_be_written_is_an_error_of_every_verb() {
    let folder = folder();
    for args in DATA {
        for json in [&[][..], &["--json"]] {
            let args = [*args, json].concat();
            let full = File::options().write(true).open("/dev/full").unwrap();
            let (code, _, err) = run_to(folder.path(), &args, full);
            if code == 0 && !args.contains(&"--json") {
                // It has nothing to say as text.
                assert_eq!(run_in(folder.path(), &args).1, "", "{args:?}: {err}");
                continue;
            }
            assert_eq!(code, 1, "{args:?}: {err}");
            assert!(err.contains("standard output: No space left on device"), "{args:?}: {err}");

            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let (code, _, err) = run_to(folder.path(), &args, writer);
            assert_eq!(code, 141, "{args:?}: {err}");
            assert!(!err.contains("standard output"), "{args:?}: {err}");
        }
    }
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(run_to(folder.path(), &["completion", "bash"], full).0, 1);
}

#[test]
fn a_path_that_leads_to_no_file_is_refused_and_not_waited_for() {
    let folder = folder();
    mkfifoat(CWD, folder.path().join("pipe"), Mode::RWXU).unwrap();
    for path in ["pipe", "/dev/zero", "/dev/full"] {
        for args in [
            &["inspect", path][..],
            &["verify", path],
            &["diff", path, "machine.smolmachine"],
            &["boot", path, "--", "true"],
            &["export", "disk", path, "-o", "disk.img"],
            &["kernel", "import", path],
            &["build", "--image", path, "-o", "x.smolmachine"],
            &["build", "-o", path],
            &["build", "-o", "x.smolmachine", "--iidfile", path],
            &["build", "-o", "x.smolmachine", "--metadata-file", path],
            &["export", "disk", "machine.smolmachine", "-o", path],
        ] {
            let (code, _, err) = run_to(folder.path(), args, Stdio::null());
            assert!(matches!(code, 1 | 2 | 125), "{args:?}: {code} {err}");
            let kind = if path == "pipe" { "a named pipe" } else { "a device" };
            assert!(err.contains(kind), "{args:?}: {err}");
        }
    }
    assert!(Command::new("test").args(["-c", "/dev/full"]).status().unwrap().success());
}
