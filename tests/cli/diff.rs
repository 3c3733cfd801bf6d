//! `diff`, and builds that prove themselves reproducible.

use crate::support::{context, run_in, smolpack, write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;

#[test]
fn diff_tells_settings_sections_and_files_apart() {
    let folder = context();
    let at = |name: &str| folder.path().join(name);
    for (name, bytes) in [("keep", 1), ("edit", 2), ("gone", 3), ("mode", 4)] {
        write(&at("root/srv").join(name), &vec![bytes; 5000]);
    }
    symlink("keep", at("root/srv/link")).unwrap();
    assert_eq!(run_in(folder.path(), &["build", "-o", "a.smolmachine"]).0, 0);
    let (code, out, _) = run_in(folder.path(), &["diff", "a.smolmachine", "a.smolmachine"]);
    assert_eq!((code, out.trim()), (0, "the same"));

    write(&at("root/srv/edit"), &vec![9; 5000]);
    write(&at("root/srv/new/file"), b"new");
    std::fs::remove_file(at("root/srv/gone")).unwrap();
    std::fs::set_permissions(at("root/srv/mode"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::remove_file(at("root/srv/link")).unwrap();
    symlink("edit", at("root/srv/link")).unwrap();
    assert_eq!(run_in(folder.path(), &["build", "--cpus", "3", "-o", "b.smolmachine"]).0, 0);
    let (code, json, _) = run_in(folder.path(), &["diff", "--json", "a.smolmachine", "b.smolmachine"]);
    assert_eq!(code, 1);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["manifest"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!((&value["manifest"][0]["key"], &value["manifest"][0]["b"]), (&"cpus".into(), &3.into()));
    assert_eq!(
        (value["sections"].as_array().unwrap().len(), &value["sections"][0]["kind"]),
        (1, &"disk".into())
    );
    assert!(value["sections"][0]["new_bytes"].as_u64().unwrap() > 0);
    let change = |path: &str| {
        let files = value["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}: {json}"));
        (file["change"].as_str().unwrap().to_owned(), file["what"].to_string())
    };
    assert_eq!(change("/srv/new").0, "added");
    assert_eq!(change("/srv/gone").0, "removed");
    assert!(change("/srv/edit").1.contains("\"contents\""));
    assert!(change("/srv/mode").1.contains("mode 644 to 600"));
    assert!(change("/srv/link").1.contains("target"));
    assert!(!json.contains("/srv/keep") && !json.contains("/bin/sh"), "{json}");
    let (code, text, _) = run_in(folder.path(), &["diff", "a.smolmachine", "b.smolmachine"]);
    assert!(code == 1 && text.contains("\n- /srv/gone\n") && text.contains("cpus: 2 to 3"), "{text}");
    let (code, _, err) = run_in(folder.path(), &["diff", "a.smolmachine", "Smolfile"]);
    assert!(code == 2 && err.contains("Smolfile"), "{err}");
}

/// Writes a root tar: a folder of many files, and files with attributes, of the lengths given, that end so.
const TAR: &str = r#"
import io, sys, tarfile
name, ends = sys.argv[1], dict(pair.split("=") for pair in sys.argv[2:])
lengths = {"user.small": 20, "user.block": 3000, "trusted.inode": 20000}
archive = tarfile.open(name, "w", format=tarfile.PAX_FORMAT)
files = ["etc/f%05d" % n + "x" * 100 for n in range(2000)] + ["same", "changed", "lost", "etc/won"]
for file in files:
    entry = tarfile.TarInfo(file)
    end = ends.get(file, "a" if file in ("same", "changed", "lost") else "")
    if end != "":
        attributes = {name: "a" * (length - 1) + end for name, length in lengths.items()} if end != "-" else {}
        entry.pax_headers = {"SCHILY.xattr." + name: value for name, value in attributes.items()}
    archive.addfile(entry, io.BytesIO(b""))
archive.close()
"#;

#[test]
fn diff_tells_extended_attributes_apart_wherever_the_disk_keeps_them() {
    let folder = context();
    // Beside the inode, in a block, in an inode of its own; in a folder with an index, too.
    let last = format!("etc/f01999{}", "x".repeat(100));
    let build = |name: &str, ends: &[&str]| {
        let tar = format!("{name}.tar");
        let made =
            Command::new("python3").args(["-c", TAR, &tar]).args(ends).current_dir(folder.path()).status();
        assert!(made.unwrap().success());
        let image = format!("./{tar}");
        let (code, _, err) =
            run_in(folder.path(), &["build", "--disk", "64MiB", "--image", &image, "-o", name]);
        assert_eq!(code, 0, "{err}");
    };
    build("a", &[]);
    build("b", &["changed=b", "lost=-", "etc/won=b", &format!("{last}=b")]);
    let (code, out, err) = run_in(folder.path(), &["diff", "a", "b"]);
    assert_eq!(code, 1, "{err}");
    let all = "attribute trusted.inode, attribute user.block, attribute user.small";
    let expected = ["changed", &last, "etc/won", "lost"].map(|file| format!("~ /{file}: {all}"));
    let mut files: Vec<&str> = out.lines().filter(|line| line.starts_with('~')).collect();
    files.sort_unstable();
    assert_eq!(files, expected);
}

#[test]
fn a_build_that_is_reproducible_says_nothing_and_one_that_is_not_names_the_files() {
    let folder = context();
    let (code, _, err) = run_in(folder.path(), &["build", "--verify-reproducible", "-o", "x.smolmachine"]);
    assert_eq!(code, 0, "{err}");
    let (plain, verified) = (folder.path().join("y.smolmachine"), folder.path().join("x.smolmachine"));
    assert_eq!(run_in(folder.path(), &["build", "-o", "y.smolmachine"]).0, 0);
    assert!(std::fs::read(plain).unwrap() == std::fs::read(&verified).unwrap());

    // A file that changes for as long as the build runs.
    std::fs::remove_file(&verified).unwrap();
    let restless = folder.path().join("root/etc/restless");
    write(&restless, &[0; 64]);
    let mut build = smolpack()
        .current_dir(folder.path())
        .args(["build", "--verify-reproducible", "-o", "x.smolmachine"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // In place and of the same length: what is read is whole.
    let file = std::fs::OpenOptions::new().write(true).open(&restless).unwrap();
    for round in 0_u64.. {
        if build.try_wait().unwrap().is_some() {
            break;
        }
        file.write_all_at(&round.to_le_bytes().repeat(8), 0).unwrap();
    }
    let out = build.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("differ") && err.contains("/etc/restless"), "{err}");
    assert!(!verified.exists());

    let (code, _, err) = run_in(folder.path(), &["build", "--verify-reproducible", "--image", "-"]);
    assert!(code == 2 && err.contains("standard input"), "{err}");
}
