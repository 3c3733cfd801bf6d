//! The agent's binary: `/init` of a machine's initrd.

use smolpack_guest::agent::{self, Generation, Listener, Reaper};
use smolpack_guest::protocol::AGENT_PORT;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

fn main() {
    if std::process::id() != 1 {
        eprintln!("smolpack-guest: this is the first process of a machine; it does nothing elsewhere");
        std::process::exit(2);
    }
    match agent::boot::boot().and_then(|()| listen()) {
        Ok(never) => match never {},
        Err(why) => agent::fail(&why),
    }
}

/// Answers streams for as long as the machine lives.
fn listen() -> Result<std::convert::Infallible, String> {
    let reaper = Reaper::start().map_err(|e| format!("cannot start the reaper: {e}"))?;
    let generation = Arc::new(Generation::default());
    let listener =
        Listener::bind(AGENT_PORT).map_err(|e| format!("cannot listen on vsock port {AGENT_PORT}: {e}"))?;
    loop {
        let Ok(stream) = listener.accept() else {
            // Out of descriptors or memory: give streams time to end.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (generation, reaper) = (Arc::clone(&generation), reaper.clone());
        let session = Builder::new().name("session".into()).stack_size(256 << 10);
        // A stream that breaks, or that no thread can be had for, is closed: the host sees that.
        let _ = session.spawn(move || agent::serve(stream, &generation, &reaper));
    }
}
