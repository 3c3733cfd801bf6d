//! Guesses what an unknown word was meant to be.

use super::schema;

/// Words of other tools for what a Smolfile calls something else.
const OTHER_TOOLS: [(&str, &str); 20] = [
    ("base", "image"),
    ("from", "image"),
    ("command", "cmd"),
    ("run", "init"),
    ("setup", "init"),
    ("environment", "env"),
    ("working_dir", "workdir"),
    ("workingdir", "workdir"),
    ("cwd", "workdir"),
    ("vcpus", "cpus"),
    ("cores", "cpus"),
    ("mem", "memory"),
    ("ram", "memory"),
    ("rootfs_size", "disk"),
    ("publish", "ports"),
    ("expose", "ports"),
    ("mounts", "volumes"),
    ("mount", "volumes"),
    ("healthcheck", "health"),
    ("networking", "network"),
];

/// The candidate that differs least from `word`, if it differs little enough to be meant.
pub(super) fn nearest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // A hostile file may hold a key of a megabyte; no key of ours comes near this length.
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_ascii_lowercase().replace('-', "_");
    let allowed = (lower.len() / 3).max(1);
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.replace('-', "_")), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Label and help for a key that the table at `path` does not know.
pub(super) fn explain_unknown(key: &str, path: &str, known: &[&'static str]) -> (String, Option<String>) {
    let lower = key.to_ascii_lowercase();
    let misspelt = known.contains(&lower.as_str());
    if let Some(help) = other_place(&lower, path).filter(|_| !misspelt) {
        return ("not a key of this table".to_owned(), Some(help));
    }
    let synonym = OTHER_TOOLS.iter().find(|(word, _)| *word == lower).map(|(_, ours)| *ours);
    let guess = synonym.filter(|ours| known.contains(ours)).or_else(|| nearest(key, known));
    match guess {
        Some(guess) => (format!("did you mean `{guess}`?"), None),
        None => ("not a key of this table".to_owned(), Some(list(path, known))),
    }
}

/// Says where a key belongs that stands in the wrong table.
fn other_place(key: &str, path: &str) -> Option<String> {
    let mut places = schema::tables_with_key(key).into_iter().filter(|table| table != path).peekable();
    let first = places.peek()?.clone();
    if places.any(|place| place.is_empty()) {
        return Some(format!("`{key}` belongs at the top of the file: write it before the first `[table]`"));
    }
    Some(format!("`{key}` belongs in `[{first}]`"))
}

fn list(path: &str, known: &[&'static str]) -> String {
    let table = if path.is_empty() { "a Smolfile".to_owned() } else { format!("`{path}`") };
    format!("the keys of {table} are {}", known.join(", "))
}
