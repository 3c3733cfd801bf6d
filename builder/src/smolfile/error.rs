//! Errors that point into a Smolfile.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

/// What is wrong with a Smolfile: rendered with the line, a caret, and what to do.
#[derive(Debug)]
pub struct SmolfileError {
    rendered: String,
}

impl fmt::Display for SmolfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rendered)
    }
}

impl std::error::Error for SmolfileError {}

impl SmolfileError {
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self { rendered: format!("cannot read {}: {error}", path.display()) }
    }

    /// What the TOML reader, or a value's own check, has found.
    pub(super) fn syntax(error: &toml::de::Error, text: &str, path: &Path) -> Self {
        let span = narrow(error.span().unwrap_or(0..0), error.message(), text);
        let (title, label) = describe(error.message(), text.get(span.clone()).unwrap_or_default());
        Self::render(&title, label.as_deref(), span, text, path)
    }

    /// A value that is right on its own and wrong beside others.
    pub(super) fn at_key(key: &str, what: &str, text: &str, path: &Path) -> Self {
        let line = text.lines().find(|line| {
            let start = line.trim_start().trim_start_matches('[');
            start.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
        });
        let start = line.map_or(0, |line| line.as_ptr() as usize - text.as_ptr() as usize);
        let span = start..start + line.map_or(0, str::len);
        Self::render(&format!("`{key}` {what}"), None, span, text, path)
    }

    fn render(title: &str, label: Option<&str>, span: Range<usize>, text: &str, path: &Path) -> Self {
        let origin = path.display().to_string();
        let mut annotation = AnnotationKind::Primary.span(clamp(span, text));
        if let Some(label) = label {
            annotation = annotation.label(label);
        }
        let snippet = Snippet::source(text).path(origin).annotation(annotation);
        let report = [Level::ERROR.primary_title(title).element(snippet)];
        Self { rendered: Renderer::plain().render(&report) }
    }
}

/// The element of a list that an error quotes, rather than the whole list, which is all the TOML reader
/// tells of.
fn narrow(span: Range<usize>, message: &str, text: &str) -> Range<usize> {
    let found = text.get(span.clone()).unwrap_or_default();
    let quoted = message.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(value, _)| value);
    let Some(value) = quoted.filter(|_| found.starts_with('[')) else { return span };
    let strings = [format!("\"{value}\""), format!("'{value}'"), value.to_owned()];
    let place = strings.iter().find_map(|string| Some((found.find(string.as_str())?, string.len())));
    place.map_or(span.clone(), |(at, len)| span.start + at..span.start + at + len)
}

/// A span inside the text, on character boundaries.
fn clamp(span: Range<usize>, text: &str) -> Range<usize> {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// Says what is wrong in the user's words: serde's are about fields and variants.
fn describe(message: &str, found: &str) -> (String, Option<String>) {
    for (prefix, noun) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        if let Some((name, rest)) = message.strip_prefix(prefix).and_then(|rest| rest.split_once('`')) {
            let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
            let label = nearest(name, &known).map_or_else(
                || format!("known here: {}", known.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            return (format!("unknown {noun} `{name}`"), Some(label));
        }
    }
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
        return (format!("the key `{name}` is missing"), None);
    }
    // A value's own error says what to do after a semicolon: that belongs beside the value.
    match message.trim_end().split_once("; ") {
        Some((what, remedy)) if !found.is_empty() => (what.to_owned(), Some(remedy.to_owned())),
        _ => (message.trim_end().to_owned(), None),
    }
}

/// The known name most like `name`, if any is like it at all.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored =
        known.iter().map(|candidate| (strsim::normalized_damerau_levenshtein(name, candidate), *candidate));
    let best = scored.filter(|(score, _)| *score >= 0.5).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, candidate)| candidate)
}
