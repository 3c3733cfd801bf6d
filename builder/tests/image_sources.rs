//! Root folders, root tars, layouts and archives, as the usual tools make them. Needs root, GNU tar,
//! setfacl and skopeo.
#![allow(clippy::unwrap_used)]

mod image_support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use image_support::*;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat, utimensat,
};
use smolpack_builder::image::{ErrorKind, Image, ImageError, Location, detect};
use smolpack_builder::tree::Kind;

/// A root folder with one of everything.
fn torture(root: &Path) {
    fs::create_dir_all(root.join("etc/deep/er")).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
    fs::hard_link(root.join("etc/passwd"), root.join("etc/deep/passwd")).unwrap();
    symlink("passwd", root.join("etc/link")).unwrap();
    fs::hard_link(root.join("etc/link"), root.join("etc/deep/link")).unwrap();
    symlink("t".repeat(4000), root.join("etc/long")).unwrap();
    fs::write(root.join("etc/empty"), "").unwrap();
    fs::write(root.join("etc").join(awkward_name()), "odd").unwrap();
    fs::write(root.join("etc").join("n".repeat(255)), "long").unwrap();
    node(&root.join("etc/fifo"), FileType::Fifo, 0);
    node(&root.join("etc/socket"), FileType::Socket, 0);
    node(&root.join("etc/char"), FileType::CharacterDevice, makedev(5, 1));
    node(&root.join("etc/block"), FileType::BlockDevice, makedev(259, 1_048_575));
    sparse(&root.join("etc/sparse"));
    let passwd = root.join("etc/passwd");
    std::os::unix::fs::chown(&passwd, Some(4_294_967_294), Some(70_000)).unwrap();
    std::os::unix::fs::chown(root.join("etc/empty"), Some(2_000_000), Some(5)).unwrap();
    fs::set_permissions(&passwd, std::os::unix::fs::PermissionsExt::from_mode(0o6755)).unwrap();
    fs::set_permissions(root.join("etc/deep"), std::os::unix::fs::PermissionsExt::from_mode(0o1700)).unwrap();
    for (name, value) in [
        ("user.note", &b"hello\n\0=world"[..]),
        ("trusted.secret", b"t"),
        ("security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("user.large", &[b'x'; 3000]),
    ] {
        rustix::fs::lsetxattr(&passwd, name, value, XattrFlags::empty()).unwrap();
    }
    run("setfacl", &["-m", "u:1000:r-x,g:7:rw-", root.join("etc/empty").to_str().unwrap()]);
    run("setfacl", &["-d", "-m", "u:1000:r-x", root.join("etc/deep").to_str().unwrap()]);
    time(&root.join("etc/empty"), -2, 250_000_000);
    time(&root.join("etc/link"), 1_234_567_890, 123_456_789);
    time(&root.join("etc/deep"), 4_000_000_000, 1);
}

/// Bytes that are not UTF-8, a newline and a quote.
fn awkward_name() -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(b"new\nline \"quoted\" \xff\xfe".to_vec())
}

fn node(path: &Path, kind: FileType, device: u64) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device).unwrap();
}

fn time(path: &Path, seconds: i64, nanoseconds: i64) {
    let at = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: at, last_modification: at };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// 40 MiB with 30 islands of data, a hole first and last.
fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    for island in 1..=30u64 {
        file.write_all_at(&[island as u8; 5000], island << 20).unwrap();
    }
    file.set_len(40 << 20).unwrap();
}

fn data_bytes(image: &Image, path: &str) -> u64 {
    let Kind::File { extents, .. } = &at(&image.tree, path).unwrap().kind else {
        panic!("{path} is no file")
    };
    extents.iter().map(|extent| extent.len).sum()
}

#[test]
fn a_root_folder_survives_whole() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    torture(&root);
    let image = load_text("./root", folder.path()).unwrap();
    assert_same(&list_tree(&image.tree), &list_disk(&root), "root folder");
    assert!(data_bytes(&image, "etc/sparse") < 1 << 20, "holes stay holes");
    assert_eq!(fs::metadata(root.join("etc/passwd")).unwrap().nlink(), 2);
    assert_eq!(image.digest, None);
    assert_eq!(image.reference, "./root");
}

