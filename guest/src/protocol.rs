//! What host and agent say to each other over one vsock stream.
//!
//! A stream is a sequence of frames: one byte of kind, four bytes of length (little-endian), the
//! payload. Control payloads are JSON; data payloads are bytes. The host speaks first:
//!
//! 1. `Hello`, always, written by the runner itself on every stream it opens to [`AGENT_PORT`], so
//!    that no answer can precede the renewal of clock and random numbers after a restore.
//! 2. `Request`, one a stream.
//! 3. What the request calls for: an exec, and likewise a set-up command, streams `Stdin`, `Stdout`,
//!    `Stderr`, `Taken`, `Resize`, `Signal` and ends with one `Exit`; a difference streams `Stdout` and ends
//!    with one `Done`; everything else is answered with one `Done` or `Failed`.
//!
//! A command's input and each of its outputs has a window of [`WINDOW`] bytes: who sends stops when that
//! much has not been told as [`Taken`]. So both sides always read the stream, and what is not taken on one
//! of its channels holds up no other and no signal.
//!
//! Either side may see the other vanish at any frame; the agent then kills what the stream started.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io::{self, Read, Write};

/// The vsock port on which the agent listens.
pub const AGENT_PORT: u32 = 1024;

/// A word of the kernel command line: the machine is for set-up commands. Its disk holds the files of the
/// machine to be, in the folder `lower`, and it answers [`Request::SetUp`] and [`Request::Difference`].
pub const SETUP_WORD: &str = "smolpack.setup";

/// The longest payload of one frame, in bytes. A longer one ends the stream. Twice what Linux takes for
/// arguments and environment (a quarter of the usual stack of 8 MiB).
pub const MAX_PAYLOAD: u32 = 4 << 20;

/// Bytes of one channel that may be on their way and not taken.
pub const WINDOW: u32 = 1 << 20;

/// Bytes before the payload: kind and length.
const HEAD: usize = 5;

/// The kind of a frame, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`Hello`] as JSON, host to guest.
    Hello = 0,
    /// [`Request`] as JSON, host to guest.
    Request = 1,
    /// Bytes for the command's standard input; an empty payload closes it.
    Stdin = 2,
    /// Bytes of the command's standard output. From the host, empty: it is no longer wanted, and the
    /// command finds it closed.
    Stdout = 3,
    /// Bytes of the command's standard error; from the host as with `Stdout`.
    Stderr = 4,
    /// [`WindowSize`] as JSON, host to guest.
    Resize = 5,
    /// [`Signal`] as JSON, host to guest: sent to the command's process group.
    Signal = 6,
    /// [`Exit`] as JSON, guest to host; the last frame of an exec.
    Exit = 7,
    /// The request was carried out; empty.
    Done = 8,
    /// [`Failure`] as JSON: the request could not be carried out.
    Failed = 9,
    /// [`Taken`] as JSON, both ways.
    Taken = 10,
}

impl Kind {
    fn decode(byte: u8) -> io::Result<Self> {
        Ok(match byte {
            0 => Self::Hello,
            1 => Self::Request,
            2 => Self::Stdin,
            3 => Self::Stdout,
            4 => Self::Stderr,
            5 => Self::Resize,
            6 => Self::Signal,
            7 => Self::Exit,
            8 => Self::Done,
            9 => Self::Failed,
            10 => Self::Taken,
            other => return Err(invalid(format!("frame of unknown kind {other}"))),
        })
    }
}

/// Opens every stream. The agent acts on it when `generation` is new to it, before it reads on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Random, drawn once by every runner process: tells a restore from the machine it came from.
    pub generation: u64,
    /// The host's wall clock, nanoseconds since 1970.
    pub realtime_ns: u64,
    /// 64 bytes of the host's random numbers, in hexadecimal.
    pub entropy: String,
}

