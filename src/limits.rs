//! The limits of this process (ulimit), for errors that come of them.

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;
use std::sync::Arc;

/// An error number (errno(3)), the limit it comes of, what that limits, and the shell's way to raise it.
const LIMITS: [(i32, Resource, &str, &str); 4] = [
    (24, Resource::Nofile, "open files", "ulimit -n"),
    (27, Resource::Fsize, "bytes in a file", "ulimit -f"),
    (11, Resource::Nproc, "processes and threads of this user", "ulimit -u"),
    (12, Resource::As, "bytes of address space", "ulimit -v"),
];

/// Has a file that grows beyond its limit be an error where it is written, not the end of this process.
pub fn survive_file_limit() {
    // A flag nobody reads. Without it the limit has the last word, as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// What to do about an error whose message ends, as those of the system do, with an error number that comes
/// of a limit; the runner's errors too, as it has the same limits.
#[must_use]
pub fn hint(message: &str) -> Option<String> {
    let is_named = |errno: i32| message.contains(&format!("(os error {errno})"));
    let (_, resource, what, command) = LIMITS.into_iter().find(|(errno, ..)| is_named(*errno))?;
    let limit = getrlimit(resource).current?;
    Some(format!("raise the limit of {limit} {what} (`{command}`)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_comes_of_a_limit_names_it() {
        let said = hint("cannot open x: Too many open files (os error 24)").unwrap();
        assert!(said.contains("open files") && said.contains("ulimit -n"), "{said}");
        assert_eq!(hint("cannot open x: No such file or directory (os error 2)"), None);
    }
}
