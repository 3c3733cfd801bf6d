//! What a parent process and its runner say to each other.
//!
//! They share a `SOCK_SEQPACKET` socket pair, which the runner finds at file descriptor
//! [`CONTROL_FD`]: one JSON message a packet, file descriptors passed beside it (`SCM_RIGHTS`). The
//! parent sends [`Request`]s, the runner [`Event`]s. When the parent's end closes, the runner ends,
//! so that nothing is left behind by a killed parent.

use serde::{Deserialize, Serialize};
use smolpack_format::{Manifest, printable};

/// Where the runner finds its end of the control socket: in place of standard input, which a program can
/// be started with without copying the parent's address space (`posix_spawn`).
pub const CONTROL_FD: i32 = 0;

/// The longest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 10;

/// From parent to runner.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first message. Descriptors: the artifact (read-only), the console log (append).
    Launch(Launch),
    /// One descriptor: a connected stream socket, joined to a new vsock stream to `port` in the
    /// guest. Closed at once where the guest refuses. Streams to the agent's port get the `Hello`
    /// frame of `smolpack_guest::protocol` from the runner first.
    Connect {
        /// vsock port in the guest.
        port: u32,
    },
    /// One descriptor: an empty file. The machine is paused and written there as a container of
    /// kind `checkpoint` (sections `memory`, `vmstate`, `overlay`; parent: the artifact), and the
    /// runner ends.
    Snapshot,
    /// Ends the machine at once, like a pulled plug.
    Kill,
}

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// How to start.
    pub start: Start,
    /// Virtual CPUs, 1 to 32, for a cold boot; a restored machine has those it was saved with.
    pub cpus: u32,
    /// Guest memory in MiB, for a cold boot.
    pub memory_mib: u64,
    /// Size of the root disk in bytes, at least that of the disk section, a multiple of 4,096.
    pub disk_bytes: u64,
    /// What a write of the guest does where the host has no room for it.
    pub on_full: OnFull,
    /// Kernel command line of a cold boot, after what the runner itself needs there.
    pub cmdline: String,
}

impl Launch {
    /// The machine that an artifact's manifest describes.
    #[must_use]
    pub fn new(start: Start, manifest: &Manifest) -> Self {
        Self {
            start,
            cpus: manifest.cpus,
            memory_mib: manifest.memory_mib,
            disk_bytes: manifest.disk_bytes,
            on_full: OnFull::default(),
            cmdline: manifest.kernel.as_ref().map(|kernel| kernel.cmdline.clone()).unwrap_or_default(),
        }
    }
}

/// What a write of the guest does where the host has no room for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// It fails: the guest gets an I/O error.
    #[default]
    Error,
    /// It waits until there is room, and the machine's other writes with it.
    Wait,
}

/// How to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Restore where there is a snapshot that fits this host, else boot cold and say why.
    Any,
    /// Boot cold.
    Cold,
    /// Restore, or fail.
    Restore,
}

/// From runner to parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The vCPUs run.
    Started(Started),
    /// The snapshot asked for is complete (not yet synced to the disk) and the machine is over.
    SnapshotTaken,
    /// The machine is over; the runner exits after this.
    Ended(Ended),
    /// The runner cannot go on; it exits after this.
    Failed(Failed),
}

/// How the machine came up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// Whether it was restored.
    pub restored: bool,
    /// Why it was not, one sentence, where `Start::Any` fell back to a cold boot.
    pub cold_reason: Option<String>,
    /// Steps up to here with what each took, microseconds, in order.
    pub timings_us: Vec<(String, u64)>,
}

/// Why the machine is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset; this includes a guest kernel's panic.
    Reset,
    /// The parent asked for it.
    Killed,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// What failed, on what, and why: a line.
    pub message: String,
    /// What to do about it, where that is known.
    pub hint: Option<String>,
}

impl Failed {
    /// Has room in a control message, whatever the text quotes.
    #[must_use]
    pub fn new(message: &str, hint: Option<&str>) -> Self {
        Self { message: printable(message), hint: hint.map(printable) }
    }
}
