//! The `smolpack` command line as a library: one module a verb.

pub mod embedded;
