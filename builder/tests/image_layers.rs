//! Each rule of layers, and each way in which a layer can be wrong, on layers made by hand.
#![allow(clippy::unwrap_used)]

mod image_support;

use std::fs;

use image_support::*;
use smolpack_builder::image::{ErrorKind, Image, ImageError, Limits, RegistryAccess, detect};

fn load_layers(layers: &[Vec<Member>]) -> Result<Image, ImageError> {
    load_tars(&layers.iter().map(|members| tar(members)).collect::<Vec<_>>())
}

fn load_tars(tars: &[Vec<u8>]) -> Result<Image, ImageError> {
    let folder = tempfile::tempdir().unwrap();
    let hows = [Packed::Plain, Packed::Gzip, Packed::Zstd];
    let packed: Vec<_> = tars.iter().cloned().zip(hows.into_iter().cycle()).collect();
    layout(&folder.path().join("layout"), &packed);
    load_text("./layout", folder.path())
}

fn load_limited(tars: &[Vec<u8>], limits: Limits) -> Result<Image, ImageError> {
    let folder = tempfile::tempdir().unwrap();
    let packed: Vec<_> = tars.iter().cloned().map(|tar| (tar, Packed::Gzip)).collect();
    layout(&folder.path().join("layout"), &packed);
    let source = detect("./layout", folder.path()).unwrap();
    load_with(&source, &folder.path().join("cache"), &RegistryAccess::default(), limits)
}

/// The paths of an image, folders with a slash, apart by spaces.
fn paths(image: &Image) -> String {
    let listing = list_tree(&image.tree);
    let paths = listing.iter().skip(1).map(|(path, listed)| {
        let slash = if listed.what == "folder" { "/" } else { "" };
        format!("{}{slash}", String::from_utf8_lossy(&path[1..]))
    });
    paths.collect::<Vec<_>>().join(" ")
}

fn file(path: &str) -> Member {
    Member::file(path, path)
}

#[test]
fn layers_merge_by_the_rules() {
    let whiteout_link = Member::hard_link("d/.wh.a", "nothing");
    for (name, layers, want) in [
        ("a whiteout hides a file", vec![vec![file("d/a"), file("d/b")], vec![file("d/.wh.a")]], "d/ d/b"),
        ("a whiteout hides a folder and all in it", vec![vec![file("d/a/b")], vec![file(".wh.d")]], ""),
        ("a whiteout may be a hard-link entry", vec![vec![file("d/a")], vec![whiteout_link]], "d/"),
        ("a whiteout of nothing is fine", vec![vec![file("a")], vec![file("x/y/.wh.z")]], "a"),
        (
            "a whiteout spares its own layer, before",
            vec![vec![file("a")], vec![file("a"), file(".wh.a")]],
            "a",
        ),
        (
            "a whiteout spares its own layer, after",
            vec![vec![file("a")], vec![file(".wh.a"), file("a")]],
            "a",
        ),
        (
            "a whiteout of a folder spares what its own layer put in it",
            vec![vec![file("d/a"), file("d/e/b")], vec![file("d/e/c"), file(".wh.d")]],
            "d/ d/e/ d/e/c",
        ),
        (
            "an opaque mark hides lower layers, whatever the order",
            vec![vec![file("d/a"), file("d/e/b")], vec![file("d/n"), file("d/.wh..wh..opq")]],
            "d/ d/n",
        ),
        (
            "an opaque mark before its entries",
            vec![vec![file("d/a")], vec![file("d/.wh..wh..opq"), file("d/n")]],
            "d/ d/n",
        ),
        (
            "marks of aufs are no files",
            vec![vec![file("a")], vec![file(".wh..wh.aufs"), Member::folder(".wh..wh.plnk")]],
            "a",
        ),
        ("a file replaces a folder", vec![vec![file("a/b")], vec![file("a")]], "a"),
        ("a folder replaces a file", vec![vec![file("a")], vec![Member::folder("a"), file("a/b")]], "a/ a/b"),
        (
            "an explicit folder replaces a symlink",
            vec![vec![file("d/a"), Member::symlink("l", "d")], vec![Member::folder("l"), file("l/b")]],
            "d/ d/a l/ l/b",
        ),
        (
            "a parent that is a symlink is followed",
            vec![vec![file("d/a"), Member::symlink("l", "d")], vec![file("l/b")]],
            "d/ d/a d/b l",
        ),
        (
            "symlinks stay inside the root",
            vec![vec![Member::symlink("l", "/../../etc"), file("l/passwd")]],
            "etc/ etc/passwd l",
        ),
        (
            "absolute names and dots stay inside",
            vec![vec![file("/a"), file("../../b"), file("./c/../d")]],
            "a b d",
        ),
        ("of duplicates the last wins", vec![vec![Member::symlink("a", "x"), file("a")]], "a"),
        (
            "a whiteout through a symlink",
            vec![vec![file("d/a"), file("d/b"), Member::symlink("l", "d")], vec![file("l/.wh.a")]],
            "d/ d/b l",
        ),
        (
            "files of lazy formats are dropped, at the root only",
            vec![vec![
                file("stargz.index.json"),
                file(".no.prefetch.landmark"),
                file("d/.prefetch.landmark"),
            ]],
            "d/ d/.prefetch.landmark",
        ),
        ("no layers are an empty root", vec![], ""),
    ] {
        let image = load_layers(&layers).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(paths(&image), want, "{name}");
    }
}

