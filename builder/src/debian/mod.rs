//! Debian packages: downloading one through the system's apt, and reading what is in it without dpkg.

mod apt;
mod package;

pub use apt::{Apt, AptError};
pub use package::{Entry, Package, PackageError};
