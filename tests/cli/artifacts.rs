//! Building, inspecting and verifying.

use crate::support::{artifact, context, finish, run_in, smolpack, write};
use std::time::Duration;

#[test]
fn inspect_says_what_a_build_put_in_as_text_and_as_json() {
    let file = artifact().to_str().unwrap();
    let (code, text, _) = run_in("/".as_ref(), &["inspect", file]);
    assert_eq!(code, 0);
    assert!(
        text.contains("6.9.0-test") && text.contains("boots cold") && text.contains("32.0 MiB"),
        "{text}"
    );
    let (_, json, _) = run_in("/".as_ref(), &["inspect", "--json", file]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["manifest"]["disk_bytes"], 32 << 20);
    assert_eq!(value["manifest"]["kernel"]["version"], "6.9.0-test");
    assert_eq!(value["sections"].as_array().unwrap().len(), 3);
}

#[test]
fn the_same_inputs_give_the_same_bytes_in_another_folder() {
    let again = context();
    // Times of the root folder's files are part of the image: make them the same.
    let (one, two) = (context(), again);
    for folder in [&one, &two] {
        let root = folder.path().join("root");
        let status = std::process::Command::new("find")
            .arg(&root)
            .args(["-exec", "touch", "-h", "-d", "@1000000000", "{}", "+"])
            .status();
        assert!(status.unwrap().success());
        let (code, _, err) = run_in(folder.path(), &["build", "-o", "x.smolmachine"]);
        assert_eq!(code, 0, "{err}");
    }
    let bytes = |folder: &tempfile::TempDir| std::fs::read(folder.path().join("x.smolmachine")).unwrap();
    assert!(bytes(&one) == bytes(&two), "two builds of the same inputs differ");
}

#[test]
fn verify_accepts_a_whole_file_and_finds_a_flipped_bit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.smolmachine");
    let mut bytes = std::fs::read(artifact()).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(run_in(folder.path(), &["verify", "x.smolmachine"]).0, 0);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (code, _, err) = run_in(folder.path(), &["verify", "x.smolmachine"]);
    assert_eq!(code, 2);
    assert!(err.contains("x.smolmachine") && err.contains("try:"), "{err}");
}

#[test]
fn a_build_killed_at_any_moment_leaves_the_old_file_or_the_new_one() {
    let folder = context();
    write(&folder.path().join("root/usr/large"), &vec![3; 24 << 20]);
    let file = folder.path().join("x.smolmachine");
    let seed = std::process::id();
    println!("seed {seed}");
    let mut state = u64::from(seed) | 1;
    for round in 0..25 {
        std::fs::write(&file, b"old").unwrap();
        let mut child = smolpack()
            .current_dir(folder.path())
            .args(["-q", "build", "-o", "x.smolmachine"])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::thread::sleep(Duration::from_micros(state % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        if std::fs::read(&file).unwrap() != b"old" {
            let (code, _, err) = run_in(folder.path(), &["verify", "x.smolmachine"]);
            assert_eq!(code, 0, "round {round}: {err}");
        }
    }
}

#[test]
fn help_tells_of_every_verb_and_completions_exist() {
    let (code, help, _) = run_in("/".as_ref(), &["--help"]);
    assert_eq!(code, 0);
    let readme = include_str!("../../README.md");
    for verb in ["build", "boot", "inspect", "verify", "kernel", "doctor", "completion"] {
        assert!(help.contains(verb), "--help lacks {verb}");
        assert!(readme.contains(&format!("`{verb}")), "README lacks {verb}");
    }
    let (code, script, _) = run_in("/".as_ref(), &["completion", "bash"]);
    assert!(code == 0 && script.contains("smolpack"));
}

#[test]
fn doctor_names_every_check_and_its_json_is_json() {
    let (_, text, _) = run_in("/".as_ref(), &["doctor"]);
    for check in ["kvm", "kernel", "qemu", "data", "cache"] {
        assert!(text.contains(check), "{text}");
    }
    let (_, json, _) = run_in("/".as_ref(), &["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(value["checks"].as_array().unwrap().len() >= 5, "{json}");
}

#[test]
fn kernels_are_imported_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let folder = context();
    let run = |args: &[&str]| {
        let out = smolpack().env("XDG_DATA_HOME", home.path()).current_dir(folder.path()).args(args).output();
        finish(out.unwrap())
    };
    let (code, out, err) = run(&["kernel", "import", "vmlinux"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("6.9.0-test"), "{out}");
    assert!(run(&["kernel", "list"]).1.contains("6.9.0-test"));
    assert_eq!(run(&["kernel", "rm", "6.9.0-test"]).0, 0);
    assert_eq!(run(&["kernel", "list"]).1.trim(), "");
    assert_eq!(run(&["kernel", "rm", "6.9.0-test"]).0, 2);
}
