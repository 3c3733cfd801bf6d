//! What is wrong with a Smolfile, and how it is shown: file, line, column, caret, what to do.
//!
//! Problems are collected rather than thrown one at a time, because a user who mends a file wants the
//! whole list. They are kept as data (a span and texts); only [`Problems::render`] draws them.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// How many problems are drawn; the rest is counted, so that a file of another kind altogether
/// does not scroll the first message away.
const SHOWN: usize = 20;

/// One problem: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    title: String,
    label: String,
    help: Option<String>,
    span: Range<usize>,
    related: Option<(Range<usize>, String)>,
}

impl Problem {
    pub(super) fn new(title: impl Into<String>, span: Range<usize>, label: impl Into<String>) -> Self {
        Self { title: title.into(), label: label.into(), help: None, span, related: None }
    }

    pub(super) fn help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }

    pub(super) fn related(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.related = Some((span, label.into()));
        self
    }

    /// The problem in one line, naming the key.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What is wrong at the caret.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What to do next, where there is something better to say than "mend it".
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The bytes of the file that are wrong.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

/// Collects problems while a file is read.
#[derive(Default)]
pub(super) struct Diagnostics {
    errors: Vec<Problem>,
}

impl Diagnostics {
    pub(super) fn push(&mut self, error: Problem) {
        self.errors.push(error);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// The problems in the order of the file.
    pub(super) fn into_problems(mut self, text: &str, path: &Path) -> Problems {
        self.errors.sort_by_key(|e| (e.span.start, e.span.end));
        for error in &mut self.errors {
            error.span = clamp(text, &error.span);
        }
        Problems { path: path.to_owned(), text: text.to_owned(), errors: self.errors }
    }
}

/// Keeps a span inside the text and on character boundaries, whatever the parser said of broken input.
fn clamp(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |at: usize| {
        let mut at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// Everything that is wrong with one Smolfile; at least one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    path: PathBuf,
    text: String,
    errors: Vec<Problem>,
}

impl Problems {
    /// The problems, in the order of the file.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.errors
    }

    /// Line and column of a problem, both from 1; the column counts characters.
    #[must_use]
    pub fn position(&self, error: &Problem) -> (usize, usize) {
        let before = &self.text[..clamp(&self.text, &error.span).start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, column)
    }

    /// Draws all problems with the lines they are on; `colour` adds terminal escapes.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut parts: Vec<String> =
            self.errors.iter().take(SHOWN).map(|error| self.draw(&renderer, error)).collect();
        if self.errors.len() > SHOWN {
            parts.push(format!("and {} more problems", self.errors.len() - SHOWN));
        }
        parts.join("\n\n")
    }

    fn draw(&self, renderer: &Renderer, error: &Problem) -> String {
        let path = self.path.display().to_string();
        let mut snippet = Snippet::source(&self.text)
            .path(path.as_str())
            .annotation(AnnotationKind::Primary.span(error.span.clone()).label(&error.label));
        if let Some((span, label)) = &error.related {
            snippet = snippet.annotation(AnnotationKind::Context.span(span.clone()).label(label));
        }
        let mut group = Level::ERROR.primary_title(&error.title).element(snippet);
        if let Some(help) = &error.help {
            group = group.element(Level::HELP.message(help));
        }
        renderer.render(&[group])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}

/// Why a Smolfile could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SmolfileError {
    /// The file cannot be read.
    #[error("cannot read the Smolfile {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Larger than any Smolfile: most likely another file was named.
    #[error("{} is longer than {limit} bytes, the most a Smolfile can have. Is it another file?", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The largest length that is read.
        limit: u64,
    },
    /// Not UTF-8, so not TOML.
    #[error("{} is not text: byte {offset} is not valid UTF-8. Save it as UTF-8, or name another file", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is wrong.
        offset: usize,
    },
    /// It was read, and says something wrong.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

impl SmolfileError {
    /// The message; `colour` adds terminal escapes where there is something to highlight.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        match self {
            Self::Invalid(problems) => problems.render(colour),
            _ => self.to_string(),
        }
    }
}
