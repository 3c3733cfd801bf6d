//! Everything that reads what others wrote, each behind one function of bytes. Whatever the bytes are, it
//! returns: an error is an answer, a panic or a hang is not.
//!
//! `fuzz/libfuzzer` has the same targets for cargo-fuzz, which follows coverage and wants a nightly
//! toolchain; the program of this package mutates the same seeds on any.

mod devices;
mod files;
mod tree;

use smolpack_builder::smolfile::Smolfile;
use smolpack_guest::protocol::{Difference, Exec, Exit, Failure, Frame, Hello, Request, SetUp, Taken};
use smolpack_runner::control;
use smolpack_runner::ipc::Channel;
use smolpack_runner::vmstate::MachineState;
use std::path::Path;

/// A function of bytes, and what it is called.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its folder of seeds, too.
    pub name: &'static str,
    /// Tries the bytes.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 9] = [
    Target { name: "artifact", run: files::artifact },
    // With its digests put right, so that what they guard is reached.
    Target { name: "artifact-mended", run: files::artifact_mended },
    Target { name: "image", run: files::image },
    Target { name: "tree", run: tree::run },
    Target { name: "smolfile", run: smolfile },
    Target { name: "vmstate", run: vmstate },
    Target { name: "control", run: control_messages },
    Target { name: "frames", run: frames },
    // Registers, queues, disk requests, stream packets.
    Target { name: "devices", run: devices::run },
];

fn smolfile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Smolfile::parse(&text, Path::new("Smolfile")) {
        let _ = error.render(true);
    }
}

fn vmstate(bytes: &[u8]) {
    if let Ok(state) = MachineState::decode(bytes) {
        assert!(MachineState::decode(&state.encode()).is_ok(), "what was read cannot be written");
    }
}

/// A packet on the control socket, as either side takes it.
fn control_messages(bytes: &[u8]) {
    if bytes.is_empty() || bytes.len() > control::MAX_MESSAGE {
        return;
    }
    let Ok((ours, theirs)) = Channel::pair() else { return };
    for _ in 0..2 {
        if rustix::net::send(&ours, bytes, rustix::net::SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
    let _ = theirs.receive::<control::Request>();
    let _ = theirs.receive::<control::Event>();
}

/// Frames between host and agent, and their payloads as whatever they may be.
fn frames(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(frame)) = Frame::read(&mut rest) {
        let _ = frame.decode::<Hello>();
        let _ = frame.decode::<Request>();
        let _ = frame.decode::<Exec>();
        let _ = frame.decode::<SetUp>();
        let _ = frame.decode::<Difference>();
        let _ = frame.decode::<Exit>();
        let _ = frame.decode::<Failure>();
        let _ = frame.decode::<Taken>();
    }
    let _ = Frame::parse(bytes);
}

/// Reads numbers off the front of the input; zeros where it has ended.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn some(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let some = self.some(N);
        array[..some.len()].copy_from_slice(some);
        array
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}
