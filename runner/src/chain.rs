//! An error and its causes in one line.

use std::error::Error;

/// The texts of `error` and all its sources, joined by colons. A source that the text before it ends
/// with is not said twice.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer{suffix}")]
    struct Outer {
        suffix: &'static str,
        source: std::io::Error,
    }

    #[test]
    fn each_cause_is_said_once() {
        let source = || std::io::Error::other("inner");
        assert_eq!(chain(&Outer { suffix: "", source: source() }), "outer: inner");
        assert_eq!(chain(&Outer { suffix: " because inner", source: source() }), "outer because inner");
    }
}
