//! The registers, with the random number device behind them.

use super::*;
use crate::devices::rng::Rng;
use crate::devices::testing::{Driver, In, Random, memory, read32, torment, write32};
use crate::devices::vsock::Vsock;

/// Makes a saved state a bad one.
type Harm = fn(&mut TransportStateV1);

fn device() -> (GuestMemory, Mmio<Rng>) {
    let mem = memory();
    (mem.clone(), Mmio::new(mem, Rng::default()).unwrap())
}

#[test]
fn a_device_says_who_it_is() {
    let (_, device) = device();
    assert_eq!(read32(&device, 0x0).to_le_bytes(), *b"virt");
    assert_eq!(read32(&device, 0x4), 2);
    assert_eq!(read32(&device, 0x8), 4);
    assert_eq!(read32(&device, 0x34), 64);
    write32(&device, 0x30, 1);
    assert_eq!(read32(&device, 0x34), 0, "there is no second queue");
}

#[test]
fn features_are_refused_where_they_are_not_offered_or_version_1_is_missing() {
    for (name, low, high, taken) in [
        ("version 1", 0, 1, true),
        ("all that is offered", 1 << 28 | 1 << 29, 1, true),
        ("legacy", 1 << 29, 0, false),
        ("one too many", 1, 1, false),
        ("one too many above", 0, 3, false),
    ] {
        let (_, device) = device();
        write32(&device, 0x70, 3);
        for (half, value) in [(0, low), (1, high), (2, u32::MAX)] {
            write32(&device, 0x24, half);
            write32(&device, 0x20, value);
        }
        write32(&device, 0x70, 11);
        assert_eq!(read32(&device, 0x70) & 8 != 0, taken, "{name}");
        write32(&device, 0x70, 15);
        assert_eq!(read32(&device, 0x70) & 4 != 0, taken, "{name}");
    }
}

#[test]
fn a_ring_outside_memory_stops_the_device_when_it_is_to_start() {
    let (_, device) = device();
    write32(&device, 0x70, 3);
    write32(&device, 0x24, 1);
    write32(&device, 0x20, 1);
    write32(&device, 0x70, 11);
    for register in [0x80, 0x90, 0xa0] {
        write32(&device, register, 0x4000_0000);
    }
    write32(&device, 0x44, 1);
    write32(&device, 0x70, 15);
    assert_eq!(read32(&device, 0x70), 15 | 0x40);
    assert_eq!(read32(&device, 0x60), 2, "the driver is told");
    write32(&device, 0x70, 0);
    assert_eq!(read32(&device, 0x70), 0);
    assert_eq!(read32(&device, 0x60), 0);
}

#[test]
fn a_running_queue_cannot_be_moved_and_a_reset_forgets_it() {
    let (mem, device) = device();
    let driver = Driver::start(&mem, &device);
    let before = device.save().queues;
    for register in [0x38, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4] {
        write32(&device, register, 0x10);
    }
    assert_eq!(device.save().queues, before);
    assert_eq!(read32(driver.device, 0x44), 1);
    write32(driver.device, 0x70, 0);
    assert_eq!(read32(driver.device, 0x44), 0);
}

#[test]
fn a_driver_is_interrupted_when_it_wants_to_be() {
    for (name, features, flag) in
        [("event index", u64::MAX, 0_u16), ("flags", !(1 << 29), 0), ("flags off", !(1 << 29), 1)]
    {
        let (mem, device) = device();
        let mut driver = Driver::start_with(&mem, &device, features);
        vm_memory::Bytes::write_obj(&mem, flag, vm_memory::GuestAddress(0x1_2000)).unwrap();
        driver.ask(&device, 0, &[In(8)]).unwrap();
        let raised = device.interrupt().line().read().is_ok();
        assert_eq!(raised, flag == 0, "{name}");
        assert_eq!(read32(&device, 0x60), u32::from(raised), "{name}");
        write32(&device, 0x64, 1);
        assert_eq!(read32(&device, 0x60), 0, "{name}");
    }
}

