//! Building, inspecting and verifying.

use crate::support::{artifact, context, finish, run_in, smolpack, write};
use smolpack::error::{BAD_INPUT, BOOT_FAILED, FAILED, READER_GONE};
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
    for verb in [
        "build",
        "check",
        "boot",
        "inspect",
        "verify",
        "diff",
        "export",
        "kernel",
        "cache",
        "doctor",
        "completion",
    ] {
        assert!(help.contains(verb), "--help lacks {verb}");
        assert!(readme.contains(&format!("`{verb}")), "README lacks {verb}");
    }
    let (code, script, _) = run_in("/".as_ref(), &["completion", "bash"]);
    assert!(code == 0 && script.contains("smolpack"));
}

#[test]
fn every_exit_status_is_in_the_docs() {
    let docs = include_str!("../../docs/errors.md");
    for status in [0, BAD_INPUT, BOOT_FAILED, FAILED, READER_GONE, 126, 127] {
        assert!(docs.contains(&format!("\n| {status} | ")), "{status}");
    }
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

#[test]
fn check_says_what_is_wrong_and_json_has_the_places() {
    let folder = context();
    let (code, out, _) = run_in(folder.path(), &["check"]);
    assert!(code == 0 && out.contains("fine"), "{out}");
    write(&folder.path().join("Smolfile"), b"image = \"./root\"\ncpu_s = 2\nmemory = \"much\"\n");
    let (code, out, err) = run_in(folder.path(), &["check"]);
    assert!(code == 2 && out.is_empty() && err.contains("cpu_s") && err.contains("much"), "{err}");
    let (code, json, _) = run_in(folder.path(), &["check", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, value["ok"].as_bool()), (2, Some(false)));
    assert_eq!((&value["problems"][1]["line"], &value["problems"][1]["column"]), (&3.into(), &10.into()));
}

#[test]
fn a_dry_run_tells_the_plan_and_does_nothing() {
    let folder = context();
    let (code, json, err) = run_in(folder.path(), &["build", "--dry-run", "--json", "-o", "x.smolmachine"]);
    assert_eq!(code, 0, "{err}");
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&plan["image"], &plan["source"]), (&"./root".into(), &"root folder".into()));
    assert_eq!((&plan["disk_bytes"], &plan["snapshot"]), (&(32 << 20).into(), &false.into()));
    assert!(!folder.path().join("x.smolmachine").exists());
    let (code, _, err) = run_in(folder.path(), &["build", "--dry-run", "-o", "none/x.smolmachine"]);
    assert!(code == 2 && err.contains("no such folder"), "{err}");
}

#[test]
fn a_build_writes_its_digest_and_its_figures_where_it_is_told_to() {
    let folder = context();
    let args = ["build", "-o", "x.smolmachine", "--iidfile", "id", "--metadata-file", "meta.json"];
    let (code, _, err) = run_in(folder.path(), &args);
    assert_eq!(code, 0, "{err}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let meta: serde_json::Value = serde_json::from_str(&read("meta.json")).unwrap();
    let (_, inspected, _) = run_in(folder.path(), &["inspect", "--json", "x.smolmachine"]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(read("id").trim(), inspected["digest"]);
    assert_eq!((&meta["digest"], &meta["sections"]), (&inspected["digest"], &inspected["sections"]));
    assert_eq!(meta["kernel"]["version"], "6.9.0-test");
    assert!(meta["phases"].as_array().unwrap().iter().all(|phase| phase["seconds"].is_number()), "{meta}");
}

#[test]
fn progress_comes_as_events_as_lines_or_not_at_all() {
    let folder = context();
    let build = |flags: &[&str]| {
        let (code, _, err) = run_in(folder.path(), &[&["build", "-o", "x.smolmachine"], flags].concat());
        assert_eq!(code, 0, "{err}");
        err
    };
    let events: Vec<serde_json::Value> = build(&["-q", "--progress", "json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    assert!(of("phase").iter().any(|e| e["name"] == "disk" && e["total_bytes"] == 32 << 20), "{events:?}");
    assert_eq!(of("phase").len(), of("done").len());
    assert!(of("done").iter().all(|event| event["seconds"].is_number()));
    assert!(build(&["--progress", "plain"]).lines().any(|line| line == "smolpack: disk"));
    assert_eq!(build(&["-q"]), "");
}

#[test]
fn the_cache_is_listed_verified_and_pruned() {
    let home = tempfile::tempdir().unwrap();
    let folder = context();
    let tar = std::process::Command::new("tar")
        .current_dir(folder.path())
        .args(["-czf", "root.tar.gz", "-C", "root", "."])
        .status();
    assert!(tar.unwrap().success());
    let run = |args: &[&str]| {
        let out =
            smolpack().env("XDG_CACHE_HOME", home.path()).current_dir(folder.path()).args(args).output();
        finish(out.unwrap())
    };
    assert!(run(&["cache", "ls"]).1.contains("0 files kept"));
    let (code, _, err) = run(&["build", "--image", "./root.tar.gz", "-o", "x.smolmachine"]);
    assert_eq!(code, 0, "{err}");
    let (_, json, _) = run(&["cache", "ls", "--json"]);
    let kept: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(kept["bytes"].as_u64().unwrap() > 300_000, "{json}");
    assert_eq!(run(&["cache", "verify"]).0, 0);

    // A layer that is not what its name says.
    let layer = home.path().join("smolpack/layers/sha256").join("0".repeat(64));
    write(&layer, b"damaged");
    let (code, out, err) = run(&["cache", "verify"]);
    assert!(code == 1 && out.contains("1 files damaged") && err.contains("removed"), "{out}{err}");
    assert!(!layer.exists());
    assert!(run(&["cache", "prune", "--keep", "1GiB"]).1.contains("0 files removed"));
    assert!(!run(&["cache", "prune"]).1.contains("0 files removed"));
    assert!(run(&["cache", "ls"]).1.contains("0 files kept"));
    let (code, _, err) = run(&["build", "--image", "./root.tar.gz", "-o", "x.smolmachine"]);
    assert_eq!(code, 0, "{err}");
}
