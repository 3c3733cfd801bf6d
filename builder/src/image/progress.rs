//! One load's progress, shared by what runs at once on its thread.

use std::cell::RefCell;

use crate::progress::Progress;

/// Hands events on to the caller's [`Progress`].
pub(super) struct Reporter<'a>(RefCell<&'a mut dyn Progress>);

impl<'a> Reporter<'a> {
    pub(super) fn new(progress: &'a mut dyn Progress) -> Self {
        Self(RefCell::new(progress))
    }

    pub(super) fn phase(&self, name: &str, total: Option<u64>) {
        self.0.borrow_mut().phase(name, total);
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.0.borrow_mut().advance(bytes);
    }

    pub(super) fn note(&self, line: &str) {
        self.0.borrow_mut().note(line);
    }
}