#[test]
fn gnu_tars_of_every_form_survive_whole() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    torture(&root);
    // No tar keeps sockets.
    fs::remove_file(root.join("etc/socket")).unwrap();
    let source = root.to_str().unwrap();
    let pax = ["--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse"];
    for (name, options) in [
        ("sparse 1.0", vec!["--sparse-version=1.0"]),
        ("sparse 0.1", vec!["--sparse-version=0.1"]),
        ("sparse 0.0", vec!["--sparse-version=0.0"]),
    ] {
        let archive = folder.path().join("root.tar");
        let args = [&pax[..], &options, &["-cf", archive.to_str().unwrap(), "-C", source, "."]].concat();
        run("tar", &args);
        let image = load_text("./root.tar", folder.path()).unwrap();
        assert_same(&list_tree(&image.tree), &list_disk(&root), name);
        assert!(data_bytes(&image, "etc/sparse") < 1 << 20, "{name}: holes stay holes");
    }
}

#[test]
fn access_control_lists_in_text_become_what_the_kernel_gives() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/listed"), "").unwrap();
    // Numbers that this machine has no names for: it would write the names.
    run("setfacl", &["-m", "u:54321:r-x,g:54322:rw-", root.join("etc/listed").to_str().unwrap()]);
    run("setfacl", &["-d", "-m", "u:54321:r-x", root.join("etc").to_str().unwrap()]);
    let archive = folder.path().join("root.tar");
    let acls = ["--format=pax", "--acls", "--numeric-owner", "-cf", archive.to_str().unwrap()];
    run("tar", &[&acls[..], &["-C", root.to_str().unwrap(), "."]].concat());
    let image = load_text("./root.tar", folder.path()).unwrap();
    assert_same(&list_tree(&image.tree), &list_disk(&root), "text lists");
    run("setfacl", &["-m", "u:daemon:r-x", root.join("etc/listed").to_str().unwrap()]);
    run("tar", &[&acls[..], &["-C", root.to_str().unwrap(), "."]].concat());
    let error = load_text("./root.tar", folder.path()).unwrap_err();
    assert!(error.to_string().contains("without its number"), "{error}");
}

#[test]
fn old_gnu_tars_survive_but_for_what_they_cannot_say() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    torture(&root);
    fs::remove_file(root.join("etc/socket")).unwrap();
    let archive = folder.path().join("root.tar.gz");
    let args = ["--format=gnu", "--sparse", "--numeric-owner", "-czf", archive.to_str().unwrap()];
    run("tar", &[&args[..], &["-C", root.to_str().unwrap(), "."]].concat());
    let image = load_text("./root.tar.gz", folder.path()).unwrap();
    let mut disk = list_disk(&root);
    for listed in disk.values_mut() {
        listed.mtime.1 = 0;
        listed.xattrs.clear();
    }
    assert_same(&list_tree(&image.tree), &disk, "GNU format");
    assert!(data_bytes(&image, "etc/sparse") < 1 << 20, "holes stay holes");
    assert_eq!(image.digest.unwrap().as_str(), sha256(&fs::read(&archive).unwrap()));
}

#[test]
fn whiteouts_in_a_root_tar_are_plain_files() {
    let folder = tempfile::tempdir().unwrap();
    let members =
        [Member::file("etc/a", "a"), Member::file("etc/.wh.a", ""), Member::file("manifest.json", "{}")];
    fs::write(folder.path().join("root.tar"), tar(&members)).unwrap();
    let image = load_text("root.tar", folder.path()).unwrap();
    for path in ["etc/a", "etc/.wh.a", "manifest.json"] {
        assert!(at(&image.tree, path).is_some(), "{path}");
    }
}

/// A layout with two tagged images and a configuration worth reading.
fn two_images(layout_folder: &Path) {
    let config = serde_json::json!({
        "Entrypoint": ["/init"], "Cmd": ["serve"], "Env": ["PATH=/bin"], "User": "web:www",
        "WorkingDir": "/srv", "StopSignal": "SIGINT", "Labels": {"a": "b"}, "ExposedPorts": {"80/tcp": {}},
    });
    let lower = tar(&[Member::file("etc/a", "one"), Member::file("etc/gone", "x")]);
    let upper = tar(&[Member::file("etc/.wh.gone", ""), Member::file("etc/b", "two")]);
    let first = image(layout_folder, &[(lower.clone(), Packed::Gzip), (upper, Packed::Gzip)], &config);
    let second = image(layout_folder, &[(lower, Packed::Gzip)], &serde_json::json!({}));
    index(layout_folder, &[named(first, "one"), named(second, "two")]);
}

