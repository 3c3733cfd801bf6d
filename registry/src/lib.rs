//! OCI registries: one client for the images that builds read and the machines that are pushed and pulled.
//!
//! [`Client`] speaks the distribution protocol: who the user is, retries with backoff, going on after a
//! break, bounds on what is read, and errors that carry the registry's own words. It needs an asynchronous
//! runtime, which the caller has on its own thread: [`runtime`] makes one.
//!
//! Nothing here reads the environment or a home folder, but for the proxies that the system names: logins,
//! certificates and the hosts that may be spoken to without TLS come from the caller.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod client;
mod credentials;
mod digest;
mod error;
mod helper;

pub use access::{RegistryAccess, Retry};
pub use client::{Body, Client, Content, Manifest, Repository, Sink};
pub use credentials::{Credentials, Login};
pub use digest::{Digest, Hasher, hex};
pub use error::{ErrorKind, RegistryError};
pub use oci_spec::distribution::Reference;

/// A runtime for [`Client`], on the calling thread.
///
/// # Errors
/// The system gives no threads or descriptors for it.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
