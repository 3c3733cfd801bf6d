//! The user's folders: the only place that looks at `HOME` and the XDG variables.

use crate::error::CliError;
use std::path::PathBuf;

/// Where kernels and machines are kept: `$XDG_DATA_HOME/smolpack`, else `~/.local/share/smolpack`.
///
/// # Errors
/// Where neither `XDG_DATA_HOME` nor `HOME` is set to an absolute path.
pub fn data() -> Result<PathBuf, CliError> {
    folder("XDG_DATA_HOME", ".local/share")
}

/// Where layers are kept that can be fetched again: `$XDG_CACHE_HOME/smolpack`, else `~/.cache/smolpack`.
///
/// # Errors
/// As [`data`].
pub fn cache() -> Result<PathBuf, CliError> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// The user's home folder, where it is known.
#[must_use]
pub fn home() -> Option<PathBuf> {
    absolute("HOME")
}

fn folder(variable: &str, below_home: &str) -> Result<PathBuf, CliError> {
    absolute(variable)
        .or_else(|| home().map(|home| home.join(below_home)))
        .map(|base| base.join("smolpack"))
        .ok_or_else(|| {
            CliError::failed(format!("neither {variable} nor HOME names a folder"))
                .hint(format!("set {variable} to an absolute path"))
        })
}

fn absolute(variable: &str) -> Option<PathBuf> {
    // The XDG specification has relative values ignored.
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
