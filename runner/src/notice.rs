//! Lines for the user while a machine runs, on standard error, which the runner has from its parent.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smolpack_format::printable;
use std::io::{self, Write};

/// The longest line, in bytes: a pipe that is ready has room for it.
const LONGEST: usize = 2000;
/// The most lines of one [`Notices`]: what a guest can cause must not flood a log.
const MOST: usize = 20;

/// What was said already: no line is said twice running.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    last: String,
    said: usize,
}

impl Notices {
    /// Says a line.
    pub(crate) fn say(&mut self, line: String) {
        if self.said < MOST && self.last != line {
            write_line(&line);
            self.last = line;
            self.said += 1;
        }
    }
}

/// Writes a line unless that would have to wait: whoever reads the log must not hold up the machine.
pub(crate) fn write_line(line: &str) {
    let mut bytes = format!("smolpack: {}", printable(line)).into_bytes();
    bytes.truncate(LONGEST);
    bytes.push(b'\n');
    let stderr = io::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now)) == Ok(1) {
        // Nobody is left to tell.
        let _ = stderr.lock().write_all(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_said_twice_running_and_not_too_many_are() {
        let mut notices = Notices::default();
        notices.say("full".into());
        notices.say("full".into());
        assert_eq!(notices.said, 1);
        (0..100).for_each(|n| notices.say(n.to_string()));
        assert_eq!(notices.said, MOST);
    }
}
