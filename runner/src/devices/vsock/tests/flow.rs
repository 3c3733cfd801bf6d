//! Data and credit.

use super::*;

#[test]
fn what_a_guest_sent_before_it_reset_the_stream_still_arrives() {
    with_stream(|device, guest, host, request| {
        let sent = flood(guest, &request);
        guest.send(&request, Op::Reset, 0, &[]);
        assert_eq!(streams(device), 1, "the socket could not take it all");
        let reader = std::thread::spawn(move || read_to_end(host));
        let start = Instant::now();
        while streams(device) > 0 {
            assert!(start.elapsed() < Duration::from_secs(5));
            serve(device);
        }
        assert!(reader.join().unwrap() == sent);
    });
}

fn flood(guest: &mut Guest<'_>, request: &Packet) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut taken = 0;
    while sent.len() - taken + 4096 <= BUF_ALLOC as usize {
        let piece: Vec<u8> = (0..4096).map(|i| (i + sent.len() / 4096) as u8).collect();
        guest.send(request, Op::Data, 0, &piece);
        sent.extend(piece);
        for (packet, _) in guest.receive() {
            taken = packet.fwd_cnt as usize;
        }
    }
    sent
}

#[test]
fn a_guest_without_credit_loses_its_stream() {
    with_stream(|device, guest, host, request| {
        flood(guest, &request);
        for _ in 0..BUF_ALLOC / 4096 {
            guest.send(&request, Op::Data, 0, &[0; 4096]);
        }
        assert!(guest.receive().iter().any(|(packet, _)| packet.op == Some(Op::Reset)));
        assert_eq!(streams(device), 0);
        drop(host);
    });
}

#[test]
fn the_host_is_not_read_beyond_the_guests_credit() {
    with_stream(|device, guest, host, request| {
        host.set_nonblocking(true).unwrap();
        let mut written = 0;
        loop {
            match (&host).write(&[3; 10_000]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        serve(device);
        let (mut got, mut asked) = (0, 0);
        loop {
            let seen = guest.receive();
            if seen.is_empty() {
                break;
            }
            asked += seen.iter().filter(|(packet, _)| packet.op == Some(Op::CreditRequest)).count();
            got += seen.iter().map(|(_, data)| data.len()).sum::<usize>();
        }
        assert_eq!((got, asked), (ROOM as usize, 1));
        // With more room the rest follows.
        while got < written {
            let mut update = answer(&request, Op::CreditUpdate, 0, 0);
            update.fwd_cnt = got as u32;
            guest.send_raw(&update, &[]);
            serve(device);
            let before = got;
            got += guest.receive().iter().map(|(_, data)| data.len()).sum::<usize>();
            assert!(got > before);
        }
    });
}

#[test]
fn without_buffers_nothing_is_lost_and_nothing_grows() {
    with_stream(|device, guest, mut host, request| {
        // Take all buffers away: what arrives is not given back.
        for _ in 0..40 {
            host.write_all(b"ping").unwrap();
            serve(device);
            let mut stray = answer(&request, Op::Data, 0, 0);
            stray.dst_port = 1;
            guest.send_raw(&stray, &[]);
        }
        assert!(device.device().refusals.len() <= MAX_REFUSALS);
        assert!(device.device().ready.len() <= 1);
        let mut got = Vec::new();
        loop {
            let seen = guest.receive();
            if seen.is_empty() {
                break;
            }
            got.extend(seen.into_iter().flat_map(|(_, data)| data));
        }
        assert_eq!(got, b"ping".repeat(40));
    });
}

#[test]
fn streams_take_turns() {
    let (mem, device) = device(false);
    let mut guest = Guest::start(&mem, &device);
    let mut hosts: Vec<UnixStream> = (0..3).map(|_| connect(&device, PORT)).collect();
    for (request, _) in guest.receive() {
        guest.send(&request, Op::Response, 0, &[]);
    }
    for host in &mut hosts {
        host.write_all(&vec![0; 30_000]).unwrap();
    }
    serve(&device);
    let first: Vec<u32> = guest.receive().iter().take(6).map(|(packet, _)| packet.src_port).collect();
    assert_eq!(first[..3], first[3..]);
    assert_eq!(first.iter().collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn random_data_in_random_pieces_arrives_whole() {
    let mut random = Random::new("vsock data");
    with_stream(|device, guest, host, request| {
        host.set_nonblocking(true).unwrap();
        let (mut to_guest, mut to_host) = (Vec::<u8>::new(), Vec::<u8>::new());
        let (mut at_guest, mut at_host) = (Vec::<u8>::new(), Vec::<u8>::new());
        let mut credit = BUF_ALLOC as usize;
        for _ in 0..3000 {
            let piece: Vec<u8> = (0..random.below(4000)).map(|_| random.next() as u8).collect();
            match random.below(4) {
                0 => {
                    if let Ok(n) = (&host).write(&piece) {
                        to_guest.extend(&piece[..n]);
                    }
                }
                1 if piece.len() <= credit - (to_host.len() - at_host.len()).min(credit) => {
                    let mut packet = answer(&request, Op::Data, 0, piece.len());
                    packet.fwd_cnt = at_guest.len() as u32;
                    guest.send_raw(&packet, &piece);
                    to_host.extend(&piece);
                }
                2 => {
                    let mut buf = vec![0; 3000];
                    if let Ok(n) = (&host).read(&mut buf) {
                        at_host.extend(&buf[..n]);
                    }
                }
                _ => {
                    serve(device);
                    for (packet, data) in guest.receive() {
                        at_guest.extend(data);
                        credit = (BUF_ALLOC as usize).min(packet.buf_alloc as usize);
                    }
                    let mut update = answer(&request, Op::CreditUpdate, 0, 0);
                    update.fwd_cnt = at_guest.len() as u32;
                    guest.send_raw(&update, &[]);
                }
            }
        }
        let start = Instant::now();
        while at_guest.len() < to_guest.len() || at_host.len() < to_host.len() {
            assert!(start.elapsed() < Duration::from_secs(5), "{} {}", at_guest.len(), at_host.len());
            let mut buf = vec![0; 65536];
            if let Ok(n) = (&host).read(&mut buf) {
                at_host.extend(&buf[..n]);
            }
            serve(device);
            at_guest.extend(guest.receive().into_iter().flat_map(|(_, data)| data));
            let mut update = answer(&request, Op::CreditUpdate, 0, 0);
            update.fwd_cnt = at_guest.len() as u32;
            guest.send_raw(&update, &[]);
        }
        assert!(at_guest == to_guest && at_host == to_host);
    });
}

#[test]
fn a_hostile_driver_of_streams_does_no_harm() {
    let make = |mem: &GuestMemory| Mmio::new(mem.clone(), Vsock::new(7, true).unwrap()).unwrap();
    let mut hosts = Vec::new();
    torment("vsock", 300, make, |device, random| {
        if random.below(2) == 0 {
            hosts.push(connect(device, random.pick(&[AGENT_PORT, PORT])));
            hosts.truncate(50);
        }
        if let Some(host) = hosts.last_mut() {
            host.set_nonblocking(true).unwrap();
            let _ = host.write(&[1; 5000]);
        }
        serve(device);
    });
}