#[test]
fn a_folder_entry_updates_its_metadata_and_keeps_its_contents() {
    let folder = |mode, mtime| Member { mode, mtime: (mtime, 7), ..Member::folder("d") };
    let image = load_layers(&[vec![folder(0o700, 1), file("d/a")], vec![folder(0o2775, 2)]]).unwrap();
    let node = at(&image.tree, "d").unwrap();
    assert_eq!((node.meta.mode, node.meta.mtime.seconds, node.meta.mtime.nanoseconds), (0o2775, 2, 7));
    assert!(at(&image.tree, "d/a").is_some());
}

#[test]
fn missing_parents_are_0755_and_of_root() {
    let image = load_layers(&[vec![file("x/y")]]).unwrap();
    let meta = &at(&image.tree, "x").unwrap().meta;
    assert_eq!((meta.mode, meta.uid, meta.gid, meta.mtime.seconds), (0o755, 0, 0, 0));
}

#[test]
fn the_roots_own_entry_counts() {
    let root = Member { mode: 0o711, uid: 5, ..Member::folder("./") };
    let image = load_layers(&[vec![root]]).unwrap();
    let meta = &image.tree.node(smolpack_builder::tree::Tree::ROOT).meta;
    assert_eq!((meta.mode, meta.uid), (0o711, 5));
}

#[test]
fn hard_links_reach_across_layers_and_survive_the_loss_of_a_name() {
    let layers = [
        vec![Member::file("a", "one"), Member::hard_link("b", "a"), Member::symlink("s", "t")],
        vec![
            Member::hard_link("d/c", "/a"),
            Member::hard_link("s2", "./s"),
            Member::file("a", "two"),
            file(".wh.b"),
        ],
    ];
    let image = load_layers(&layers).unwrap();
    assert_eq!(paths(&image), "a d/ d/c s s2");
    assert_eq!(contents(&image.tree, at(&image.tree, "d/c").unwrap()), b"one");
    assert_eq!(contents(&image.tree, at(&image.tree, "a").unwrap()), b"two");
    let listing = list_tree(&image.tree);
    assert_eq!(listing[&b"/s2"[..]].same_as, b"/s");
}

#[test]
fn data_is_numbered_by_layer_and_lies_where_it_is() {
    let image = load_layers(&[vec![file("a")], vec![file("b")], vec![file("c")]]).unwrap();
    for (layer, name) in ["a", "b", "c"].into_iter().enumerate() {
        let node = at(&image.tree, name).unwrap();
        assert_eq!(node.layer as usize, layer);
        assert_eq!(contents(&image.tree, node), name.as_bytes());
    }
}

#[test]
fn gzip_of_several_members_and_zstd_of_several_frames_are_read_whole() {
    let data = tar(&[Member::file("a", vec![7; 10_000]), file("b")]);
    let (front, back) = data.split_at(5000);
    let zstd = |data: &[u8]| zstd::encode_all(data, 1).unwrap();
    // RFC 8878, section 3.1.2.
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'a', b'b', b'c'].to_vec();
    for packed in [
        [gzip(front), gzip(back)].concat(),
        [gzip(front), gzip(&[]), gzip(back), vec![0; 3_000_000]].concat(),
        [gzip(&data), vec![0]].concat(),
        [zstd(front), zstd(back)].concat(),
        [skippable.clone(), zstd(front), skippable.clone(), zstd(back), skippable].concat(),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout");
        let (config, layer) = one_layer(&layout, &sha256(&data), &packed);
        finish(&layout, &config, &layer);
        assert_eq!(paths(&load_text("./layout", folder.path()).unwrap()), "a b");
    }
}

