//! The `vmstate` section: everything about a machine but its memory and disk, as bytes.
//!
//! A magic number, a version, and a list of parts, each tagged with what it is and in which version. A
//! reader takes every part it finds or refuses the whole: nothing is dropped silently. The bytes are
//! hostile: lengths and counts are bounded here, the values where they are used.

use crate::kvm::{Host, VcpuState, Vm, VmState, limits};
use crate::layout;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First bytes of the section.
const MAGIC: &[u8; 8] = b"SMOLVMST";

/// Version of the list of parts.
const VERSION: u16 = 1;

/// Version of the devices and addresses a guest sees. A snapshot of another one cannot be restored.
pub const DEVICE_MODEL: u32 = 1;

/// The most bytes of the section; a machine of 32 CPUs takes a tenth of it.
pub const MAX_BYTES: u64 = 4 << 20;

/// Where a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The processor's vendor, as CPUID spells it.
    pub vendor: String,
    /// How KVM ran the guest.
    pub backend: crate::kvm::Backend,
    /// The host kernel's release, for diagnosis only.
    pub kernel: String,
    /// The runner's [`DEVICE_MODEL`].
    pub device_model: u32,
    /// Guest memory in bytes.
    pub memory: u64,
}

/// A machine between two instructions.
#[derive(Clone, Debug)]
pub struct MachineState {
    /// Where it was taken.
    pub origin: Origin,
    /// Interrupt controllers, timer, clock.
    pub vm: VmState,
    /// The CPUs, in order; 1 to [`layout::MAX_CPUS`].
    pub vcpus: Vec<VcpuState>,
    /// The devices, encoded.
    pub devices: Vec<u8>,
}

/// What is wrong with a vmstate section.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is none.
    #[error("section vmstate: it does not begin with {:?}", String::from_utf8_lossy(MAGIC))]
    Magic,
    /// It is larger than any machine needs.
    #[error("section vmstate: {0} bytes, at most {MAX_BYTES} are allowed")]
    TooLong(u64),
    /// It was made by a newer runner.
    #[error("section vmstate: {what} has version {found}; this runner reads {known}")]
    Version {
        /// Which part.
        what: String,
        /// The version found.
        found: u16,
        /// The version known.
        known: u16,
    },
    /// A part this runner does not know.
    #[error("section vmstate: unknown part {0:?}")]
    UnknownPart(String),
    /// A part is missing, or there twice.
    #[error("section vmstate: part {0:?} must be there once")]
    Count(&'static str),
    /// A part does not decode.
    #[error("section vmstate: part {part:?} is malformed: {why}")]
    Malformed {
        /// Which part.
        part: &'static str,
        /// What does not fit.
        why: String,
    },
}

impl StateError {
    /// Whether the snapshot may be fine and only this runner too old for it.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::UnknownPart(_))
    }
}

#[derive(Serialize, Deserialize)]
struct Part {
    kind: String,
    version: u16,
    payload: Vec<u8>,
}

const ORIGIN: &str = "origin";
const VM: &str = "vm";
const VCPU: &str = "vcpu";
const DEVICES: &str = "devices";

/// Version of every kind of part.
const PART_VERSION: u16 = 1;

impl Origin {
    /// This host.
    #[must_use]
    pub fn here(host: &Host, vm: &Vm) -> Self {
        Self {
            vendor: host.vendor(),
            backend: host.backend,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            device_model: DEVICE_MODEL,
            memory: vm.memory().len(),
        }
    }
}

impl MachineState {
    /// The bytes of the section.
    ///
    /// # Panics
    /// Never: the encoder only fails where there is no memory.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut parts = vec![part(ORIGIN, &self.origin), part(VM, &self.vm)];
        parts.extend(self.vcpus.iter().map(|vcpu| part(VCPU, vcpu)));
        parts.push(Part { kind: DEVICES.into(), version: PART_VERSION, payload: self.devices.clone() });
        [&MAGIC[..], &VERSION.to_le_bytes(), &to_bytes(&parts)].concat()
    }

    /// Decodes a section, which is hostile.
    ///
    /// # Errors
    /// Says which part is wrong and how.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(StateError::TooLong(bytes.len() as u64));
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(StateError::Magic)?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or(StateError::Magic)?;
        check_version("the section", u16::from_le_bytes(*version), VERSION)?;
        let mut parts = Parts(from_bytes("list of parts", rest)?);
        parts.check()?;
        let state = Self {
            origin: parts.one(ORIGIN)?,
            vm: parts.one(VM)?,
            vcpus: parts.take(VCPU).iter().map(|p| from_bytes(VCPU, &p.payload)).collect::<Result<_, _>>()?,
            devices: parts.take(DEVICES).pop().ok_or(StateError::Count(DEVICES))?.payload,
        };
        state.check()?;
        Ok(state)
    }

    /// Bounds what KVM would otherwise be handed unseen.
    fn check(&self) -> Result<(), StateError> {
        if !(1..=layout::MAX_CPUS as usize).contains(&self.vcpus.len()) {
            return Err(StateError::Count(VCPU));
        }
        let bad = |why: String| Err(StateError::Malformed { part: VCPU, why });
        for vcpu in &self.vcpus {
            if vcpu.cpuid.len() > limits::CPUID_ENTRIES {
                return bad(format!("{} CPUID entries", vcpu.cpuid.len()));
            }
            if vcpu.msrs.len() > limits::MSRS {
                return bad(format!("{} model-specific registers", vcpu.msrs.len()));
            }
            if vcpu.xsave.len() > limits::XSAVE_BYTES {
                return bad(format!("an XSAVE area of {} bytes", vcpu.xsave.len()));
            }
            if vcpu.tsc_khz == 0 {
                return bad("a TSC frequency of 0".into());
            }
        }
        Ok(())
    }
}

/// Parts that nobody took yet.
struct Parts(Vec<Part>);

impl Parts {
    fn check(&self) -> Result<(), StateError> {
        for part in &self.0 {
            if ![ORIGIN, VM, VCPU, DEVICES].contains(&part.kind.as_str()) {
                return Err(StateError::UnknownPart(part.kind.clone()));
            }
            check_version(&part.kind, part.version, PART_VERSION)?;
        }
        Ok(())
    }

    fn take(&mut self, kind: &str) -> Vec<Part> {
        self.0.extract_if(.., |part| part.kind == kind).collect()
    }

    fn one<T: DeserializeOwned>(&mut self, kind: &'static str) -> Result<T, StateError> {
        match self.take(kind).as_slice() {
            [part] => from_bytes(kind, &part.payload),
            _ => Err(StateError::Count(kind)),
        }
    }
}

fn check_version(what: &str, found: u16, known: u16) -> Result<(), StateError> {
    if found == known { Ok(()) } else { Err(StateError::Version { what: what.into(), found, known }) }
}

fn part<T: Serialize>(kind: &str, value: &T) -> Part {
    Part { kind: kind.into(), version: PART_VERSION, payload: to_bytes(value) }
}

/// Encodes a value of the vmstate.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // The types have no maps of unknown length and no custom serialisers that fail.
    postcard::to_allocvec(value).unwrap_or_default()
}

/// Decodes a value of the vmstate and refuses bytes left over.
pub(crate) fn from_bytes<T: DeserializeOwned>(part: &'static str, bytes: &[u8]) -> Result<T, StateError> {
    let malformed = |why: String| StateError::Malformed { part, why };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|e| malformed(e.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(malformed(format!("{} bytes left over", rest.len()))) }
}
