//! Random layers, merged here and unpacked by `umoci`, must be the same tree. Needs umoci and root.
#![allow(clippy::unwrap_used)]

mod image_support;

use std::fs;
use std::path::Path;
use std::process::Command;

use image_support::*;

/// How many images; `SMOLPACK_CASES` and `SMOLPACK_SEED` change how many and from which seed.
const CASES: u64 = 300;

/// Few names, so that entries of different layers meet.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const TARGETS: [&str; 12] =
    ["a", "b", "../a", "../../b", "/c", "/a/b", "./d", "d/e", "/", "..", "nowhere/x", "/e/./c"];

fn path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    let parts: Vec<&str> = (0..depth).map(|_| random.pick(&NAMES)).collect();
    let plain = parts.join("/");
    match random.below(20) {
        0 => format!("/{plain}"),
        1 => format!("./{plain}"),
        2 => format!("../{plain}"),
        3 => format!("a/../{plain}"),
        _ => plain,
    }
}

fn metadata(random: &mut Random, mut member: Member) -> Member {
    member.mode = [0o644, 0o755, 0o4755, 0o2750, 0o1777, 0o400, 0o700][random.below(7)];
    member.uid = [0, 1000, 65_534, 4_294_967_294][random.below(4)];
    member.gid = [0, 1000, 3_000_000][random.below(3)];
    member.mtime =
        (1 + random.below(1_500_000_000) as i64, random.below(2) as u32 * random.below(999_999_999) as u32);
    if random.chance(10) {
        member.mtime.0 = -1 - random.below(1_000_000_000) as i64;
    }
    if matches!(member.kind, b'0' | b'5') && random.chance(15) {
        member.xattrs.push((b"user.test".to_vec(), vec![b'v'; 1 + random.below(300)]));
        member.xattrs.push((b"trusted.test".to_vec(), b"\0binary\n=".to_vec()));
    }
    member
}

fn member(random: &mut Random, number: usize, upper: bool) -> Member {
    let path = path(random);
    let member = match random.below(if upper { 100 } else { 78 }) {
        0..25 => Member::folder(path),
        25..50 => Member::file(path, format!("contents {number} {}", "x".repeat(random.below(2000)))),
        50..62 => Member::symlink(path, random.pick(&TARGETS)),
        62..72 => return Member::hard_link(path, self::path(random)),
        72..74 => Member::new(path, b'6'),
        74..76 => Member { device: (5, 300), ..Member::new(path, b'3') },
        76..78 => Member { device: (259, 70_000), ..Member::new(path, b'4') },
        78..92 => {
            let (folder, name) = path.rsplit_once('/').unwrap_or((".", &path));
            return Member::file(format!("{folder}/.wh.{name}"), "");
        }
        _ => {
            let folder = path.rsplit_once('/').map_or(path.as_str(), |(folder, _)| folder);
            return Member::file(format!("{folder}/.wh..wh..opq"), "");
        }
    };
    metadata(random, member)
}

/// Layers of random entries. Most entries that cannot be unpacked on top of what came before are left
/// out again, or nearly every image would be refused; some stay, for umoci to refuse as well.
fn layers(random: &mut Random, folder: &Path) -> Vec<Vec<Member>> {
    let mut layers: Vec<Vec<Member>> = Vec::new();
    for layer in 0..=random.below(4) {
        layers.push(Vec::new());
        for number in 0..3 + random.below(14) {
            layers[layer].push(member(random, layer * 100 + number, layer > 0));
            if random.chance(99) && !is_accepted(&layers, folder) {
                layers[layer].pop();
            }
        }
    }
    layers
}

fn is_accepted(layers: &[Vec<Member>], folder: &Path) -> bool {
    let packed: Vec<_> = layers.iter().map(|members| (tar(members), Packed::Plain)).collect();
    layout(&folder.join("trial"), &packed);
    load_text("./trial", folder).is_ok()
}

/// What umoci makes of the layers, or why it refuses them.
fn unpack(folder: &Path, layers: &[Vec<Member>]) -> Result<Listing, String> {
    let layout_folder = folder.join("layout");
    let bundle = folder.join("bundle");
    let _ = fs::remove_dir_all(&layout_folder);
    let _ = fs::remove_dir_all(&bundle);
    let packed: Vec<_> = layers.iter().map(|members| (tar(members), Packed::Gzip)).collect();
    layout(&layout_folder, &packed);
    let image = format!("{}:{TAG}", layout_folder.display());
    let output = Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle).output();
    let output = output.expect("umoci is needed for this test");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(list_disk(&bundle.join("rootfs")))
}

/// Folders that no entry describes have the time of unpacking there, and in a setgid folder what the
/// kernel makes of that; so have folders that umoci empties without going back to what their entries
/// say. No entry's time is as late as that.
fn ignore_traces_of_unpacking(ours: &mut Listing, theirs: &Listing) {
    for (path, listed) in ours.iter_mut().filter(|(_, l)| l.what == "folder") {
        let Some(other) = theirs.get(path) else { continue };
        if listed.mtime == (0, 0) && other.mode & 0o2000 != 0 {
            (listed.mode, listed.gid) = (listed.mode | 0o2000, other.gid);
        }
        if other.mtime.0 > 1_500_000_000 {
            listed.mtime = other.mtime;
        }
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_layers_merge_as_umoci_unpacks_them() {
    assert!(rustix::process::geteuid().is_root(), "umoci needs root to set owners and make devices");
    let (start, cases) = (variable("SMOLPACK_SEED", 1), variable("SMOLPACK_CASES", CASES));
    let (mut accepted, mut refused) = (0, 0);
    for seed in start..start + cases {
        let folder = tempfile::tempdir().unwrap();
        let layers = layers(&mut Random::new(seed), folder.path());
        let theirs = unpack(folder.path(), &layers);
        let ours = load_text("./layout", folder.path());
        match (ours, theirs) {
            (Ok(image), Ok(theirs)) => {
                let mut ours = list_tree(&image.tree);
                ignore_traces_of_unpacking(&mut ours, &theirs);
                assert_same(&ours, &theirs, &format!("seed {seed}"));
                accepted += 1;
            }
            (Err(_), Err(_)) => refused += 1,
            (Ok(_), Err(theirs)) => panic!("seed {seed}: only umoci refuses: {theirs}"),
            (Err(ours), Ok(_)) => panic!("seed {seed}: only we refuse: {ours}"),
        }
    }
    println!("seeds from {start}: {accepted} images compared, {refused} refused by both");
    assert!(accepted > cases / 2, "too few images were accepted to say anything: {accepted}");
}
