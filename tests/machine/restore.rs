//! What holds after a restore.

use crate::support::{boot, debian, hello, now, scratch, stdout, text};
use smolpack_format::{Artifact, SectionKind, SectionOptions, Writer};
use smolpack_runner::vmstate::MachineState;
use std::collections::BTreeSet;

#[test]
fn debian_restores_twenty_times_with_time_going_on_and_fresh_random_numbers() {
    let mut seen = BTreeSet::new();
    let mut shortest_uptime = f64::MAX;
    let script = "dpkg --version | head -1; date +%s.%N; cut -d' ' -f1 /proc/uptime; \
                  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo; cat /proc/sys/kernel/random/uuid";
    for round in 0..20 {
        let before = now();
        let out = boot(&[debian(), "--", "sh", "-c", script]);
        let after = now();
        let said = stdout(&out);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 5, "round {round}: {said}");
        assert!(lines[0].contains("dpkg"), "round {round}: {said}");
        let wall: f64 = lines[1].parse().unwrap();
        assert!(wall > before - 1.0 && wall < after + 1.0, "round {round}: {before} {wall} {after}");
        let uptime: f64 = lines[2].parse().unwrap();
        shortest_uptime = shortest_uptime.min(uptime);
        // It goes on from the snapshot: neither from 0, nor ahead by the time since.
        assert!(uptime > 0.5 && uptime < shortest_uptime + (after - before) + 1.0, "round {round}: {uptime}");
        assert!(seen.insert(lines[3].to_owned()), "round {round}: /dev/urandom repeated {}", lines[3]);
        assert!(seen.insert(lines[4].to_owned()), "round {round}: a random UUID came again");
        assert!(text(&out.stderr).contains("restored"), "round {round}: {}", text(&out.stderr));
    }
}

#[test]
fn a_cold_boot_answers_the_same_and_says_that_it_is_cold() {
    let out = boot(&["--cold", debian(), "--", "dpkg", "--version"]);
    assert!(stdout(&out).contains("Debian"));
    assert!(text(&out.stderr).contains("cold"), "{}", text(&out.stderr));
}

#[test]
fn clocks_agree_across_cpus_and_sleeps_end_after_a_restore() {
    let script = "for i in 1 2 3; do a=$(date +%s%N); sleep 0.2; b=$(date +%s%N); \
                  [ $((b - a)) -ge 200000000 ] && [ $((b - a)) -lt 5000000000 ] || exit 9; done; \
                  for c in 0 1; do taskset -c $c cut -d' ' -f1 /proc/uptime; done";
    let said = stdout(&boot(&[debian(), "--", "sh", "-c", script]));
    let uptimes: Vec<f64> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(uptimes.len(), 2, "{said}");
    assert!(uptimes[0] <= uptimes[1] && uptimes[1] - uptimes[0] < 2.0, "{said}");
}

#[test]
fn the_disk_takes_writes_and_the_next_boot_starts_afresh() {
    let script = "test ! -e /left && echo data > /left && sync && cat /left && \
                  dd if=/dev/urandom of=/big bs=64k count=256 status=none && sync && \
                  sha256sum /big > /sum && echo 3 > /proc/sys/vm/drop_caches && sha256sum -c --quiet /sum";
    for _ in 0..2 {
        assert_eq!(stdout(&boot(&[debian(), "--", "sh", "-c", script])), "data\n");
    }
}

#[test]
fn two_restores_at_once_do_not_disturb_each_other() {
    let both = std::thread::scope(|scope| {
        let threads = [0, 1]
            .map(|_| scope.spawn(|| stdout(&boot(&[hello(), "--", "cat", "/proc/sys/kernel/random/uuid"]))));
        threads.map(|thread| thread.join().unwrap())
    });
    assert_ne!(both[0], both[1]);
}

type Doctor = fn(&mut MachineState);

/// The machine with a snapshot that was changed, its digests right.
fn doctored(name: &str, doctor: Doctor) -> String {
    let machine = Artifact::open(hello().as_ref()).unwrap();
    let section = machine.section(SectionKind::VmState).unwrap().unwrap();
    let mut bytes = vec![0; section.len() as usize];
    section.read_at(&mut bytes, 0).unwrap();
    let mut state = MachineState::decode(&bytes).unwrap();
    doctor(&mut state);
    let path = scratch().join(name);
    let mut writer = Writer::create(&path).unwrap();
    for section in machine.sections() {
        if section.kind != SectionKind::VmState {
            writer.copy_section(&machine, section.kind).unwrap();
        }
    }
    let mut vmstate = writer.section(SectionKind::VmState, SectionOptions::blob()).unwrap();
    vmstate.data(&state.encode()).unwrap();
    vmstate.finish().unwrap();
    writer.finish(machine.manifest().clone()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_restored_machine_that_does_not_come_up_is_booted_cold() {
    let cases: [(&str, Doctor, &str); 3] = [
        ("refused", |state| state.vcpus[0].xcrs.xcrs[0].value = 0, "KVM refused KVM_SET_XCRS"),
        (
            "wild",
            |state| {
                // A fault without a handler, three times over.
                state.vcpus[0].sregs.idt.limit = 0;
                state.vcpus[0].regs.rip = 0x1000;
            },
            "did not come up: the machine reset",
        ),
        (
            "asleep",
            |state| {
                // Halted, interrupts off: nothing wakes it.
                state.vcpus[0].regs.rflags &= !0x200;
                state.vcpus[0].mp_state.mp_state = 3;
            },
            "it did not answer within 2s",
        ),
    ];
    for (name, doctor, says) in cases {
        let file = doctored(name, doctor);
        let out = boot(&["--restore-timeout", "2s", &file, "--", "echo", "up"]);
        assert_eq!(stdout(&out), "up\n", "{name}");
        let said = text(&out.stderr);
        assert!(said.contains("booting cold: ") && said.contains(says), "{name}: {said}");
        assert_eq!(said.lines().count(), 1, "{name}: {said}");

        let out = boot(&["--restore-timeout", "2s", "--require-snapshot", &file, "--", "echo", "up"]);
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(125), String::new()), "{name}");
        let said = text(&out.stderr);
        assert!(said.contains(says) && said.contains("try: "), "{name}: {said}");
    }
}
