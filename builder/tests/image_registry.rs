//! A real registry with TLS and passwords, and one of our own that misbehaves. Needs docker-registry,
//! htpasswd, openssl and skopeo.
#![allow(clippy::unwrap_used)]

mod image_support;
mod registry_support;

use std::fs;
use std::time::Duration;

use image_support::*;
use registry_support::{Fault, Mock, Server};
use smolpack_builder::image::{
    Credentials, ErrorKind, Image, ImageError, Limits, Login, RegistryAccess, Retry, detect,
};

const USER: &str = "user";
const PASSWORD: &str = "pass:word";

fn retry() -> Retry {
    Retry { attempts: 4, first_delay: Duration::from_millis(5), ..Retry::default() }
}

fn login(host: &str, password: &str) -> Credentials {
    let mut credentials = Credentials::default();
    credentials.insert(host, Login::Password { username: USER.into(), password: password.into() });
    credentials
}

fn load_ref(text: &str, folder: &std::path::Path, access: &RegistryAccess) -> Result<Image, ImageError> {
    let source = detect(text, folder)?;
    load_with(&source, &folder.join("cache"), access, Limits::default())
}

/// A layout with one image of three layers, one of them of a megabyte that does not compress.
fn sample(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("layout");
    let mut random = Random::new(7);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    let layers = [
        (tar(&[Member::file("etc/a", "one"), Member::file("etc/noise", noise)]), Packed::Gzip),
        (tar(&[Member::file("etc/.wh.a", ""), Member::file("etc/b", "two")]), Packed::Plain),
        (tar(&[Member::file("etc/c", "three")]), Packed::Gzip),
    ];
    layout(&path, &layers);
    path
}

fn check(image: &Image) {
    assert!(at(&image.tree, "etc/a").is_none());
    assert_eq!(contents(&image.tree, at(&image.tree, "etc/b").unwrap()), b"two");
    assert_eq!(contents(&image.tree, at(&image.tree, "etc/noise").unwrap()).len(), 1 << 20);
}

#[test]
fn a_registry_with_tls_and_a_password_serves_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let layout = sample(folder.path());
    let server = Server::start(folder.path(), USER, PASSWORD);
    let host = server.host();
    let source = format!("oci:{}:{TAG}", layout.display());
    let target = format!("docker://{host}/team/app:v1");
    let creds = format!("{USER}:{PASSWORD}");
    run(
        "skopeo",
        &[
            "--insecure-policy",
            "copy",
            "-q",
            "--dest-tls-verify=false",
            "--dest-creds",
            &creds,
            &source,
            &target,
        ],
    );
    let access = RegistryAccess {
        credentials: login(&host, PASSWORD),
        authorities: vec![server.authority.clone()],
        retry: retry(),
        ..RegistryAccess::default()
    };
    let reference = format!("{host}/team/app:v1");
    let image = load_ref(&reference, folder.path(), &access).unwrap();
    check(&image);
    assert_eq!(image.reference, reference);
    let digest = image.digest.unwrap();

    let pinned = format!("{host}/team/app@{digest}");
    for (name, access, text, kind, says) in [
        (
            "no login",
            RegistryAccess { credentials: Credentials::default(), ..access.clone() },
            &reference,
            ErrorKind::Unauthorized,
            "login",
        ),
        (
            "a wrong password",
            RegistryAccess { credentials: login(&host, "no"), ..access.clone() },
            &reference,
            ErrorKind::Unauthorized,
            "login",
        ),
        (
            "an unknown authority",
            RegistryAccess { authorities: vec![], ..access.clone() },
            &reference,
            ErrorKind::Network,
            "authority that is not trusted",
        ),
        (
            "a missing tag",
            access.clone(),
            &format!("{host}/team/app:v2"),
            ErrorKind::NotFound,
            "no such image",
        ),
        (
            "a missing repository",
            access.clone(),
            &format!("{host}/team/none"),
            ErrorKind::NotFound,
            "no such image",
        ),
        (
            "no TLS",
            RegistryAccess { plain_http: vec![host.clone()], ..access.clone() },
            &reference,
            ErrorKind::Network,
            "",
        ),
    ] {
        let empty = tempfile::tempdir().unwrap();
        let error = load_ref(text, empty.path(), &access).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(says), "{name}: {error}");
        assert!(error.to_string().contains(&host), "{name}: {error}");
    }

    // What is named by digest and kept needs no registry.
    drop(server);
    check(&load_ref(&pinned, folder.path(), &access).unwrap());
    assert_eq!(load_ref(&reference, folder.path(), &access).unwrap_err().kind(), ErrorKind::Network);
}

