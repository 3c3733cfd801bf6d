//! How long each step up to a running machine took.

use std::time::Instant;

/// Steps and their durations, in order.
#[derive(Debug)]
pub struct Timings {
    last: Instant,
    steps: Vec<(&'static str, u64)>,
}

impl Timings {
    /// The first step begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { last: Instant::now(), steps: Vec::with_capacity(16) }
    }

    /// The step that began with the last call, called `name`, is over and the next begins.
    pub fn done(&mut self, name: &'static str) {
        let now = Instant::now();
        self.steps.push((name, now.duration_since(self.last).as_micros() as u64));
        self.last = now;
    }

    /// The steps so far, microseconds.
    #[must_use]
    pub fn steps(&self) -> Vec<(String, u64)> {
        self.steps.iter().map(|(name, us)| ((*name).to_owned(), *us)).collect()
    }
}
