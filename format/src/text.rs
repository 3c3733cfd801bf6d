//! Text of others, made safe to print.
//!
//! What an artifact, a registry, an image or a guest says may hold sequences that a terminal obeys (a cursor
//! moved, a title set, text typed), line ends that fake a message of ours, letters that turn the reading
//! direction, and no end.

/// The most characters of one line that are printed.
const LINE: usize = 1000;

/// One line: what is not printable comes as an escape (`\u{1b}`), line ends too, and no more than 1,000
/// characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LINE));
    for (count, letter) in text.chars().enumerate() {
        if count == LINE {
            line.push_str("... (cut)");
            break;
        }
        if is_printable(letter) {
            line.push(letter);
        } else {
            line.extend(letter.escape_unicode());
        }
    }
    line
}

/// Several lines, each as [`printable`] has it.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    let line = |line: &str| printable(line.strip_suffix('\r').unwrap_or(line));
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// JSON with what is not printable as `\u` escapes, which mean the same.
#[must_use]
pub fn printable_json(json: &str) -> String {
    let mut printed = String::with_capacity(json.len());
    for letter in json.chars() {
        // Between values there are only line ends and spaces, which serialisers put there.
        if is_printable(letter) || letter == '\n' {
            printed.push(letter);
        } else {
            let mut units = [0; 2];
            printed.extend(letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    printed
}

/// No control character but the tab, and none that changes how others are shown: direction marks (Unicode
/// Standard Annex 9), line and paragraph separators, invisible tags.
fn is_printable(letter: char) -> bool {
    match letter {
        '\t' => true,
        '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => false,
        letter => !letter.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left_and_no_line_is_endless() {
        let hostile = "a\u{1b}[2J\u{9b}1m\r\nb\u{202e}c\u{7f}\u{e0041}é漢\t.";
        let line = printable(hostile);
        assert_eq!(line, r"a\u{1b}[2J\u{9b}1m\u{d}\u{a}b\u{202e}c\u{7f}\u{e0041}é漢	.");
        assert_eq!(printable_lines("a\u{1b}\r\nb\n"), "a\\u{1b}\nb\n");
        let long = printable(&"x".repeat(1 << 20));
        assert!(long.len() < 1100 && long.ends_with("(cut)"), "{}", long.len());
        for code in (0..0x20).chain(0x7f..0xa0).filter(|code| *code != 9) {
            assert!(!is_printable(char::from_u32(code).unwrap()), "{code:#x}");
        }
    }

    #[test]
    fn json_means_the_same_with_its_escapes() {
        let value = serde_json::json!({ "k\u{9b}": ["\u{1b}[0m\u{e0041}\u{202e}", "é"] });
        let printed = printable_json(&value.to_string());
        assert!(printed.chars().all(is_printable), "{printed}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), value);
    }
}