fn one_layer(
    layout: &std::path::Path,
    diff_id: &str,
    packed: &[u8],
) -> (serde_json::Value, serde_json::Value) {
    let document = serde_json::json!({"architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]}});
    let config = blob(layout, "application/vnd.oci.image.config.v1+json", document.to_string().as_bytes());
    // The media type lies now and then; what counts is the data.
    (config, blob(layout, "application/vnd.oci.image.layer.v1.tar", packed))
}

fn finish(layout: &std::path::Path, config: &serde_json::Value, layer: &serde_json::Value) {
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    index(
        layout,
        &[blob(layout, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())],
    );
}

#[test]
fn damaged_layers_are_refused_with_one_clear_error_each() {
    let data = tar(&[Member::file("a", vec![7; 10_000])]);
    let packed = gzip(&data);
    let good = sha256(&data);
    let other = sha256(b"other");
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    for (name, diff_id, bytes, kind, says) in [
        (
            "a wrong diff_id, compressed",
            &other,
            packed.clone(),
            ErrorKind::DigestMismatch,
            "decompressed data has digest",
        ),
        ("a wrong diff_id, plain", &other, data.clone(), ErrorKind::DigestMismatch, "its data has digest"),
        ("gzip cut short", &good, cut(&packed), ErrorKind::Corrupt, "cannot be decompressed"),
        (
            "zstd cut short",
            &good,
            cut(&zstd::encode_all(&data[..], 1).unwrap()),
            ErrorKind::Corrupt,
            "cannot be decompressed",
        ),
        (
            "something after gzip",
            &good,
            [packed.clone(), b"x".to_vec()].concat(),
            ErrorKind::Corrupt,
            "cannot be decompressed",
        ),
        (
            "something after the zeros after gzip",
            &good,
            [packed.clone(), vec![0; 512], b"x".to_vec()].concat(),
            ErrorKind::Corrupt,
            "something else follows the zeros",
        ),
        ("xz", &good, b"\xfd7zXZ\0rest".to_vec(), ErrorKind::Unsupported, "xz"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout");
        let (config, layer) = one_layer(&layout, diff_id, &bytes);
        finish(&layout, &config, &layer);
        let error = load_text("./layout", folder.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(says), "{name}: {error}");
        assert!(error.to_string().starts_with("layer 1 (sha256:"), "{name}: {error}");
        assert!(error.hint().is_some(), "{name}");
        let kept = fs::read_dir(folder.path().join("cache/tmp")).map_or(0, Iterator::count);
        assert_eq!(kept, 0, "{name}: nothing is left behind");
    }
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    for (name, change) in [
        ("flipped", (|bytes: &mut Vec<u8>| bytes[20] ^= 1) as fn(&mut Vec<u8>)),
        ("shorter", |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1)),
        ("longer", |bytes: &mut Vec<u8>| bytes.push(0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        layout(&folder.path().join("layout"), &[(tar(&[file("a")]), Packed::Gzip)]);
        for entry in fs::read_dir(folder.path().join("layout/blobs/sha256")).unwrap() {
            let path = entry.unwrap().path();
            let good = fs::read(&path).unwrap();
            let mut bad = good.clone();
            change(&mut bad);
            fs::write(&path, &bad).unwrap();
            let error = load_text("./layout", folder.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DigestMismatch, "{name}: {error}");
            fs::write(&path, &good).unwrap();
        }
        load_text("./layout", folder.path()).unwrap();
    }
}

#[test]
fn entries_that_break_the_rules_are_refused_by_name() {
    for (name, members, says) in [
        ("the root as a symlink", vec![Member::symlink(".", "/etc")], "root"),
        (
            "a hard link to nothing",
            vec![Member::hard_link("a", "gone")],
            "entry a: the target of its hard link, gone",
        ),
        ("a hard link to a folder", vec![Member::folder("d"), Member::hard_link("a", "d")], "is a folder"),
        ("a file as a parent", vec![file("a"), file("a/b")], "entry a/b: a, a folder on its way, is a file"),
        (
            "links in circles",
            vec![Member::symlink("a", "b"), Member::symlink("b", "a"), file("a/x")],
            "circles",
        ),
        ("a name that is too long", vec![Member::folder("n".repeat(256))], "255 bytes"),
        ("a target that is too long", vec![Member::symlink("l", "t".repeat(4096))], "4095"),
        ("a whiteout of no name", vec![file("d/.wh.")], "whiteout"),
        ("a whiteout of the parent", vec![file("d/.wh...")], "whiteout"),
        ("a symlink to nowhere", vec![Member::new("l", b'2')], "without a target"),
        ("an unknown type", vec![Member::new("q", b'Q')], "type 'Q'"),
    ] {
        let error = load_layers(&[members]).unwrap_err();
        assert!(error.to_string().contains(says), "{name}: {error}");
        assert!(error.to_string().starts_with("layer 1"), "{name}: {error}");
    }
}

#[test]
fn bounds_hold_and_say_what_passed_them() {
    let many: Vec<Member> = (0..200).map(|n| file(&format!("f{n}"))).collect();
    let deep = "d/".repeat(60);
    let long = Member { path: "p/".repeat(60_000).into_bytes(), ..Member::folder("") };
    let small = Limits {
        entries: 100,
        inflated_bytes: 1 << 20,
        depth: 50,
        header_bytes: 100_000,
        ..Limits::default()
    };
    for (name, data, says) in [
        ("entries", tar(&many), "more than 100 entries"),
        ("a bomb", vec![0; 50 << 20], "larger than 1048576 bytes"),
        ("depth", tar(&[Member::folder(deep)]), "more than 50 deep"),
        ("a header", tar(&[long]), "an extended header of"),
    ] {
        let error = load_limited(&[data], small).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{name}: {error}");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
}

#[test]
fn a_tar_cut_at_any_byte_is_an_error_or_a_shorter_layer_and_never_a_panic() {
    let members = [
        Member { xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())], ..Member::file("a", "hello") },
        Member::symlink("s", "t".repeat(300)),
        Member::file("b".repeat(120), vec![1; 700]),
    ];
    let whole = tar(&members);
    let listing = list_tree(&load_tars(std::slice::from_ref(&whole)).unwrap().tree);
    let all: Vec<_> = listing.iter().collect();
    for len in (0..whole.len()).step_by(37) {
        match load_tars(&[whole[..len].to_vec()]) {
            // Cut between entries, or in what pads them: nothing but whole entries is taken.
            Ok(image) => {
                assert!(list_tree(&image.tree).iter().all(|entry| all.contains(&entry)), "cut at {len}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {len}: {error}"),
        }
    }
}

#[test]
fn random_damage_to_headers_is_never_a_panic() {
    let members = [
        Member { xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())], ..Member::file("a", "hello") },
        Member { device: (1, 2), ..Member::new("c", b'3') },
        Member::hard_link("h", "a"),
        Member::symlink("s", "t".repeat(300)),
    ];
    let whole = tar(&members);
    let seed = 1;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..300 {
        let mut bad = whole.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bad.len());
            bad[at] = [0, 0xff, b'7', b'/', b'=', b'S'][random.below(6)];
        }
        // The checksums are mended, so that the fields behind them are reached.
        for block in bad.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
            seal(block.try_into().unwrap());
        }
        let _ = load_tars(&[bad]);
    }
}

#[test]
fn a_second_load_reads_the_cache_and_not_the_blob() {
    let folder = tempfile::tempdir().unwrap();
    let layout_folder = folder.path().join("layout");
    let data = tar(&[Member::file("a", "hello")]);
    layout(&layout_folder, &[(data.clone(), Packed::Gzip)]);
    load_text("./layout", folder.path()).unwrap();
    let kept = folder.path().join("cache/layers/sha256").join(&sha256(&data)[7..]);
    assert_eq!(fs::read(kept).unwrap(), data);
    let blob = sha256(&gzip(&data));
    fs::remove_file(layout_folder.join("blobs/sha256").join(&blob[7..])).unwrap();
    let image = load_text("./layout", folder.path()).unwrap();
    // Removing the cache does not harm who uses it.
    fs::remove_dir_all(folder.path().join("cache")).unwrap();
    assert_eq!(contents(&image.tree, at(&image.tree, "a").unwrap()), b"hello");
}