fn load_mock(mock: &Mock, folder: &std::path::Path) -> Result<Image, ImageError> {
    let access =
        RegistryAccess { plain_http: vec![mock.host()], retry: retry(), ..RegistryAccess::default() };
    load_ref(&format!("{}/app:{TAG}", mock.host()), folder, &access)
}

#[test]
fn failures_that_pass_are_waited_out() {
    for fault in [Fault::Status(429), Fault::Status(503), Fault::Status(500), Fault::Hangup, Fault::Truncate]
    {
        let folder = tempfile::tempdir().unwrap();
        let mock = Mock::start(sample(folder.path()));
        mock.fail_each(fault, 2);
        let image = load_mock(&mock, folder.path()).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        check(&image);
    }
}

#[test]
fn a_broken_download_goes_on_where_it_broke() {
    let folder = tempfile::tempdir().unwrap();
    let mock = Mock::start(sample(folder.path()));
    mock.fail_each(Fault::Truncate, 3);
    check(&load_mock(&mock, folder.path()).unwrap());
    let sent = mock.sent();
    assert!(mock.ranges() > 0, "no range was asked for");
    assert!(sent < (3 << 20) / 2, "{sent} bytes were sent for an image of one megabyte");
    assert_eq!(fs::read_dir(folder.path().join("cache/tmp")).unwrap().count(), 0);
}

#[test]
fn a_registry_without_ranges_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let mock = Mock::start(sample(folder.path()));
    mock.without_ranges();
    mock.fail_each(Fault::Truncate, 2);
    check(&load_mock(&mock, folder.path()).unwrap());
}

#[test]
fn what_a_killed_build_left_is_gone_on_from_and_damage_in_it_is_noticed() {
    for (name, damage) in [("whole", 0u8), ("damaged", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let layout = sample(folder.path());
        let mock = Mock::start(layout.clone());
        let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|e| e.unwrap().path());
        let large = blobs.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        let mut part = fs::read(&large).unwrap();
        part.truncate(part.len() / 2);
        part[1000] ^= damage;
        let tmp = folder.path().join("cache/tmp");
        fs::create_dir_all(&tmp).unwrap();
        fs::write(tmp.join(format!("partial-sha256-{}", large.file_name().unwrap().to_str().unwrap())), part)
            .unwrap();
        check(&load_mock(&mock, folder.path()).unwrap_or_else(|e| panic!("{name}: {e}")));
        assert!(mock.ranges() > 0, "{name}");
    }
}

#[test]
fn failures_that_do_not_pass_end_with_one_clear_error() {
    for (fault, kind, says) in [
        (Fault::Status(503), ErrorKind::Network, "answers 503"),
        (Fault::Status(429), ErrorKind::Network, "answers 429"),
        (Fault::Status(418), ErrorKind::Network, "answers 418"),
        (Fault::Status(403), ErrorKind::Unauthorized, "login"),
        (Fault::Flip, ErrorKind::DigestMismatch, ""),
        (Fault::Hangup, ErrorKind::Network, "connection failed"),
        (Fault::Endless, ErrorKind::DigestMismatch, "more came"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mock = Mock::start(sample(folder.path()));
        mock.fail_blobs(fault);
        let error = load_mock(&mock, folder.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.to_string().contains(says), "{fault:?}: {error}");
        assert!(error.hint().is_some(), "{fault:?}: {error}");
    }
}

#[test]
fn a_bearer_token_is_fetched_and_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mock = Mock::start(sample(folder.path()));
    mock.want_token();
    check(&load_mock(&mock, folder.path()).unwrap());
}

#[test]
fn two_builds_at_once_fetch_each_blob_once() {
    let folder = tempfile::tempdir().unwrap();
    let mock = Mock::start(sample(folder.path()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| check(&load_mock(&mock, folder.path()).unwrap()));
        }
    });
    let sent = mock.sent();
    assert!(sent < 3 << 19, "{sent} bytes were sent for an image of one megabyte");
}

#[test]
fn a_host_that_is_not_named_as_plain_is_never_spoken_to_without_tls() {
    let folder = tempfile::tempdir().unwrap();
    let mock = Mock::start(sample(folder.path()));
    let access = RegistryAccess { retry: retry(), ..RegistryAccess::default() };
    let error = load_ref(&format!("{}/app:{TAG}", mock.host()), folder.path(), &access).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    assert!(error.hint().unwrap().contains("name it"), "{error:?}");
}
