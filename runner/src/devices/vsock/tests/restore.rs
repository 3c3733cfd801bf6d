//! What streams go through when the driver, or the machine, starts anew.

use super::*;

#[test]
fn a_driver_that_resets_the_device_ends_streams_but_not_those_to_come() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let open = connect(&device, PORT);
    guest.accept();
    let waiting = connect(&device, AGENT_PORT);
    let (request, _) = guest.receive_one();
    guest.send(&request, Op::Reset, 0, &[]);
    let _requested = connect(&device, PORT);
    let mut guest = Guest::start(&mem, &device);
    assert_eq!(read_to_end(open), b"");
    let mut ports: Vec<u32> = guest.receive().iter().map(|(packet, _)| packet.dst_port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [AGENT_PORT, PORT]);
    drop(waiting);
}

#[test]
fn after_a_restore_the_guest_forgets_its_streams_before_it_gets_new_ones() {
    let mem = memory();
    let first = Mmio::new(mem.clone(), Vsock::new(1, false).unwrap()).unwrap();
    let mut guest = Guest::start(&mem, &first);
    for _ in 0..8 {
        guest.driver.add(EVENT, &[In(4)]);
    }
    let old = connect(&first, PORT);
    let old_request = guest.accept();
    let saved = first.save();
    assert_eq!(streams(&first), 1, "the machine that was saved goes on");

    let second = Mmio::restore(mem.clone(), Vsock::new(2, true).unwrap(), &saved).unwrap();
    let mut guest = Guest { device: &second, driver: guest.driver.moved_to(&second) };
    second.resume();
    let _new = connect(&second, PORT);
    (0..3).for_each(|queue| second.process(queue));
    let events = guest.driver.rings[EVENT].take_used(&mem);
    assert_eq!(events.iter().map(|(_, len)| *len).collect::<Vec<_>>(), [4]);
    assert_eq!(guest.driver.rings[EVENT].answer(&mem, events[0].0), TRANSPORT_RESET);
    assert!(guest.receive().is_empty(), "held until the event is handled");

    // A packet of the old machine's stream meets nobody, and is answered later.
    guest.send(&old_request, Op::Data, 0, b"stale");
    assert!(guest.receive().is_empty());

    assert!(guest.driver.rings[EVENT].wants_kick(&mem), "the driver is to tell when it has handled it");
    guest.driver.add(EVENT, &[In(4)]);
    guest.driver.kick(EVENT);
    second.process(EVENT);
    let seen = guest.receive();
    assert_eq!(seen[0].0.op, Some(Op::Reset));
    assert_eq!(seen[1].0.op, Some(Op::Request));
    assert_ne!(seen[1].0.src_port, old_request.src_port);
    drop(old);
}

#[test]
fn a_restored_guest_without_event_buffers_gets_the_event_when_it_has_one() {
    let mem = memory();
    let first = Mmio::new(mem.clone(), Vsock::new(1, false).unwrap()).unwrap();
    let guest = Guest::start(&mem, &first);
    let second = Mmio::restore(mem.clone(), Vsock::new(2, true).unwrap(), &first.save()).unwrap();
    let mut guest = Guest { device: &second, driver: guest.driver.moved_to(&second) };
    let _host = connect(&second, PORT);
    second.resume();
    (0..3).for_each(|queue| second.process(queue));
    assert!(guest.receive().is_empty());
    for expected in [0, 1] {
        assert_eq!(guest.receive().len(), 0);
        assert!(guest.driver.rings[EVENT].wants_kick(&mem), "buffer {expected}");
        guest.driver.add(EVENT, &[In(4)]);
        guest.driver.kick(EVENT);
        second.process(EVENT);
    }
    assert_eq!(guest.receive_one().0.op, Some(Op::Request));
}

#[test]
fn a_restored_guest_whose_driver_was_not_up_needs_no_event() {
    let mem = memory();
    let first = Mmio::new(mem.clone(), Vsock::new(1, false).unwrap()).unwrap();
    let second = Mmio::restore(mem.clone(), Vsock::new(2, true).unwrap(), &first.save()).unwrap();
    let _host = connect(&second, PORT);
    second.resume();
    let mut guest = Guest::start(&mem, &second);
    assert_eq!(guest.receive_one().0.op, Some(Op::Request));
}