/// What the host asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Answers `Done`: the machine is up and its root disk is mounted.
    Ping,
    /// Runs a command.
    Exec(Exec),
    /// Readies the machine for a snapshot: syncs, trims caches, and answers `Done` when idle.
    Quiesce,
    /// Ends all processes, unmounts, and switches the machine off; answers `Done` first.
    PowerOff,
    /// Runs a set-up command over the files of the machine to be and what earlier ones changed.
    SetUp(SetUp),
    /// Ends what a set-up command left running, and streams what it changed.
    Difference(Difference),
}

/// A set-up command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetUp {
    /// Its number, 0 the first of this machine. What it changes is kept by it.
    pub step: u32,
    /// The command, looked up and run with the files of the machine to be for its root.
    pub command: Exec,
    /// Files in `/run/secrets`, which is in memory: names and contents.
    pub secrets: Vec<(String, Bytes)>,
}

/// Asks for what a set-up command changed: the upper folder of an overlay as a PAX tar, its whiteouts and
/// opaque marks as the kernel keeps them (Documentation/filesystems/overlayfs.rst), in order of names.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// The command's number.
    pub step: u32,
    /// Seconds and nanoseconds since 1970: later times of modification are written as this one.
    pub latest: (i64, u32),
}

/// A command to run inside the machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments; the program is looked up in `PATH` of `env`. Never empty.
    pub argv: Vec<Bytes>,
    /// `K=V` pairs, the whole environment. `PATH` and `HOME` are added where missing.
    pub env: Vec<Bytes>,
    /// Working folder inside the machine; `/` where absent. Made if it does not exist.
    pub workdir: Option<String>,
    /// `name`, `uid`, `name:group` or `uid:gid`, looked up in the machine's own passwd and group.
    pub user: Option<String>,
    /// Give the command a terminal of this size: then there is no separate stderr.
    pub terminal: Option<WindowSize>,
    /// The value of `TERM` for a terminal.
    pub term: Option<String>,
}

/// Bytes that are mostly text: a JSON string where they are UTF-8, else an array of numbers.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl<T: Into<Vec<u8>>> From<T> for Bytes {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Bytes(Vec<u8>),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Text(text) => text.into(),
            Either::Bytes(bytes) => Self(bytes),
        })
    }
}

/// Says that bytes of a channel were taken, and as many more may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// By the command, of its standard input.
    Stdin(u32),
    /// By the host, of standard output.
    Stdout(u32),
    /// By the host, of standard error.
    Stderr(u32),
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WindowSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// A signal for the command.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Signal {
    /// Linux signal number, 1 to 64.
    pub number: i32,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this status, 0 to 255.
    Code(u8),
    /// This signal ended it.
    Signal(i32),
}

/// Why a request could not be carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What failed and why, one sentence.
    pub message: String,
    /// 127 when a command was not found, 126 when it could not be run, as shells have it; 0 otherwise.
    pub exit_code: u8,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: Kind,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame whose payload is `value` as JSON.
    pub fn json<T: Serialize>(kind: Kind, value: &T) -> Self {
        // The types above hold nothing that JSON cannot express, so this does not fail.
        Self { kind, payload: serde_json::to_vec(value).unwrap_or_default() }
    }

    /// Reads the next frame, or `None` where the stream ends between frames.
    ///
    /// # Errors
    /// The stream's own; `InvalidData` for an unknown kind or a payload over [`MAX_PAYLOAD`];
    /// `UnexpectedEof` where it ends inside a frame.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        loop {
            match from.read(&mut head[..1]) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        from.read_exact(&mut head[1..])?;
        let (kind, len) = decode_head(head)?;
        let mut payload = vec![0; len];
        from.read_exact(&mut payload)?;
        Ok(Some(Self { kind, payload }))
    }

    /// Takes the frame that `bytes` begins with, and says how many bytes it took; `None` where it is
    /// not complete yet.
    ///
    /// # Errors
    /// `InvalidData` for an unknown kind or a payload over [`MAX_PAYLOAD`].
    pub fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (kind, len) = decode_head(*head)?;
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        Ok(Some((Self { kind, payload: payload.to_vec() }, HEAD + len)))
    }

    /// Appends the frame of these parts to `bytes`. The payload must not exceed [`MAX_PAYLOAD`].
    pub fn encode(kind: Kind, payload: &[u8], bytes: &mut Vec<u8>) {
        bytes.reserve(HEAD + payload.len());
        bytes.push(kind as u8);
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(payload);
    }

    /// Writes the frame in one call where the stream takes it.
    ///
    /// # Errors
    /// The stream's own; `InvalidInput` for a payload over [`MAX_PAYLOAD`], and nothing is written.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        if self.payload.len() > MAX_PAYLOAD as usize {
            let message = format!("{} bytes for one frame; at most {MAX_PAYLOAD} pass", self.payload.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut bytes = Vec::new();
        Self::encode(self.kind, &self.payload, &mut bytes);
        to.write_all(&bytes)
    }

    /// The payload, decoded from JSON.
    ///
    /// # Errors
    /// `InvalidData`, saying what does not fit.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> io::Result<T> {
        serde_json::from_slice(&self.payload).map_err(|e| invalid(format!("{:?} frame: {e}", self.kind)))
    }
}