#[test]
fn the_configuration_reads_at_any_width_and_as_zeros_beyond_its_end() {
    let device = Mmio::new(memory(), Vsock::new(0, false).unwrap()).unwrap();
    let read = |offset, len: usize| {
        let mut data = vec![0xee; len];
        device.read(offset, &mut data);
        data
    };
    assert_eq!(read(0x100, 8), [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(read(0x100, 1), [3]);
    assert_eq!(read(0x106, 4), [0; 4]);
    assert_eq!(read(0xffc, 8), [0; 8]);
    device.write(0x100, &[9]);
    assert_eq!(read(0x100, 1), [3]);
    assert_eq!(read(0x0, 2), [0; 2], "registers have four bytes");
}

#[test]
fn a_saved_transport_comes_back_the_same_and_goes_on() {
    let (mem, first) = device();
    let mut driver = Driver::start(&mem, &first);
    driver.ask(&first, 0, &[In(8)]).unwrap();
    let saved = first.save();
    let second = Mmio::restore(mem.clone(), Rng::default(), &saved).unwrap();
    assert_eq!(second.save(), saved);
    let mut driver = driver.moved_to(&second);
    assert_eq!(driver.ask(&second, 0, &[In(32)]).unwrap().written, 32);
}

#[test]
fn a_kick_that_was_lost_with_the_saved_machine_is_made_up_for() {
    let (mem, first) = device();
    let mut driver = Driver::start(&mem, &first);
    driver.add(0, &[In(8)]);
    let second = Mmio::restore(mem.clone(), Rng::default(), &first.save()).unwrap();
    second.resume();
    assert!(second.interrupt().line().read().is_ok());
    second.process(0);
    assert_eq!(driver.rings[0].take_used(&mem), [(0, 8)]);
}

#[test]
fn hostile_states_are_refused() {
    let (mem, device) = device();
    Driver::start(&mem, &device);
    let good = device.save();
    let harms: [(&str, Harm); 12] = [
        ("an unknown status", |s| s.status |= 0x20),
        ("features never offered", |s| s.driver_features |= 1 << 40),
        ("no version 1", |s| s.driver_features = 0),
        ("ready without features", |s| s.status &= !8),
        ("a queue too few", |s| s.queues.clear()),
        ("a queue too many", |s| s.queues.push(s.queues[0].clone())),
        ("a size of zero", |s| s.queues[0].size = 0),
        ("a size beyond the maximum", |s| s.queues[0].size = 128),
        ("a size that is no power of two", |s| s.queues[0].size = 3),
        ("an unaligned ring", |s| s.queues[0].used_ring += 1),
        ("a ring outside memory", |s| s.queues[0].desc_table = !0xf),
        ("more in flight than fits", |s| s.queues[0].next_used = s.queues[0].next_avail.wrapping_sub(65)),
    ];
    assert!(Mmio::restore(mem.clone(), Rng::default(), &good).is_ok());
    for (name, harm) in harms {
        let mut state = good.clone();
        harm(&mut state);
        assert!(Mmio::restore(mem.clone(), Rng::default(), &state).is_err(), "{name}");
    }
}

#[test]
fn random_registers_neither_panic_nor_start_a_device_wrongly() {
    let mut random = Random::new("registers");
    for _ in 0..200 {
        let (_, device) = device();
        for _ in 0..200 {
            let offset = random.below(0x140) as u32;
            if random.below(4) == 0 {
                device.read(offset, &mut vec![0; random.below(9) as usize]);
            } else {
                let value = random.pick(&[0, 1, 3, 7, 11, 15, 64, 0x1000, u32::MAX]);
                write32(&device, offset & !3, value);
            }
            device.process(random.below(3) as usize);
        }
    }
}

#[test]
fn a_hostile_driver_of_random_numbers_does_no_harm() {
    torment("rng", 300, |mem| Mmio::new(mem.clone(), Rng::default()).unwrap(), |_, _| {});
}