fn check_first(image: &Image) {
    assert!(at(&image.tree, "etc/b").is_some() && at(&image.tree, "etc/gone").is_none());
    let config = &image.config;
    assert_eq!(
        (config.entrypoint.as_slice(), config.cmd.as_slice()),
        (&["/init".to_owned()][..], &["serve".to_owned()][..])
    );
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("web:www"), Some("/srv")));
    assert_eq!(
        (config.stop_signal.as_deref(), config.env.as_slice()),
        (Some("SIGINT"), &["PATH=/bin".to_owned()][..])
    );
    assert_eq!(
        (config.labels["a"].as_str(), config.exposed_ports.as_slice()),
        ("b", &["80/tcp".to_owned()][..])
    );
}

#[test]
fn layouts_and_archives_made_by_skopeo_are_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    two_images(&folder.path().join("layout"));
    let source = format!("oci:{}:one", path("layout"));
    for (target, text) in [
        (format!("oci-archive:{}:one", path("oci.tar")), "./oci.tar"),
        (format!("docker-archive:{}:example/app:v1", path("docker.tar")), "./docker.tar"),
        (format!("docker-archive:{}:example/app:v1", path("tagged.tar")), "./tagged.tar:example/app:v1"),
        (format!("oci:{}:other", path("copied")), "./copied"),
    ] {
        run("skopeo", &["--insecure-policy", "copy", "-q", &source, &target]);
        let image = load_text(text, folder.path()).unwrap_or_else(|e| panic!("{text}: {e}"));
        check_first(&image);
        assert_eq!(image.reference, text);
        assert!(image.digest.is_some());
    }
    fs::write(folder.path().join("oci.tar.gz"), gzip(&fs::read(path("oci.tar")).unwrap())).unwrap();
    check_first(&load_text("oci.tar.gz", folder.path()).unwrap());
    let manifest = run("skopeo", &["inspect", "--format", "{{.Digest}}", &source]);
    let image = load_text("./layout:one", folder.path()).unwrap();
    assert_eq!(image.digest.unwrap().as_str(), manifest.trim());
    check_first(&load_text(&path("layout:one"), folder.path()).unwrap());
}

