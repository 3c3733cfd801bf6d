//! Where secrets come from: the only place that reads their values.

use crate::error::CliError;
use crate::paths;
use smolpack_builder::smolfile::{Secret, Smolfile};
use smolpack_format::read_text_file;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The longest secret out of a file, bytes.
const LONGEST: u64 = 1 << 20;

/// The values of the secrets that set-up commands are to have.
///
/// # Errors
/// One is not where the Smolfile says it is, or is empty: set-up without it would make another machine.
pub(crate) fn for_setup(smolfile: &Smolfile) -> Result<BTreeMap<String, Vec<u8>>, CliError> {
    if smolfile.init.is_empty() {
        return Ok(BTreeMap::new());
    }
    let named = |name: &String| smolfile.secrets.get_key_value(name);
    let wanted = smolfile.build.secrets.iter().filter_map(named);
    wanted.map(|(name, secret)| Ok((name.clone(), value(name, secret)?))).collect()
}

fn value(name: &str, secret: &Secret) -> Result<Vec<u8>, CliError> {
    let (value, place) = match secret {
        Secret::FromEnv(variable) => {
            let value = std::env::var_os(variable).ok_or_else(|| {
                CliError::bad_input(format!("the secret {name} is missing: {variable} is not set"))
                    .hint(format!("set {variable}, which set-up commands need"))
            })?;
            (value.into_vec(), format!("the variable {variable}"))
        }
        Secret::FromFile(file) => {
            let path = match (file.strip_prefix("~/"), paths::home()) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => PathBuf::from(file),
            };
            let value = read_text_file(&path, LONGEST).map_err(|e| {
                CliError::bad_input(format!("the secret {name} cannot be read from {}: {e}", path.display()))
            })?;
            (value, path.display().to_string())
        }
    };
    if value.trim_ascii().is_empty() {
        return Err(CliError::bad_input(format!("the secret {name} is empty in {place}")));
    }
    Ok(value)
}
