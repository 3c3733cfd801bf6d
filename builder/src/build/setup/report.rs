//! What became of each set-up command in the last build of a Smolfile, and why: for `explain`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::image::Digest;

/// What a step's result depends on: names for people to digests or plain values.
pub(super) type Ingredients = BTreeMap<String, String>;

/// The set-up commands of the last build of a Smolfile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupReport {
    /// In order; fewer than the Smolfile has where one failed.
    pub steps: Vec<StepReport>,
}

/// One set-up command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// As in the Smolfile.
    pub command: String,
    /// Whether an earlier result was used.
    pub cached: bool,
    /// Why it ran, or what spared it that; reads on from "ran: " or "cached: ".
    pub why: String,
    /// What its result depends on.
    pub ingredients: BTreeMap<String, String>,
    /// The log of its output, where it has been run on this machine.
    pub log: PathBuf,
}

impl SetupReport {
    /// The last build of the Smolfile whose files lie in `context`; none where there was none.
    ///
    /// # Errors
    /// The report is there and cannot be read.
    pub fn load(cache: &Path, context: &Path) -> io::Result<Option<Self>> {
        match fs::read(path(cache, context)) {
            // One that an older version wrote says nothing.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Keeps it for the next build, and for `explain`.
    pub(super) fn save(&self, cache: &Path, context: &Path) -> io::Result<()> {
        let path = path(cache, context);
        let folder = path.parent().unwrap_or(cache);
        fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        fs::write(file.path(), serde_json::to_vec_pretty(self)?)?;
        file.persist(path)?;
        Ok(())
    }

    /// Why step `number` has to run now, where its ingredients are these and no result is kept for them.
    pub(super) fn why(&self, number: usize, ingredients: &Ingredients) -> String {
        let Some(before) = self.steps.get(number) else { return "it is new".to_owned() };
        let changed = |name: &&String| before.ingredients.get(*name) != ingredients.get(*name);
        let names: Vec<&str> = ingredients.keys().filter(changed).map(String::as_str).collect();
        match names.as_slice() {
            [] => "its last result is no longer in the cache".to_owned(),
            [one] => format!("{one} changed"),
            [most @ .., last] => format!("{} and {last} changed", most.join(", ")),
        }
    }
}

fn path(cache: &Path, context: &Path) -> PathBuf {
    let context = fs::canonicalize(context).unwrap_or_else(|_| context.to_owned());
    let digest = Digest::of(context.as_os_str().as_encoded_bytes());
    cache.join("setup").join(format!("{}.json", digest.hex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ingredients(pairs: &[(&str, &str)]) -> Ingredients {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_report_says_what_changed_since() {
        let before = ingredients(&[("the command", "a"), ("the image", "1"), ("the kernel", "k")]);
        let step = StepReport {
            command: "a".into(),
            cached: false,
            why: "it is new".into(),
            ingredients: before.clone(),
            log: PathBuf::new(),
        };
        let report = SetupReport { steps: vec![step] };
        assert_eq!(report.why(1, &before), "it is new");
        assert_eq!(report.why(0, &before), "its last result is no longer in the cache");
        let now = ingredients(&[("the command", "b"), ("the image", "1"), ("the kernel", "k")]);
        assert_eq!(report.why(0, &now), "the command changed");
        let now = ingredients(&[("the command", "b"), ("the image", "2"), ("the kernel", "l")]);
        assert_eq!(report.why(0, &now), "the command, the image and the kernel changed");
    }

    #[test]
    fn a_report_is_found_again_by_its_folder() {
        let cache = tempfile::tempdir().unwrap();
        let context = tempfile::tempdir().unwrap();
        assert_eq!(SetupReport::load(cache.path(), context.path()).unwrap(), None);
        let report = SetupReport::default();
        report.save(cache.path(), context.path()).unwrap();
        assert_eq!(SetupReport::load(cache.path(), &context.path().join(".")).unwrap(), Some(report));
    }
}