fn decode_head(head: [u8; HEAD]) -> io::Result<(Kind, usize)> {
    let [kind, len @ ..] = head;
    let kind = Kind::decode(kind)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_PAYLOAD {
        return Err(invalid(format!("frame of {len} bytes; at most {MAX_PAYLOAD} are allowed")));
    }
    Ok((kind, len as usize))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            frame.write(&mut bytes).unwrap();
        }
        bytes
    }

    #[test]
    fn frames_survive_writing_and_reading() {
        let frames = [
            Frame { kind: Kind::Stdout, payload: b"a\0b".to_vec() },
            Frame { kind: Kind::Stdin, payload: Vec::new() },
            Frame::json(Kind::Exit, &Exit::Code(7)),
        ];
        let bytes = bytes(&frames);
        let mut from = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut from).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
    }

    #[test]
    fn parse_waits_for_a_complete_frame_and_agrees_with_read() {
        let frame = Frame { kind: Kind::Stderr, payload: b"text".to_vec() };
        let bytes = bytes(std::slice::from_ref(&frame));
        for end in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..end]).unwrap(), None, "{end} bytes");
        }
        assert_eq!(Frame::parse(&bytes).unwrap(), Some((frame, bytes.len())));
    }

    #[test]
    fn unknown_kinds_and_giant_frames_are_refused() {
        for (bytes, expected) in [
            (&[11, 0, 0, 0, 0][..], "frame of unknown kind 11"),
            (&[2, 1, 0, 64, 0][..], "frame of 4194305 bytes; at most 4194304 are allowed"),
        ] {
            assert_eq!(Frame::parse(bytes).unwrap_err().to_string(), expected);
            assert_eq!(Frame::read(&mut &*bytes).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_frame_that_nobody_would_take_is_not_written() {
        let mut written = Vec::new();
        let frame = Frame { kind: Kind::Request, payload: vec![0; MAX_PAYLOAD as usize + 1] };
        assert_eq!(frame.write(&mut written).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(written.is_empty());
    }

    #[test]
    fn bytes_survive_json_whatever_they_are() {
        let all: Vec<u8> = (0..=255).collect();
        for (bytes, json) in
            [(&b"text \"x\""[..], Some(r#""text \"x\"""#)), (b"\xff\0", Some("[255,0]")), (&all, None)]
        {
            let written = serde_json::to_string(&Bytes::from(bytes)).unwrap();
            assert!(json.is_none_or(|json| json == written), "{written}");
            assert_eq!(serde_json::from_str::<Bytes>(&written).unwrap().0, bytes);
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error() {
        let bytes = bytes(&[Frame { kind: Kind::Stdout, payload: b"text".to_vec() }]);
        for end in 1..bytes.len() {
            let error = Frame::read(&mut &bytes[..end]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end} bytes");
        }
    }
}
