//! One clear error for each mistake: status, place, and what to do.

use crate::support::{artifact, context, finish, run_in, smolpack, write};

/// Builds in `context()` changed by `change`, and checks the error.
fn refused(code: i32, words: &[&str], args: &[&str], change: impl FnOnce(&std::path::Path)) {
    let folder = context();
    change(folder.path());
    let args = [&["build", "-o", "x.smolmachine"], args].concat();
    let (got, out, err) = run_in(folder.path(), &args);
    assert_eq!(got, code, "{err}");
    assert_eq!(out, "");
    for word in words {
        assert!(err.contains(word), "{word:?} is not in: {err}");
    }
    assert!(!err.contains("panicked"), "{err}");
    assert!(!folder.path().join("x.smolmachine").exists());
}

fn smolfile(text: &'static str) -> impl FnOnce(&std::path::Path) {
    move |folder| write(&folder.join("Smolfile"), text.as_bytes())
}

#[test]
fn an_unknown_key_points_at_its_line_and_names_the_nearest() {
    refused(
        2,
        &["Smolfile:2:1", "cpu_s", "did you mean `cpus`", "^"],
        &[],
        smolfile("image = \"./root\"\ncpu_s = 2\n"),
    );
}

#[test]
fn a_folder_that_is_no_image_is_refused() {
    refused(2, &["empty", "no image"], &["--image", "./empty"], |folder| {
        std::fs::create_dir(folder.join("empty")).unwrap();
        write(&folder.join("empty/notes.txt"), b"hello");
    });
}

#[test]
fn a_truncated_archive_is_refused() {
    refused(2, &["cut.tar"], &["--image", "./cut.tar"], |folder| {
        let made = std::process::Command::new("tar")
            .current_dir(folder)
            .args(["-cf", "whole.tar", "-C", "root", "."])
            .status();
        assert!(made.unwrap().success());
        let whole = std::fs::read(folder.join("whole.tar")).unwrap();
        write(&folder.join("cut.tar"), &whole[..150_000]);
    });
}

#[test]
fn an_image_that_is_not_there_is_refused() {
    refused(2, &["./nowhere"], &["--image", "./nowhere"], |_| {});
}

#[test]
fn a_missing_smolfile_is_refused() {
    refused(2, &["there is no Smolfile", "try:"], &[], |folder| {
        std::fs::remove_file(folder.join("Smolfile")).unwrap();
    });
}

#[test]
fn a_smolfile_without_an_image_says_how_to_give_one() {
    refused(2, &["names no image", "--image"], &[], smolfile("cpus = 1\n"));
}

#[test]
fn a_file_that_is_no_kernel_is_refused() {
    refused(2, &["vmlinux"], &[], |folder| write(&folder.join("vmlinux"), b"not a kernel"));
}

#[test]
fn a_kernel_that_is_not_at_hand_is_refused_by_name() {
    let text = "image = \"./root\"\n[kernel]\nreference = \"9.9.9\"\n[snapshot]\nenabled = false\n";
    refused(2, &["9.9.9", "kernel list"], &[], smolfile(text));
}

#[test]
fn without_a_kernel_and_without_apt_the_import_is_named() {
    let folder = context();
    write(&folder.path().join("Smolfile"), b"image = \"./root\"\n[snapshot]\nenabled = false\n");
    let home = tempfile::tempdir().unwrap();
    let out = smolpack()
        .current_dir(folder.path())
        .env("XDG_DATA_HOME", home.path())
        .env("PATH", "/nowhere")
        .args(["build", "-o", "x.smolmachine"])
        .output();
    let (code, _, err) = finish(out.unwrap());
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("kernel import"), "{err}");
}

#[test]
fn a_disk_too_small_for_the_files_says_how_large_it_must_be() {
    refused(2, &["disk ="], &["--disk", "16MiB"], |folder| {
        write(&folder.join("root/usr/big"), &vec![1; 40 << 20]);
    });
}

#[test]
fn set_up_commands_without_usable_kvm_are_refused_rather_than_forgotten() {
    // Where the processor can virtualise, tests/machine shows the other side.
    if smolpack_runner::host::KvmStatus::probe().runs_linux() {
        return;
    }
    let text = "image = \"./root\"\ninit = [\"true\"]\n[kernel]\npath = \"vmlinux\"\n";
    refused(1, &["set-up commands", "/dev/kvm"], &["--no-snapshot"], smolfile(text));
}

#[test]
fn an_output_in_a_folder_that_is_not_there_is_refused_before_any_work() {
    let folder = context();
    let (code, _, err) = run_in(folder.path(), &["build", "-o", "no/such/x.smolmachine"]);
    assert_eq!(code, 2);
    assert!(err.contains("no/such") && err.contains("no such folder"), "{err}");
}

#[test]
fn a_required_snapshot_without_usable_kvm_is_an_error() {
    // Where the processor can virtualise, tests/machine shows the other side.
    if smolpack_runner::host::KvmStatus::probe().runs_linux() {
        return;
    }
    refused(
        1,
        &["no snapshot", "/dev/kvm"],
        &["--require-snapshot"],
        smolfile("image = \"./root\"\n[kernel]\npath = \"vmlinux\"\n"),
    );
}

#[test]
fn boot_refuses_what_is_no_artifact_with_125() {
    let folder = context();
    let (code, _, err) = run_in(folder.path(), &["boot", "Smolfile", "--", "true"]);
    assert_eq!(code, 125);
    assert!(err.contains("Smolfile"), "{err}");
    let (code, _, err) = run_in(folder.path(), &["boot", "nothing.smolmachine"]);
    assert_eq!(code, 125);
    assert!(err.contains("nothing.smolmachine"), "{err}");
}

#[test]
fn a_file_of_smolvm_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = vec![0; 9000];
    let at = bytes.len() - 64;
    bytes[at..at + 8].copy_from_slice(b"SMOLPACK");
    write(&folder.path().join("peer.smolmachine"), &bytes);
    let (code, _, err) = run_in(folder.path(), &["inspect", "peer.smolmachine"]);
    assert_eq!(code, 2);
    assert!(err.contains("smolvm"), "{err}");
}

#[test]
fn a_cut_off_artifact_is_refused_by_every_reader() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(artifact()).unwrap();
    write(&folder.path().join("cut.smolmachine"), &bytes[..bytes.len() - 5000]);
    for (verb, code) in [("inspect", 2), ("verify", 2), ("boot", 125)] {
        let (got, _, err) = run_in(folder.path(), &[verb, "cut.smolmachine"]);
        assert_eq!(got, code, "{verb}: {err}");
        assert!(err.contains("cut.smolmachine"), "{verb}: {err}");
    }
}

#[test]
fn a_wrong_flag_is_2_and_a_command_needs_its_dashes() {
    assert_eq!(run_in("/".as_ref(), &["build", "--no-such-flag"]).0, 2);
    assert_eq!(run_in("/".as_ref(), &["boot", "x.smolmachine", "uname"]).0, 2);
}
