//! The devices together, as a machine's vCPUs and its event loop see them.

use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, Manifest, SectionKind, SectionOptions, Writer};
use std::io::{Read, Seek};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::devices::testing::{Driver, In, Out, memory};
use crate::devices::{Backing, Disk};

const DISK_BYTES: u64 = 16 << 12;

fn disk(bytes: u64) -> DiskConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.smolmachine");
    let mut writer = Writer::create(&path).unwrap();
    let mut section = writer.section(SectionKind::Disk, SectionOptions::disk()).unwrap();
    section.data(&vec![5; DISK_BYTES as usize]).unwrap();
    section.finish().unwrap();
    writer.finish(Manifest::new(Kind::Machine, 1, 64, DISK_BYTES)).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let section = artifact.section(SectionKind::Disk).unwrap().unwrap();
    DiskConfig {
        base: Backing::new(Arc::clone(artifact.file()), section),
        overlay: None,
        scratch: tempfile::tempfile().unwrap(),
        scratch_folder: std::env::temp_dir(),
        wait_for_room: false,
        bytes,
        durable: false,
    }
}

/// A configuration, and its console's log.
fn config(generation: u8) -> (DeviceConfig, File) {
    let console = tempfile::tempfile().unwrap();
    let log = console.try_clone().unwrap();
    (DeviceConfig { disk: disk(DISK_BYTES), console, generation: [generation; 16] }, log)
}

fn text(mut log: File) -> String {
    let mut text = String::new();
    log.rewind().unwrap();
    log.read_to_string(&mut text).unwrap();
    text
}

