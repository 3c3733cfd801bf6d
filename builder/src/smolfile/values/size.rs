//! Sizes and counts.

use super::ValueError;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Virtual CPUs: 1 to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus(pub u32);

impl Cpus {
    pub(in crate::smolfile) fn new(count: i128) -> Result<Self, ValueError> {
        match u32::try_from(count) {
            Ok(count @ 1..=32) => Ok(Self(count)),
            _ => Err(ValueError::new(format!("{count} is not between 1 and 32"))
                .help("a machine has 1 to 32 virtual CPUs")),
        }
    }
}

/// Guest memory in MiB: 64 MiB to 1 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

const MEMORY_HELP: &str = "write a number of MiB, or a size such as \"512MiB\" or \"2GiB\"";

impl Memory {
    /// A size with its unit; a bare number counts MiB.
    ///
    /// # Errors
    /// Says what is accepted.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        let bytes = parse_bytes(text, MIB, MEMORY_HELP)?;
        if bytes % MIB != 0 {
            return Err(ValueError::new("memory comes in whole MiB").help(MEMORY_HELP));
        }
        Self::from_mib((bytes / MIB).into())
    }

    pub(in crate::smolfile) fn from_mib(mib: i128) -> Result<Self, ValueError> {
        match u64::try_from(mib) {
            Ok(mib @ 64..=1_048_576) => Ok(Self(mib)),
            _ if mib < 64 => Err(ValueError::new(format!("{mib} MiB is too little to boot with"))
                .help("a machine has at least 64 MiB of memory")),
            _ => Err(ValueError::new("more than 1 TiB of memory").help(MEMORY_HELP)),
        }
    }
}

/// Room on the root disk in bytes: from 16 MiB to less than 16 TiB, in whole MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskSize(pub u64);

const DISK_HELP: &str = "write a number of GiB, or a size such as \"4GiB\" or \"512MiB\"";

impl DiskSize {
    /// A size with its unit; a bare number counts GiB.
    ///
    /// # Errors
    /// Says what is accepted.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        Self::from_bytes(parse_bytes(text, GIB, DISK_HELP)?)
    }

    pub(in crate::smolfile) fn from_gib(gib: i128) -> Result<Self, ValueError> {
        match u64::try_from(gib) {
            Ok(gib) => Self::from_bytes(gib.saturating_mul(GIB)),
            Err(_) if gib < 0 => Self::from_bytes(0),
            Err(_) => Self::from_bytes(u64::MAX),
        }
    }

    fn from_bytes(bytes: u64) -> Result<Self, ValueError> {
        match bytes {
            0..SMALLEST_DISK => {
                Err(ValueError::new("less than 16 MiB is too little for a disk").help(DISK_HELP))
            }
            // Whole MiB fit the layout of the file system and every host's block size.
            SMALLEST_DISK..=LARGEST_DISK => Ok(Self(bytes.next_multiple_of(MIB))),
            _ => Err(ValueError::new("a disk is smaller than 16 TiB").help(DISK_HELP)),
        }
    }
}

const SMALLEST_DISK: u64 = 16 * MIB;
/// The file system counts blocks of 4 KiB in 32 bits.
const LARGEST_DISK: u64 = 16 * TIB - MIB;

/// `512MiB`, `512M`, `10GB`, or `512` of the unit `bare`.
fn parse_bytes(text: &str, bare: u64, help: &str) -> Result<u64, ValueError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit_bytes(unit.trim_start(), bare).filter(|_| digits > 0);
    let unit = unit.ok_or_else(|| ValueError::new(format!("{text:?} is not a size")).help(help))?;
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| ValueError::new("too large a size").help(help))
}

fn unit_bytes(unit: &str, bare: u64) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" => bare,
        "b" => 1,
        "k" | "kib" => KIB,
        "m" | "mib" => MIB,
        "g" | "gib" => GIB,
        "t" | "tib" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}