#[test]
fn a_docker_archive_of_several_images_wants_a_tag() {
    let folder = tempfile::tempdir().unwrap();
    let layer = |name: &str| tar(&[Member::file(name, name)]);
    let mut members = Vec::new();
    let mut images = Vec::new();
    for name in ["etc/one", "etc/two"] {
        let layer = layer(name);
        let config = serde_json::json!({"architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [sha256(&layer)]}});
        let (short, config) = (&name[4..], config.to_string());
        members.push(Member::file(format!("{short}.json"), config));
        members.push(Member::file(format!("{short}.tar"), layer));
        // As docker writes it: the layer's old place is a link to its new one.
        members.push(Member::symlink(format!("{short}/layer.tar"), format!("../{short}.tar")));
        images.push(
            serde_json::json!({"Config": format!("{short}.json"), "Layers": [format!("{short}/layer.tar")],
            "RepoTags": [format!("example/{short}:latest")]}),
        );
    }
    members.push(Member::file("manifest.json", serde_json::Value::from(images).to_string()));
    fs::write(folder.path().join("save.tar"), tar(&members)).unwrap();
    let error = load_text("./save.tar", folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMatch);
    assert!(error.to_string().contains("example/one:latest, example/two:latest"), "{error}");
    for text in ["./save.tar:example/two", "./save.tar:example/two:latest", "./save.tar:two"] {
        let image = load_text(text, folder.path()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(at(&image.tree, "etc/two").is_some(), "{text}");
    }
}

#[test]
fn docker_archives_of_every_shape_are_read() {
    let data = tar(&[Member::file("etc/motd", "hi")]);
    let config = serde_json::json!({"architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [sha256(&data)]}})
    .to_string();
    let layer = |path: &str| Member::file(path, &data);
    for (name, members, path) in [
        (
            "a link to the root",
            vec![layer(".x.tar"), Member::symlink("X/layer.tar", ".x.tar")],
            "X/layer.tar",
        ),
        ("a link beside", vec![layer("X/.x.tar"), Member::symlink("X/layer.tar", ".x.tar")], "X/layer.tar"),
        (
            "a link that climbs",
            vec![layer("x.tar"), Member::symlink("X/layer.tar", "../../x.tar")],
            "X/layer.tar",
        ),
        ("a hard link", vec![layer("x.tar"), Member::hard_link("X/layer.tar", "x.tar")], "X/layer.tar"),
        ("dots before names", vec![layer("./X/layer.tar")], "X/layer.tar"),
        ("compressed", vec![Member::file("x.tar.gz", gzip(&data))], "x.tar.gz"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let images =
            serde_json::json!([{"Config": "c.json", "Layers": [path], "RepoTags": null}]).to_string();
        let dot = if name.starts_with("dots") { "./" } else { "" };
        let ends = [
            Member::file(format!("{dot}c.json"), &config),
            Member::file(format!("{dot}manifest.json"), images),
        ];
        fs::write(folder.path().join("save.tar"), tar(&members.into_iter().chain(ends).collect::<Vec<_>>()))
            .unwrap();
        let image = load_text("./save.tar", folder.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(at(&image.tree, "etc/motd").is_some(), "{name}");
    }
    // Two links to each other, by either way to read them, end.
    let links = [Member::symlink("a", "b"), Member::symlink("b", "a"), Member::file("c.json", &config)];
    let images = serde_json::json!([{"Config": "c.json", "Layers": ["a"], "RepoTags": null}]).to_string();
    let folder = tempfile::tempdir().unwrap();
    let members = links.into_iter().chain([Member::file("manifest.json", images)]).collect::<Vec<_>>();
    fs::write(folder.path().join("save.tar"), tar(&members)).unwrap();
    let error = load_text("./save.tar", folder.path()).unwrap_err();
    assert!(error.to_string().contains("layer a is missing"), "{error}");
}

#[test]
fn sparse_files_of_many_gigabytes_keep_their_holes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    let file = File::create(root.join("etc/sparse")).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(b"last", (9 << 30) - 4096).unwrap();
    file.set_len(9 << 30).unwrap();
    let (archive, source) = (folder.path().join("root.tar"), root.to_str().unwrap());
    let archive = archive.to_str().unwrap();
    let to = ["-cf", archive, "-C", source, "."];
    for (program, options) in [
        ("tar", &["--format=gnu", "--sparse"][..]),
        ("tar", &["--format=pax", "--sparse", "--sparse-version=0.0"]),
        ("tar", &["--format=pax", "--sparse", "--sparse-version=0.1"]),
        ("tar", &["--format=pax", "--sparse", "--sparse-version=1.0"]),
        ("bsdtar", &["--format=pax"]),
    ] {
        let options = [options, &to].concat();
        run(program, &options);
        assert!(fs::metadata(archive).unwrap().len() < 10 << 20, "{program} {options:?} wrote the holes");
        let image = load_text("./root.tar", folder.path()).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        let Kind::File { size, .. } = at(&image.tree, "etc/sparse").unwrap().kind else { panic!("no file") };
        assert_eq!(size, 9 << 30, "{program} {options:?}");
        assert!(data_bytes(&image, "etc/sparse") < 1 << 20, "{program} {options:?}: holes stay holes");
    }
}

#[test]
fn a_docker_archive_whose_configuration_is_not_what_its_name_says_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("{}.json", &sha256(b"something else")[7..]);
    let images = serde_json::json!([{"Config": name, "Layers": [], "RepoTags": null}]);
    let members = [Member::file(&name, "{}"), Member::file("manifest.json", images.to_string())];
    fs::write(folder.path().join("save.tar"), tar(&members)).unwrap();
    let error = load_text("./save.tar", folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DigestMismatch, "{error}");
}

fn arch_image(layout: &Path, architecture: &str) -> serde_json::Value {
    let layer = tar(&[Member::file(format!("etc/{architecture}"), "")]);
    image(layout, &[(layer, Packed::Plain)], &serde_json::json!({"test.architecture": architecture}))
}

fn with_platform(
    mut descriptor: serde_json::Value,
    architecture: &str,
    variant: Option<&str>,
) -> serde_json::Value {
    descriptor["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
    if let Some(variant) = variant {
        descriptor["platform"]["variant"] = variant.into();
    }
    descriptor
}

fn nest(layout: &Path, manifests: &[serde_json::Value]) -> serde_json::Value {
    let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    blob(layout, "application/vnd.oci.image.index.v1+json", index.to_string().as_bytes())
}

#[test]
fn an_index_within_an_index_leads_to_the_platform_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let arm = with_platform(arch_image(&layout, "arm64"), "arm64", Some("v8"));
    let amd = with_platform(arch_image(&layout, "amd64"), "amd64", None);
    let attestation = with_platform(arch_image(&layout, "unknown"), "unknown", None);
    let inner = nest(&layout, &[attestation, arm.clone(), amd]);
    index(&layout, &[nest(&layout, &[inner])]);
    let image = load_text("./layout", folder.path()).unwrap();
    assert!(at(&image.tree, "etc/amd64").is_some());

    index(&layout, &[nest(&layout, std::slice::from_ref(&arm))]);
    let error = load_text("./layout", folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMatch);
    assert!(error.to_string().contains("no image for linux/amd64, only for linux/arm64/v8"), "{error}");

    // Without an index the configuration says what it is for.
    let mut bare = arm;
    bare.as_object_mut().unwrap().remove("platform");
    index(&layout, &[bare]);
    let error = load_text("./layout", folder.path()).unwrap_err();
    assert!(error.to_string().contains("the image is for linux/arm64, not for linux/amd64"), "{error}");
}

#[test]
fn indexes_that_never_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let mut at = arch_image(&layout, "amd64");
    for _ in 0..20 {
        at = nest(&layout, &[at]);
    }
    index(&layout, &[at]);
    assert_eq!(load_text("./layout", folder.path()).unwrap_err().kind(), ErrorKind::Limit);
}

fn error_of(text: &str, folder: &Path) -> ImageError {
    load_text(text, folder).expect_err(text)
}

#[test]
fn what_is_no_image_gets_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::create_dir_all(at("photos/2024")).unwrap();
    fs::write(at("text.tar"), "this is no tar at all\n".repeat(100)).unwrap();
    fs::write(at("nothing.tar"), "").unwrap();
    fs::write(at("photos.tar"), tar(&[Member::file("photos/1.jpg", "x")])).unwrap();
    let whole = tar(&[Member::file("etc/a", vec![1; 5000])]);
    fs::write(at("cut.tar"), &whole[..2000]).unwrap();
    fs::write(at("unended.tar"), &whole[..whole.len() - 1024]).unwrap();
    fs::write(at("cut.tar.gz"), &gzip(&whole)[..40]).unwrap();
    layout(&at("partial"), &[(tar(&[Member::file("etc/a", "x")]), Packed::Plain)]);
    fs::remove_dir_all(at("partial/blobs")).unwrap();
    layout(&at("future"), &[]);
    fs::write(at("future/oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    layout(&at("broken"), &[]);
    fs::write(at("broken/index.json"), "{").unwrap();
    for (text, kind, says) in [
        ("./missing", ErrorKind::NotFound, "cannot find the image"),
        ("./empty", ErrorKind::NotAnImage, "this folder is no image"),
        ("./photos", ErrorKind::NotAnImage, "this folder is no image"),
        ("./photos.tar", ErrorKind::NotAnImage, "this archive is no image"),
        ("./text.tar", ErrorKind::Corrupt, "no tar"),
        ("./nothing.tar", ErrorKind::Corrupt, "cut short"),
        ("./cut.tar", ErrorKind::Corrupt, "entry etc/a: it is cut short"),
        ("./unended.tar", ErrorKind::Corrupt, "no end mark"),
        ("./cut.tar.gz", ErrorKind::Corrupt, "cannot be decompressed"),
        ("./partial", ErrorKind::NotFound, "is missing from it"),
        ("./future", ErrorKind::Unsupported, "version \"2.0.0\""),
        ("./broken", ErrorKind::Corrupt, "index.json: its JSON"),
        ("./partial:other", ErrorKind::NoMatch, "no image named \"other\", only latest"),
        ("Not A Reference", ErrorKind::BadReference, "neither a path that exists nor a registry reference"),
    ] {
        let error = error_of(text, folder.path());
        assert_eq!(error.kind(), kind, "{text}: {error}");
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
}

#[test]
fn detect_tells_paths_from_references() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("root/etc")).unwrap();
    fs::create_dir_all(folder.path().join("debian/etc")).unwrap();
    let location = |text: &str| detect(text, folder.path()).unwrap().location;
    assert!(matches!(location("root"), Location::Folder(_)));
    assert!(matches!(location("debian:12"), Location::Registry(_)));
    assert!(matches!(
        location(
            "ghcr.io/owner/name@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        ),
        Location::Registry(_)
    ));
    assert_eq!(location("-"), Location::Stdin);
    let absolute = folder.path().join("root").display().to_string();
    assert_eq!(detect(&absolute, Path::new("/")).unwrap().reference, "root");
}
