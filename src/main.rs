//! The `smolpack` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    smolpack::cli::run()
}
