//! The forms each value may have.

use super::*;

fn ports(text: &str) -> Vec<(Option<String>, u16, u16, bool)> {
    let file = parse(&format!("ports = [{text}]")).unwrap();
    file.ports.iter().map(|p| (p.ip.map(|ip| ip.to_string()), p.host, p.guest, p.udp)).collect()
}

#[test]
fn ports_have_four_forms() {
    assert_eq!(ports("\"8080:80\""), [(None, 8080, 80, false)]);
    assert_eq!(ports("\"53/udp\", 53"), [(None, 53, 53, true), (None, 53, 53, false)]);
    assert_eq!(ports("\"127.0.0.1:1:2/tcp\""), [(Some("127.0.0.1".into()), 1, 2, false)]);
    assert_eq!(ports("\"[::1]:1:2\""), [(Some("::1".into()), 1, 2, false)]);
}

#[test]
fn ports_of_different_addresses_and_protocols_do_not_collide() {
    assert_eq!(ports("\"127.0.0.1:1:2\", \"127.0.0.2:1:2\", \"1:2/udp\"").len(), 3);
}

#[test]
fn volumes_split_at_the_guest_path() {
    for (text, host, guest, read_only) in [
        ("./a:/b", "./a", "/b", false),
        ("./a:/b:ro", "./a", "/b", true),
        ("/a:/b:rw", "/a", "/b", false),
        ("a:b:/c", "a:b", "/c", false),
        ("~:/home/x/./y/", "~", "/home/x/y", false),
        (".:/usr/local/app", ".", "/usr/local/app", false),
        ("file.txt:/etc/app/file.txt:ro", "file.txt", "/etc/app/file.txt", true),
    ] {
        let file = parse(&format!("volumes = [{text:?}]")).unwrap();
        let expected = Volume { host: host.into(), guest: guest.into(), read_only };
        assert_eq!(file.volumes, [expected], "{text}");
    }
}

#[test]
fn environment_entries_split_at_the_first_equals_sign() {
    for (text, expected) in [
        ("A=b=c", EnvEntry::Set("A".into(), "b=c".into())),
        ("A=", EnvEntry::Set("A".into(), String::new())),
        ("a.b-c= x ", EnvEntry::Set("a.b-c".into(), " x ".into())),
        ("A=é\n", EnvEntry::Set("A".into(), "é\n".into())),
        ("TOKEN", EnvEntry::FromHost("TOKEN".into())),
    ] {
        assert_eq!(EnvEntry::parse(text), Ok(expected));
    }
}

#[test]
fn sizes_have_numbers_and_units() {
    for (text, mib) in
        [("512", 512), ("512MiB", 512), ("2GiB", 2048), ("2g", 2048), ("65536 KiB", 64), ("1T", 1 << 20)]
    {
        assert_eq!(Memory::parse(text), Ok(Memory(mib)), "{text}");
    }
    for (text, bytes) in
        [("4", 4 << 30), ("500MiB", 500 << 20), ("16777217b", 17 << 20), ("10GB", 9537 << 20)]
    {
        assert_eq!(DiskSize::parse(text), Ok(DiskSize(bytes)), "{text}");
    }
    assert_eq!(parse("cpus = 0x10\nmemory = 1_024").unwrap().memory, Some(Memory(1024)));
}

#[test]
fn times_have_numbers_and_units() {
    for (text, millis) in [
        ("\"10s\"", 10_000),
        ("\"5m\"", 300_000),
        ("\"2h\"", 7_200_000),
        ("\"500ms\"", 500),
        ("\"1m 30s\"", 90_000),
        ("\"42\"", 42_000),
        ("42", 42_000),
    ] {
        let file = parse(&format!("[health]\nexec = [\"x\"]\ninterval = {text}")).unwrap();
        assert_eq!(file.health.unwrap().interval.unwrap().millis(), millis, "{text}");
    }
}

#[test]
fn address_ranges_have_one_spelling() {
    for (text, expected) in [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("1.1.1.1", "1.1.1.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("FD00::1/8", "fd00::/8"),
        ("::1", "::1/128"),
        ("::/0", "::/0"),
    ] {
        let file = parse(&format!("[network]\nallow_cidrs = [{text:?}]")).unwrap();
        assert_eq!(file.network.allow_cidrs, [Cidr(expected.into())], "{text}");
    }
}

#[test]
fn host_names_have_one_spelling() {
    let file = parse("[network]\nallow_hosts = [\"PyPI.org.\", \"*.Example.com\", \"localhost\", \"a_b.c\"]")
        .unwrap();
    let names: Vec<_> = file.network.allow_hosts.iter().map(|host| host.0.as_str()).collect();
    assert_eq!(names, ["pypi.org", "*.example.com", "localhost", "a_b.c"]);
}

#[test]
fn users_are_names_or_numbers() {
    for user in ["root", "1000", "1000:1000", "www-data:adm", "app:0", "_apt", "4294967294"] {
        assert_eq!(parse(&format!("user = {user:?}")).unwrap().user.as_deref(), Some(user));
    }
}

#[test]
fn modes_are_octal_however_written() {
    for mode in ["\"755\"", "\"0755\"", "0o755"] {
        let file = parse(&format!("[[copy]]\nfrom = \".\"\nto = \"/a\"\nmode = {mode}")).unwrap();
        assert_eq!((file.copy[0].mode.as_deref(), file.copy[0].from.as_str()), (Some("0755"), "."));
    }
}

#[test]
fn a_health_check_is_words_or_a_line_for_the_shell() {
    let exec = |text: &str| parse(&format!("[health]\nexec = {text}")).unwrap().health.unwrap().exec.0;
    assert_eq!(exec("[\"curl\", \"\"]"), ["curl", ""]);
    assert_eq!(exec("\"curl -f x\""), ["/bin/sh", "-c", "curl -f x"]);
}

#[test]
fn snapshots_are_wanted_refused_or_taken_where_possible() {
    for (text, expected) in [
        ("true", SnapshotEnabled::Required),
        ("false", SnapshotEnabled::Off),
        ("\"auto\"", SnapshotEnabled::Auto),
    ] {
        assert_eq!(parse(&format!("[snapshot]\nenabled = {text}")).unwrap().snapshot.enabled, expected);
    }
}
