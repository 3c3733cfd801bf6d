//! What `[[copy]]` leaves out: patterns as in a `.dockerignore`.
//!
//! One a line, relative to the build context: `*`, `?` and `[...]` stay within a name, `**` stands for any
//! number of folders, `#` begins a comment, `!` takes back what an earlier line left out. The last line that
//! matches decides, and what matches a folder matches all in it.

use globset::{GlobBuilder, GlobMatcher};
use std::path::Path;

/// The patterns of one file.
#[derive(Debug, Default)]
pub(super) struct Ignore(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    matcher: GlobMatcher,
    /// It began with `!`.
    keeps: bool,
}

impl Ignore {
    /// Reads the patterns; an error has the number of the line, from 1, and what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut patterns = Vec::new();
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            if line.starts_with('#') {
                continue;
            }
            let (keeps, pattern) = match line.trim().strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line.trim()),
            };
            let parts: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            if parts.contains(&"..") {
                return Err((number, "`..` leads out of the build context".to_owned()));
            }
            if parts.is_empty() {
                continue;
            }
            let glob =
                GlobBuilder::new(&parts.join("/")).literal_separator(true).backslash_escape(true).build();
            let glob = glob.map_err(|e| (number, e.kind().to_string()))?;
            patterns.push(Pattern { matcher: glob.compile_matcher(), keeps });
        }
        Ok(Self(patterns))
    }

    /// Whether `path`, relative to the build context, is left out.
    pub(super) fn leaves_out(&self, path: &Path) -> bool {
        // Parents count too: what is left out of a folder that is left out, unless taken back by name.
        let matches = |pattern: &Pattern| {
            path.ancestors().any(|part| part != Path::new("") && pattern.matcher.is_match(part))
        };
        self.0.iter().rev().find(|pattern| matches(pattern)).is_some_and(|pattern| !pattern.keeps)
    }

    /// Whether something below a folder that is left out may be taken back.
    pub(super) fn takes_back(&self) -> bool {
        self.0.iter().any(|pattern| pattern.keeps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_dockers_do() {
        let text = "# comment\n\n*.log\n/target\n**/node_modules\ndocs/**/*.md\n!docs/keep/*.md\n  build/  \nv[0-9]?\n";
        let ignore = Ignore::parse(text).unwrap();
        for (path, left_out) in [
            ("a.log", true),
            ("sub/a.log", false),
            ("target", true),
            ("target/debug/x", true),
            ("sub/target", false),
            ("node_modules", true),
            ("a/b/node_modules/c/d", true),
            ("docs/a.md", true),
            ("docs/x/y/a.md", true),
            ("docs/keep/a.md", false),
            ("docs/a.txt", false),
            ("build/out", true),
            ("v1x", true),
            ("vax", false),
            ("# comment", false),
        ] {
            assert_eq!(ignore.leaves_out(Path::new(path)), left_out, "{path}");
        }
        assert!(ignore.takes_back());
    }

    #[test]
    fn the_last_line_that_matches_decides() {
        let ignore = Ignore::parse("*\n!src\nsrc/secret\n").unwrap();
        assert!(ignore.leaves_out(Path::new("README")));
        assert!(!ignore.leaves_out(Path::new("src/main.rs")));
        assert!(ignore.leaves_out(Path::new("src/secret/key")));
    }

    #[test]
    fn a_bad_pattern_is_named_by_its_line() {
        assert_eq!(Ignore::parse("ok\n[a\n").unwrap_err().0, 2);
        let (line, what) = Ignore::parse("../x").unwrap_err();
        assert!(line == 1 && what.contains("out of the build context"), "{what}");
    }
}
