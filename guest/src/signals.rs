//! Signals as a new process should have them.

/// Lets every signal do what it does by default: what a parent ignored (as under nohup, or a script's `&`)
/// would else be ignored for ever.
pub fn reset_dispositions() {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: sets a disposition; where there is none to set (KILL, STOP), nothing happens.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}
