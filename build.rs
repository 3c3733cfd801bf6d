//! Builds the runner and the guest agent as static binaries, for `src/embedded.rs` to include.
//!
//! They are programs of their own, with their own profile and link mode (static, size, abort on
//! panic), so the outer build cannot produce them itself: cargo has no stable artifact dependencies.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is TARGET_DIR/PROFILE/build/smolpack-HASH/out: all profiles share one embedded build.
    let target_dir = out.ancestors().nth(4).unwrap_or(&out).join("embedded");

    for watched in ["guest", "runner", "format", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    for (package, binary) in [("smolpack-guest", "smolpack-guest"), ("smolpack-runner", "smolpack-runner")] {
        build(&root, &target_dir, package, binary);
        let built = target_dir.join(TARGET).join("embedded").join(binary);
        std::fs::copy(&built, out.join(binary))
            .unwrap_or_else(|e| panic!("cannot copy {}: {e}", built.display()));
    }
}

fn build(root: &Path, target_dir: &Path, package: &str, binary: &str) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--quiet", "--profile", "embedded", "--target", TARGET])
        .args(["--package", package, "--bin", binary, "--target-dir"])
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    // The outer cargo's wrappers (clippy) and overrides are not for this build.
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    let status = command.status().unwrap_or_else(|e| panic!("cannot run cargo for {package}: {e}"));
    assert!(status.success(), "building {package} failed: {status}");
}
