//! The `smolpack` program.

fn main() {
    println!("{} {}", smolpack::embedded::GUEST.len(), smolpack::embedded::RUNNER.len());
}
