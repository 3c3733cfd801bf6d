//! What a restored machine renews before it answers: random numbers and the wall clock.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, Timespec, clock_settime};

use crate::protocol::Hello;

/// The generation seen last. Streams of one restore arrive together: the first renews, and the others
/// wait for it.
#[derive(Debug)]
pub struct Generation {
    seen: Mutex<Option<u64>>,
    renew: fn(&Hello) -> io::Result<()>,
}

impl Default for Generation {
    /// Renews this machine.
    fn default() -> Self {
        Self::renewed_by(renew_machine)
    }
}

impl Generation {
    /// Has `renew` renew the machine: for agents that are not PID 1 of one.
    #[must_use]
    pub fn renewed_by(renew: fn(&Hello) -> io::Result<()>) -> Self {
        Self { seen: Mutex::new(None), renew }
    }

    /// Renews clock and random numbers where `hello` is of a generation not seen last.
    ///
    /// # Errors
    /// Where the kernel refuses; then nothing may be answered.
    pub fn renew(&self, hello: &Hello) -> io::Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == Some(hello.generation) {
            return Ok(());
        }
        (self.renew)(hello)?;
        *seen = Some(hello.generation);
        Ok(())
    }
}

fn renew_machine(hello: &Hello) -> io::Result<()> {
    set_clock(hello.realtime_ns)?;
    reseed(&unhex(&hello.entropy)?)
}

fn set_clock(realtime_ns: u64) -> io::Result<()> {
    let time = Timespec {
        tv_sec: i64::try_from(realtime_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (realtime_ns % 1_000_000_000).try_into().unwrap_or(0),
    };
    Ok(clock_settime(ClockId::Realtime, time)?)
}

fn unhex(text: &str) -> io::Result<Vec<u8>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "entropy is not hexadecimal");
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|pair| byte(pair).filter(|_| pair.len() == 2).ok_or_else(bad)).collect()
}

/// `struct rand_pool_info` of linux/random.h with room for a seed.
#[repr(C)]
struct Pool {
    entropy_bits: i32,
    bytes: i32,
    seed: [u8; 64],
}

/// From linux/random.h: `_IOW('R', 0x03, int [2])` and `_IO('R', 0x07)`.
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// Mixes a seed into the kernel's pool and has its generator start anew from there.
fn reseed(seed: &[u8]) -> io::Result<()> {
    let random = OpenOptions::new().write(true).open("/dev/urandom")?;
    let mut pool = Pool { entropy_bits: 0, bytes: 0, seed: [0; 64] };
    let used = seed.len().min(pool.seed.len());
    pool.seed[..used].copy_from_slice(&seed[..used]);
    pool.bytes = used as i32;
    pool.entropy_bits = pool.bytes * 8;
    // SAFETY: `pool` is laid out as the kernel expects and lives through the call, which reads it alone.
    let added = unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const pool) };
    if added != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request takes no argument.
    let reseeded = unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) };
    if reseeded == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_and_anything_else_refused() {
        assert_eq!(unhex("00ff1a").unwrap(), [0, 255, 26]);
        for bad in ["0", "0g", "é0"] {
            assert!(unhex(bad).is_err(), "{bad}");
        }
    }
}
