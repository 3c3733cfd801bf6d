//! What a build says of itself while it runs.

/// Receives a build's progress. The library never touches a terminal; whoever calls it decides what
/// is shown.
pub trait Progress {
    /// A phase begins (and the last one is over): a short name such as `layers`, and how many bytes
    /// it will move where that is known.
    fn phase(&mut self, name: &str, total: Option<u64>);

    /// So many more bytes of this phase are done.
    fn advance(&mut self, bytes: u64);

    /// A line worth reading on its own.
    fn note(&mut self, line: &str);

    /// A line that a set-up command wrote.
    fn output(&mut self, line: &str);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&mut self, _name: &str, _total: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn note(&mut self, _line: &str) {}
    fn output(&mut self, _line: &str) {}
}
