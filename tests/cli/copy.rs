//! `[[copy]]`: files of the build context on the disk, seen through `export disk`.

use crate::support::{context, run_in, write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const COPY: &str = r#"
[[copy]]
from = "app"
to = "/srv/app"
owner = "web"
mode = "0640"

[[copy]]
from = "app/run"
to = "/bin/"

[[copy]]
from = "link"
to = "/opt/tool"
mode = "4755"

[[copy]]
from = "app/run"
to = "/usr/tools"
"#;

/// A context with files to copy, and what is to be left out.
fn with_files(copy: &str) -> tempfile::TempDir {
    let folder = context();
    let at = |name: &str| folder.path().join(name);
    write(&at("root/etc/passwd"), b"root:x:0:0::/root:/bin/sh\nweb:x:33:44::/:/bin/sh\n");
    std::fs::create_dir(at("root/usr")).unwrap();
    std::fs::create_dir(at("root/usr/real")).unwrap();
    symlink("real", at("root/usr/tools")).unwrap();
    write(&at("app/run"), b"#!/bin/sh\n");
    write(&at("app/data/large"), &vec![9; 100_000]);
    write(&at("app/data/notes.log"), b"left out");
    write(&at("app/.git/HEAD"), b"left out");
    symlink("data/large", at("app/latest")).unwrap();
    symlink("app/run", at("link")).unwrap();
    write(&at(".smolignore"), b"**/*.log\n**/.git\n");
    std::fs::set_permissions(at("app/run"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut smolfile = std::fs::read_to_string(at("Smolfile")).unwrap();
    smolfile.push_str(copy);
    write(&at("Smolfile"), smolfile.as_bytes());
    folder
}

fn build(folder: &Path) -> (i32, String, String) {
    run_in(folder, &["build", "-o", "x.smolmachine"])
}

fn debugfs(folder: &Path, request: &str) -> String {
    let out = Command::new("debugfs")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .current_dir(folder)
        .args(["-R", request, "disk.ext4"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn copied_files_have_the_owner_mode_and_place_that_were_asked_for() {
    let folder = with_files(COPY);
    let (code, _, err) = build(folder.path());
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = run_in(folder.path(), &["export", "disk", "x.smolmachine", "-o", "disk.ext4"]);
    assert!(code == 0 && out.contains("33554432"), "{out}{err}");
    let check = Command::new("e2fsck")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .args(["-fn", "disk.ext4"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));

    // Inode, mode, links, owner, group, size, time, name.
    let entry = |folder_listed: &str, name: &str| {
        let listing = debugfs(folder.path(), &format!("ls -l {folder_listed}"));
        let line = listing.lines().find(|line| line.ends_with(&format!(" {name}")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {folder_listed}: {listing}"));
        let fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (fields[1].clone(), fields[3].clone(), fields[4].clone())
    };
    let is = |mode: &str, uid: &str, gid: &str| (mode.to_owned(), uid.to_owned(), gid.to_owned());
    assert_eq!(entry("/srv/app", "run"), is("100640", "33", "44"));
    assert_eq!(entry("/srv/app", "data"), is("40750", "33", "44"));
    assert_eq!(entry("/srv/app", "latest"), is("120777", "33", "44"));
    assert_eq!(entry("/bin", "run"), is("100755", "0", "0"));
    assert_eq!(entry("/opt", "tool"), is("104755", "0", "0"));
    assert_eq!(entry("/usr/real", "run"), is("100755", "0", "0"), "a link to a folder is a folder");
    assert_eq!(debugfs(folder.path(), "cat /opt/tool"), "#!/bin/sh\n");
    assert_eq!(debugfs(folder.path(), "cat /srv/app/data/large").len(), 100_000);
    let listing = debugfs(folder.path(), "ls /srv/app") + &debugfs(folder.path(), "ls /srv/app/data");
    assert!(!listing.contains(".git") && !listing.contains("notes.log"), "{listing}");
}

#[test]
fn times_and_the_last_build_do_not_reach_the_disk() {
    let folder = with_files("\n[[copy]]\nfrom = \".\"\nto = \"/context\"\n");
    assert_eq!(build(folder.path()).0, 0);
    let first = std::fs::read(folder.path().join("x.smolmachine")).unwrap();
    let touched = Command::new("touch").arg("-d@77").arg(folder.path().join("app/run")).status();
    assert!(touched.unwrap().success());
    assert_eq!(build(folder.path()).0, 0);
    let second = std::fs::read(folder.path().join("x.smolmachine")).unwrap();
    assert!(first == second, "a copied file's time, or the artifact itself, is in the artifact");
}

#[test]
fn mistakes_are_one_clear_error_each() {
    let cases = [
        ("from = \"nowhere\"\nto = \"/x\"", "nowhere", "relative to the Smolfile"),
        ("from = \"app\"\nto = \"/x\"\nowner = \"ghost\"", "no user ghost", ""),
        ("from = \"outside\"\nto = \"/x\"", "out of the build context", "beside the Smolfile"),
        ("from = \"app/.git\"\nto = \"/x\"", "leaves it out", ""),
        ("from = \"pipe\"\nto = \"/x/\"", "a socket, a pipe or a device", ".smolignore"),
        ("from = \"app\"\nto = \"/bin/sh/x\"", "is a file", ""),
    ];
    for (copy, problem, hint) in cases {
        let folder = with_files(&format!("\n[[copy]]\n{copy}\n"));
        symlink("/etc", folder.path().join("outside")).unwrap();
        assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
        let (code, _, err) = build(folder.path());
        assert_eq!(code, 2, "{copy}: {err}");
        assert!(err.contains(problem) && err.contains(hint), "{copy}: {err}");
        assert!(!folder.path().join("x.smolmachine").exists());
    }
    let folder = with_files("\n[[copy]]\nfrom = \"app\"\nto = \"/x\"\n");
    write(&folder.path().join(".smolignore"), b"fine\n[a\n");
    let (code, _, err) = build(folder.path());
    assert!(code == 2 && err.contains(".smolignore, line 2"), "{err}");
}

#[test]
fn an_export_that_fails_leaves_the_old_file() {
    let folder = with_files("");
    assert_eq!(build(folder.path()).0, 0);
    let file = folder.path().join("x.smolmachine");
    let mut bytes = std::fs::read(&file).unwrap();
    let disk = bytes.windows(4096).position(|run| run == [7; 4096]).unwrap();
    bytes[disk] ^= 1;
    write(&file, &bytes);
    write(&folder.path().join("disk.ext4"), b"old");
    let (code, _, err) = run_in(folder.path(), &["export", "disk", "x.smolmachine", "-o", "disk.ext4"]);
    assert!(code == 2 && err.contains("disk"), "{err}");
    assert_eq!(std::fs::read(folder.path().join("disk.ext4")).unwrap(), b"old");
    assert!(
        std::fs::read_dir(folder.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with(".smolpack-") })
    );
}
