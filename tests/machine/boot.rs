//! `smolpack boot`: streams, status, terminal, signals.

use crate::support::{boot, hello, runners, smolpack, stdout, text, wait_for_no_runner};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn stdout_stderr_and_status_are_the_commands_own() {
    let out = boot(&["-q", hello(), "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(
        (out.status.code(), text(&out.stdout), text(&out.stderr)),
        (Some(7), "out\n".into(), "err\n".into())
    );
}

#[test]
fn a_signal_is_128_and_its_number() {
    let out = boot(&[hello(), "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(out.status.code(), Some(128 + 9));
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_126() {
    let out = boot(&[hello(), "--", "no-such-command"]);
    assert_eq!(out.status.code(), Some(127));
    assert!(text(&out.stderr).contains("no-such-command"), "{}", text(&out.stderr));
    assert_eq!(boot(&[hello(), "--", "/etc/passwd"]).status.code(), Some(126));
}

#[test]
fn without_a_command_the_images_own_runs() {
    assert!(stdout(&boot(&[hello()])).starts_with("hello from Linux"));
}

#[test]
fn environment_folder_and_user_are_as_asked() {
    let script = "echo $A; pwd; id -u; id -g; echo $HOME";
    let out = boot(&["-e", "A=b c", "-w", "/var", "-u", "12:34", hello(), "--", "sh", "-c", script]);
    assert_eq!(stdout(&out), "b c\n/var\n12\n34\n/\n");
}

#[test]
fn input_is_passed_with_i_and_closed_without() {
    let mut child = smolpack()
        .args(["boot", "-i", hello(), "--", "sha256sum"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let data = vec![b'x'; 3 << 20];
    child.stdin.take().unwrap().write_all(&data).unwrap();
    let out = child.wait_with_output().unwrap();
    // printf x%.0s {1..3145728} | sha256sum
    let host = Command::new("sh")
        .args(["-c", "head -c 3145728 /dev/zero | tr '\\0' x | sha256sum"])
        .output()
        .unwrap();
    assert_eq!(stdout(&out), text(&host.stdout));
    assert_eq!(stdout(&boot(&[hello(), "--", "cat"])), "");
}

#[test]
fn large_output_arrives_whole() {
    let out =
        boot(&["-q", hello(), "--", "sh", "-c", "head -c 20000000 /dev/zero; head -c 100000 /dev/zero >&2"]);
    assert_eq!((out.status.code(), out.stdout.len(), out.stderr.len()), (Some(0), 20_000_000, 100_000));
}

#[test]
fn a_terminal_is_one_inside_too() {
    // script(1) gives the program a terminal of its own.
    let inside = format!(
        "stty rows 33 cols 77; {} boot -q -it {} -- sh -c 'test -t 0 && test -t 1 && stty size; exit 5'",
        env!("CARGO_BIN_EXE_smolpack"),
        hello()
    );
    let out =
        Command::new("script").args(["-qec", &inside, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(5), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("33 77"), "{}", text(&out.stdout));
}

#[test]
fn t_without_a_terminal_is_refused() {
    let out = boot(&["-t", hello(), "--", "true"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("terminal"), "{}", text(&out.stderr));
}

/// Starts a machine that says when it is up and then sleeps.
fn sleeping() -> std::process::Child {
    let mut child = smolpack()
        .args(["boot", "-q", hello(), "--", "sh", "-c", "echo up; sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    child
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn ctrl_c_stops_the_machine_and_leaves_nothing() {
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let mut child = sleeping();
        assert_eq!(runners().len(), 1);
        signal(name, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(status), "{name}");
        wait_for_no_runner();
    }
}

#[test]
fn a_killed_program_takes_its_machine_with_it() {
    let mut child = sleeping();
    signal("KILL", child.id());
    child.wait().unwrap();
    wait_for_no_runner();
}

#[test]
fn a_killed_runner_is_reported() {
    let child = sleeping();
    signal("KILL", runners()[0]);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(125));
}

#[test]
fn a_machine_that_switches_itself_off_ends_the_boot() {
    let started = Instant::now();
    let out = boot(&[hello(), "--", "sh", "-c", "echo o > /proc/sysrq-trigger; sleep 100"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(text(&out.stderr).contains("switched"), "{}", text(&out.stderr));
}

#[test]
fn a_panic_of_the_guest_kernel_ends_the_boot_with_the_consoles_last_lines() {
    let out = boot(&[hello(), "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 100"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("Rebooting in"), "{}", text(&out.stderr));
}

#[test]
fn kvm_that_may_not_be_opened_is_one_clear_error() {
    use std::os::unix::fs::PermissionsExt;
    let set = |mode| std::fs::set_permissions("/dev/kvm", std::fs::Permissions::from_mode(mode));
    let before = std::fs::metadata("/dev/kvm").unwrap().permissions().mode();
    // A user of its own, so that root's rights do not count; the artifact is readable by all.
    set(0o600).unwrap();
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_smolpack"), "boot"])
        .args([hello_for_all().as_str(), "--", "true"])
        .output();
    set(before).unwrap();
    let out = out.unwrap();
    assert_eq!(out.status.code(), Some(125));
    let said = text(&out.stderr);
    assert!(said.contains("/dev/kvm") && said.contains("usermod"), "{said}");
}

/// A copy that every user can read.
fn hello_for_all() -> String {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::path::Path::new("/tmp/smolpack-for-all");
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("hello.smolmachine");
    std::fs::copy(hello(), &file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    file.to_str().unwrap().to_owned()
}
