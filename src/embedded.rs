//! The two static binaries that travel inside this program (made by `build.rs`).

/// The virtual machine monitor, run as a process of its own.
pub const RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/smolpack-runner"));

/// PID 1 and agent of every machine: `/init` of the initrd.
pub const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/smolpack-guest"));

#[cfg(test)]
mod tests {
    #[test]
    fn the_embedded_programs_are_static_and_small() {
        for (name, program, limit) in [("guest", super::GUEST, 2 << 20), ("runner", super::RUNNER, 4 << 20)] {
            assert!(program.len() <= limit, "{name}: {} bytes", program.len());
            // PT_INTERP names the dynamic linker; a static program has none.
            let interpreter = b"/lib64/ld-linux";
            let found = program.windows(interpreter.len()).any(|window| window == interpreter);
            assert!(!found, "{name} asks for a dynamic linker");
        }
    }
}
