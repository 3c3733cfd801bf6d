//! virtio-rng (virtio 1.2, section 5.4): the host's random numbers for the guest.

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::mmio::{Io, TransportStateV1, VirtioDevice};
use super::queue::Broken;
use super::random;

/// Most bytes given for one request, however much room it has: drivers ask again.
const MAX_BYTES: usize = 4096;

/// What a snapshot keeps of the random number device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngStateV1 {
    /// Registers and queues.
    pub transport: TransportStateV1,
}

/// The random number device.
#[derive(Default)]
pub(crate) struct Rng {
    chain: Chain,
}

impl VirtioDevice for Rng {
    const NAME: &'static str = "rng";
    const ID: u32 = 4;
    const QUEUES: &'static [u16] = &[64];

    fn features(&self) -> u64 {
        0
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    /// Answers what is in the queue, at most as many requests as it holds.
    fn process(&mut self, _queue: usize, io: &mut Io<'_>) -> Result<(), Broken> {
        let queue = &mut io.queues[0];
        for _ in 0..queue.size() {
            if !queue.pop(io.mem, &mut self.chain)? {
                if queue.ask_for_kick(io.mem)? {
                    continue;
                }
                return Ok(());
            }
            let mut buf = [0; MAX_BYTES];
            let want = self.chain.writable().len().min(MAX_BYTES);
            // Without any to be had the driver gets none, and asks again.
            let got = random(&mut buf[..want]).map_or(0, |()| want);
            self.chain.writable().write(io.mem, 0, &buf[..got])?;
            queue.complete(io.mem, self.chain.head(), got as u32)?;
        }
        io.again(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::mmio::Mmio;
    use super::super::testing::{Driver, In, Out, memory};
    use super::*;

    #[test]
    fn requests_are_filled_with_different_numbers_up_to_a_bound() {
        let mem = memory();
        let device = Mmio::new(mem.clone(), Rng::default()).unwrap();
        let mut driver = Driver::start(&mem, &device);
        let first = driver.ask(&device, 0, &[In(64)]).unwrap();
        let second = driver.ask(&device, 0, &[In(40), In(24)]).unwrap();
        assert_eq!((first.written, second.written), (64, 64));
        assert_ne!(first.bytes, second.bytes);
        let much = driver.ask(&device, 0, &[In(3000), In(3000)]).unwrap();
        assert_eq!(much.written, MAX_BYTES);
        assert_eq!(much.bytes[MAX_BYTES..], [0; 6000 - MAX_BYTES]);
        assert_eq!(driver.ask(&device, 0, &[Out(b"no room")]).unwrap().written, 0);
    }
}
