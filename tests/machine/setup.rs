//! Set-up commands, run in a real machine.

use crate::support::{boot, repository, scratch, smolpack, stdout, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SECRET: &str = "correct-horse-battery-staple";

/// A folder with a Smolfile of the hello image and this text.
fn context(name: &str, more: &str) -> PathBuf {
    let folder = scratch().join(name);
    fs::create_dir_all(&folder).unwrap();
    let image = repository().join("recipes/hello/image");
    let text =
        format!("image = \"{}\"\nmemory = 128\ncpus = 1\nstorage = \"64MiB\"\n{more}", image.display());
    fs::write(folder.join("Smolfile"), text).unwrap();
    folder
}

/// `smolpack build` of it, with a cache of its own in the folder.
fn build(context: &Path, args: &[&str]) -> (String, Output) {
    let file = context.join("out.smolmachine").to_str().unwrap().to_owned();
    let out = program(context)
        .arg("build")
        .arg(context)
        .args(["-o", &file])
        .args(args)
        .env("TOKEN", SECRET)
        .output()
        .unwrap();
    (file, out)
}

fn program(context: &Path) -> Command {
    let mut program = smolpack();
    program.env("XDG_CACHE_HOME", context.join("cache"));
    program
}

fn explain(context: &Path) -> Vec<(bool, String)> {
    let out = program(context).args(["explain", "--json"]).arg(context).output().unwrap();
    let value: serde_json::Value = serde_json::from_str(&stdout(&out)).unwrap();
    let steps = value["steps"].as_array().unwrap().iter();
    steps.map(|step| (step["cached"].as_bool().unwrap(), step["why"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn what_set_up_changed_is_the_machines_and_is_kept_step_by_step() {
    let init = |last: &str| {
        format!(
            "env = [\"COLOUR=green\"]\nworkdir = \"/srv/app\"\ninit = [
               \"pwd; id -u; echo $COLOUR; echo x > a; ln a b; ln -s a c; mknod n c 1 3; mkdir -p d/e\",
               \"rm a; rm -r /var; mkdir /var; echo new > /var/new; rm /bin/vi; chmod 4711 b; chown 7:8 c -h\",
               \"{last}\"]\n"
        )
    };
    let folder =
        context("set-up", &init("mkdir -m 700 /opt; truncate -s 8M /opt/holes; echo end >> /opt/holes"));
    let (file, out) = build(&folder, &["--no-snapshot"]);
    stdout(&out);
    let said = text(&out.stderr);
    for line in ["  | /srv/app\n", "  | 0\n", "  | green\n"] {
        assert!(said.contains(line), "{said}");
    }
    let look = "cd /srv/app; ls a /bin/vi /run/lock 2>&1; ls /var; stat -c '%a %u:%g %F' . b c n d/e /opt /tmp; \
                cat b; stat -c '%s %h' /opt/holes; tail -c 4 /opt/holes; test $(du -k /opt/holes | cut -f1) -lt 64 && echo sparse";
    let said = stdout(&boot(&[&file, "--", "sh", "-c", look]));
    let expected = "ls: a: No such file or directory\nls: /bin/vi: No such file or directory\n/run/lock:\nnew\n\
         755 0:0 directory\n4711 0:0 regular file\n777 7:8 symbolic link\n644 0:0 character special file\n\
         755 0:0 directory\n700 0:0 directory\n1777 0:0 directory\nx\n8388612 1\nend\nsparse\n";
    assert_eq!(said, expected);

    // Unchanged: nothing runs, and the bytes are the same.
    let first = fs::read(&file).unwrap();
    stdout(&build(&folder, &["--no-snapshot"]).1);
    assert!(first == fs::read(&file).unwrap(), "a build of kept steps differs");
    assert!(explain(&folder).iter().all(|(cached, _)| *cached));

    // The last command changed: it runs over what the others left, and says why.
    context("set-up", &init("cat /var/new > /seen"));
    stdout(&build(&folder, &["--no-snapshot"]).1);
    let steps = explain(&folder);
    assert_eq!(steps[..2].iter().filter(|(cached, _)| *cached).count(), 2, "{steps:?}");
    assert_eq!(steps[2], (false, "the command changed".to_owned()));
    assert_eq!(stdout(&boot(&[&file, "--", "cat", "/seen"])), "new\n");

    // All run anew: the same results give the same bytes.
    let kept = fs::read(&file).unwrap();
    stdout(&build(&folder, &["--no-snapshot", "--no-cache"]).1);
    assert!(explain(&folder).iter().all(|(cached, _)| !*cached));
    assert!(kept == fs::read(&file).unwrap(), "the same set-up gave other bytes");
}

#[test]
fn a_failing_command_stops_the_build_and_tells_all() {
    let folder = context(
        "failing",
        "init = [\"true\", \"echo first; seq 20; echo broken >&2; exit 3\", \"touch /no\"]\n",
    );
    let (file, out) = build(&folder, &["--no-snapshot"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("set-up step 2 of 3 failed with exit status 3: echo first"), "{said}");
    assert!(said.contains("  | broken\n"), "{said}");
    let log = said.lines().find_map(|line| line.trim_start().strip_prefix("its whole output: ")).unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.starts_with("first\n1\n") && log.contains("broken\n"), "{log}");
    assert!(!Path::new(&file).exists());
    // The step before it is kept; the failing one was not.
    build(&folder, &["--no-snapshot"]);
    assert_eq!(explain(&folder).iter().map(|(cached, _)| *cached).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_machine_that_dies_in_set_up_is_told_with_its_console() {
    let folder = context(
        "dying",
        "init = [\"echo b > /proc/sysrq-trigger; echo c > /proc/sysrq-trigger; sleep 60\"]\n",
    );
    let (_, out) = build(&folder, &["--no-snapshot"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("set-up step 1 of 1: "), "{said}");
}

#[test]
fn secrets_of_set_up_are_nowhere_but_in_its_memory() {
    let more = "init = [\"cat /run/secrets/TOKEN; sha256sum < /run/secrets/TOKEN > /digest; stat -f -c %T /run/secrets\"]\n\
                [secrets.TOKEN]\nfrom_env = \"TOKEN\"\n[build]\nsecrets = [\"TOKEN\"]\n";
    let folder = context("secret", more);
    let (file, out) = build(&folder, &["--require-snapshot"]);
    stdout(&out);
    let said = text(&out.stderr);
    assert!(said.contains("***tmpfs") && !said.contains(SECRET), "{said}");
    let digest = stdout(&boot(&[&file, "--", "sh", "-c", "cat /digest; ls /run/secrets 2>/dev/null; true"]));
    let expected = stdout(
        &Command::new("sh").args(["-c", &format!("printf %s {SECRET} | sha256sum")]).output().unwrap(),
    );
    assert_eq!(digest, expected, "set-up saw another value");
    // Artifact with its disk and memory, cache with layers and logs, report: all below the folder.
    assert_eq!(files_with(SECRET.as_bytes(), &folder), Vec::<PathBuf>::new());
    let name = Command::new("grep").args(["-rl", "sha256sum"]).arg(&folder).output().unwrap();
    assert!(!name.stdout.is_empty(), "the scan finds what is there");

    let leaking = more.replace("cat /run", "mkdir /etc/app; cp /run/secrets/TOKEN /etc/app/; cat /run");
    let folder = context("leak", &leaking);
    let (file, out) = build(&folder, &["--no-snapshot"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("left the secret TOKEN in /etc/app/TOKEN"), "{said}");
    assert!(!Path::new(&file).exists());
    assert_eq!(files_with(SECRET.as_bytes(), &folder), Vec::<PathBuf>::new());
}

#[test]
fn set_up_that_is_not_reproducible_is_found_out() {
    let folder = context("random", "init = [\"cat /proc/sys/kernel/random/uuid > /id\"]\n");
    let (_, out) = build(&folder, &["--no-snapshot", "--verify-reproducible"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("/id"), "{said}");
}

/// The files below a folder that hold these bytes.
fn files_with(bytes: &[u8], folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_with(bytes, &entry.path()));
        } else if fs::read(entry.path()).unwrap().windows(bytes.len()).any(|window| window == bytes) {
            found.push(entry.path());
        }
    }
    found
}