/// Has the event loop do all there is to do.
fn settle(devices: &DeviceSet) {
    let mut poll =
        [rustix::event::PollFd::from_borrowed_fd(devices.epoll_fd(), rustix::event::PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while rustix::event::poll(&mut poll, Some(&now)).unwrap() > 0 {
        devices.handle_events().unwrap();
    }
}

/// A machine whose VMGENID page lies where the layout has it.
fn machine_memory() -> GuestMemory {
    let mem = memory();
    assert!(mem.read_obj::<u64>(GuestAddress(VMGENID)).is_ok());
    mem
}

#[test]
fn each_window_is_another_device_and_what_is_none_reads_as_all_ones() {
    let devices = DeviceSet::new(&machine_memory(), config(1).0).unwrap();
    let id = |address| {
        let mut data = [0; 4];
        devices.mmio_read(address, &mut data);
        u32::from_le_bytes(data)
    };
    let ids: Vec<u32> = (0..WINDOWS as u64).map(|i| id(VIRTIO_MMIO + i * VIRTIO_MMIO_STRIDE + 8)).collect();
    assert_eq!(ids, [2, 19, 4]);
    assert_eq!(id(VIRTIO_MMIO + WINDOWS as u64 * VIRTIO_MMIO_STRIDE), u32::MAX);
    assert_eq!(id(0), u32::MAX);
    devices.mmio_write(0, &[0; 4]);
    let mut data = [0; 2];
    devices.pio_read(0x1234, &mut data);
    assert_eq!(data, [0xff; 2]);
}

#[test]
fn the_wiring_names_every_line_and_register_once() {
    let devices = DeviceSet::new(&machine_memory(), config(1).0).unwrap();
    let wiring: Vec<(u32, u64, usize)> =
        devices.wiring().map(|wiring| (wiring.gsi, wiring.notify, wiring.kicks.len())).collect();
    let notify = |i| VIRTIO_MMIO + i * VIRTIO_MMIO_STRIDE + 0x50;
    assert_eq!(
        wiring,
        [(5, notify(0), 1), (6, notify(1), 3), (7, notify(2), 1), (SERIAL_GSI, 0, 0), (VMGENID_GSI, 0, 0)]
    );
}

#[test]
fn the_console_is_written_by_the_event_loop() {
    let (config, log) = config(1);
    let devices = DeviceSet::new(&machine_memory(), config).unwrap();
    for byte in b"boot\n" {
        assert_eq!(devices.pio_write(SERIAL_PORT, &[*byte]), None);
    }
    settle(&devices);
    assert_eq!(text(log), "boot\n");
}

#[test]
fn the_machine_ends_where_the_guest_says_so() {
    let devices = DeviceSet::new(&machine_memory(), config(1).0).unwrap();
    let mut status = [0xff];
    devices.pio_read(0x64, &mut status);
    assert_eq!(status[0] & 2, 0, "a reboot does not wait");
    for (name, port, value, end) in [
        ("reset", 0x64, 0xfe, Some(Ended::Reset)),
        ("another command", 0x64, 0xaa, None),
        ("data", 0x60, 0xfe, None),
        ("off", SLEEP_CONTROL, SLEEP_TYPE_OFF << 2 | 1 << 5, Some(Ended::PowerOff)),
        ("off, but not now", SLEEP_CONTROL, SLEEP_TYPE_OFF << 2, None),
        ("another sleep", SLEEP_CONTROL, 1 << 2 | 1 << 5, None),
    ] {
        assert_eq!(devices.pio_write(port, &[value]), end, "{name}");
    }
    assert_eq!(devices.pio_write(0x64, &[]), None);
}

#[test]
fn a_kick_by_plain_register_write_reaches_the_event_loop() {
    let mem = machine_memory();
    let devices = DeviceSet::new(&mem, config(1).0).unwrap();
    let mut driver = Driver::start(&mem, &devices.rng);
    driver.add(0, &[In(16)]);
    driver.kick(0);
    settle(&devices);
    assert_eq!(driver.rings[0].take_used(&mem), [(0, 16)]);
}

#[test]
fn saved_devices_come_back_the_same_with_a_new_generation() {
    let mem = machine_memory();
    let devices = DeviceSet::new(&mem, config(1).0).unwrap();
    let mut driver = Driver::start(&mem, &devices.block);
    Driver::start(&mem, &devices.rng);
    // A write that no event loop has seen yet is part of what is saved.
    let mut write = [0; 16];
    write[0] = 1;
    driver.add(0, &[Out(&write), Out(&[9; 4096]), In(1)]);
    let saved = devices.save();
    assert!(devices.disk().changed().eq(std::iter::once(0..4096)));
    let bytes = postcard::to_allocvec(&saved).unwrap();

    let saved: DeviceSetStateV1 = postcard::from_bytes(&bytes).unwrap();
    let restored = DeviceSet::restore(&mem, config(2).0, &saved).unwrap();
    assert_eq!(mem.read_obj::<[u8; 16]>(GuestAddress(VMGENID)).unwrap(), [2; 16]);
    assert!(restored.wiring().all(|wiring| wiring.interrupt.read().is_err()), "not before resume");
    assert_eq!(restored.save(), saved);
    restored.resume();
    let raised: Vec<u32> =
        restored.wiring().filter(|w| w.interrupt.read().is_ok()).map(|wiring| wiring.gsi).collect();
    assert_eq!(raised, [5, 7, SERIAL_GSI, VMGENID_GSI], "the vsock driver was not there");
}

#[test]
fn a_disk_may_grow_but_not_shrink_across_a_restore() {
    let mem = machine_memory();
    let devices = DeviceSet::new(&mem, config(1).0).unwrap();
    Driver::start(&mem, &devices.block);
    let saved = devices.save();
    let restore = |bytes, state: &DeviceSetStateV1| {
        DeviceSet::restore(&mem, DeviceConfig { disk: disk(bytes), ..config(2).0 }, state)
    };
    let grown = restore(2 * DISK_BYTES, &saved).unwrap();
    grown.resume();
    let mut status = [0; 4];
    grown.mmio_read(VIRTIO_MMIO + 0x60, &mut status);
    assert_eq!(status[0], 3, "queue and configuration");
    let mut larger = saved.clone();
    larger.block.bytes *= 2;
    assert!(restore(DISK_BYTES, &larger).is_err());
}

#[test]
fn streams_are_served_through_the_one_event_loop() {
    let mem = machine_memory();
    let devices = DeviceSet::new(&mem, config(1).0).unwrap();
    let (host, runner) = UnixStream::pair().unwrap();
    devices.connect(5000, runner);
    let mut driver = Driver::start(&mem, &devices.vsock);
    driver.add(0, &[In(4096)]);
    driver.kick(0);
    settle(&devices);
    assert_eq!(driver.rings[0].take_used(&mem), [(0, 44)], "a request");
    drop(host);
    settle(&devices);
}

#[test]
fn a_read_of_the_disk_sees_the_artifact() {
    let disk = Disk::new(disk(DISK_BYTES)).unwrap();
    let mut bytes = [0; 100];
    disk.read_at(&mut bytes, 4000).unwrap();
    assert_eq!(bytes, [5; 100]);
    assert!(disk.read_at(&mut bytes, DISK_BYTES - 99).is_err());
}
