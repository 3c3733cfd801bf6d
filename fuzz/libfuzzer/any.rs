//! The target that FUZZ_TARGET names, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smolpack_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    *TARGETS.iter().find(|target| target.name == name).expect("there is no such target")
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
