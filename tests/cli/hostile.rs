//! What others say is printed as text, and as nothing else.

use crate::support::{artifact, context, run_in, write};
use smolpack_format::{Artifact, Manifest, Writer};
use std::path::Path;

/// Clears the screen, sets a title, rings, turns the reading direction, and fakes a line of ours.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}1m\u{202e}y\r\nsmolpack: all is well\n\u{0}z";

/// The artifact with another manifest.
fn with_manifest(path: &Path, change: impl FnOnce(&mut Manifest)) {
    let whole = Artifact::open(artifact()).unwrap();
    let mut writer = Writer::create(path).unwrap();
    for section in whole.sections() {
        writer.copy_section(&whole, section.kind).unwrap();
    }
    let mut manifest = whole.manifest().clone();
    change(&mut manifest);
    writer.finish(manifest).unwrap();
}

/// Fails where a terminal would obey something of it, a line is endless, or one was faked.
fn assert_plain(what: &str, said: &str) {
    for letter in said.chars().filter(|letter| *letter != '\n') {
        assert!(!letter.is_control() && letter != '\u{202e}', "{what}: {letter:?} in {said:?}");
    }
    assert!(said.lines().all(|line| line.chars().count() < 2000), "{what}: a line without end");
    assert!(!said.lines().any(|line| line.starts_with("smolpack: all is well")), "{what}: {said}");
}

#[test]
fn an_artifacts_words_reach_no_terminal_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    with_manifest(&folder.path().join("hostile.smolmachine"), |manifest| {
        manifest.name = Some(HOSTILE.into());
        manifest.entrypoint = vec![HOSTILE.into(), "x".repeat(100_000)];
        manifest.env = vec![format!("A={HOSTILE}")];
        manifest.user = Some(HOSTILE.into());
        manifest.workdir = Some(HOSTILE.into());
        manifest.network.enabled = true;
        manifest.network.allow_hosts = vec![HOSTILE.into()];
        manifest.kernel.as_mut().unwrap().version = HOSTILE.into();
    });
    let plain = artifact().to_str().unwrap();
    for args in [
        &["inspect", "hostile.smolmachine"][..],
        &["verify", "hostile.smolmachine"],
        &["diff", "hostile.smolmachine", plain],
        &["boot", "hostile.smolmachine"],
    ] {
        let (_, out, err) = run_in(folder.path(), args);
        assert_plain(&format!("{args:?}"), &format!("{out}{err}"));
        let (_, out, _) = run_in(folder.path(), &[args, &["--json"]].concat());
        if args[0] != "boot" {
            assert!(!out.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{args:?}");
            let value: serde_json::Value = serde_json::from_str(&out).unwrap();
            assert!(args[0] != "inspect" || value["manifest"]["name"] == HOSTILE);
        }
    }
}

#[test]
fn a_machine_with_too_long_settings_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    with_manifest(&folder.path().join("long.smolmachine"), |manifest| {
        manifest.kernel.as_mut().unwrap().cmdline = "x".repeat(100_000);
    });
    let (code, _, err) = run_in(folder.path(), &["boot", "long.smolmachine", "--", "true"]);
    assert_eq!(code, 125, "{err}");
    assert!(err.contains("too long for the runner") && err.contains("at most 65536"), "{err}");
}

#[test]
fn names_of_files_and_smolfiles_reach_no_terminal_as_they_are() {
    let folder = context();
    let name = "root/a\u{1b}[2J\nsmolpack: all is well";
    std::os::unix::fs::symlink("nowhere", folder.path().join(name)).unwrap();
    write(&folder.path().join("Smolfile"), format!("image = \"./root\"\nunknown{HOSTILE} = 1\n").as_bytes());
    let check = |folder: &Path| {
        let (code, out, err) = run_in(folder, &["check"]);
        assert_eq!(code, 2, "{out}");
        assert_plain("check", &format!("{out}{err}"));
    };
    check(folder.path());
    // The same in TOML's own escapes, as a key and as values.
    let escaped = r#""x\u001b[2J\u009b\u0000\nsmolpack: all is well""#;
    for text in [
        format!("image = \"./root\"\n{escaped} = 1\n"),
        format!("image = \"./root\"\ncpu = {escaped}\n"),
        format!("image = {escaped}\nuser = {escaped}\nvolumes = [{escaped}]\nenv = [{escaped}]\nenv = 1"),
    ] {
        write(&folder.path().join("Smolfile"), text.as_bytes());
        check(folder.path());
    }
    let odd = format!("no\u{1b}[2J{}", "such\u{9b}".repeat(3));
    for args in [&["inspect", odd.as_str()][..], &["build", "--image", &odd, "-o", "x"], &["boot", &odd]] {
        let (_, out, err) = run_in(folder.path(), args);
        assert_plain(&format!("{args:?}"), &format!("{out}{err}"));
    }
    let (code, out, err) = run_in(folder.path(), &["check", "--json"]);
    assert_eq!(code, 2);
    assert_plain("check --json", &format!("{out}{err}"));
}
