//! What the image tests share: tars and OCI layouts made by hand, and listings to compare trees by.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate, clippy::cast_possible_wrap)]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use smolpack_builder::image::{
    Image, ImageError, ImageSource, Limits, LoadOptions, Platform, RegistryAccess, detect, load,
};
use smolpack_builder::progress::Silent;
use smolpack_builder::tree::{Kind, Node, NodeId, Tree};

pub const TAG: &str = "latest";

/// Runs a program; the test fails, with what it said, where it is missing or fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program} is needed for this test: {e}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

pub fn load_with(
    source: &ImageSource,
    cache: &Path,
    access: &RegistryAccess,
    limits: Limits,
) -> Result<Image, ImageError> {
    let options =
        LoadOptions { platform: "linux/amd64".parse::<Platform>().unwrap(), cache, registry: access, limits };
    load(source, &options, &mut Silent)
}

/// Loads what `text` names, with a cache in `folder`.
pub fn load_text(text: &str, folder: &Path) -> Result<Image, ImageError> {
    let source = detect(text, folder)?;
    load_with(&source, &folder.join("cache"), &RegistryAccess::default(), Limits::default())
}

/// A generator of random numbers that a seed repeats.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// A member of a tar.
#[derive(Clone)]
pub struct Member {
    pub path: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
    pub link: Vec<u8>,
    pub device: (u32, u32),
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub data: Vec<u8>,
}

impl Member {
    pub fn new(path: impl AsRef<[u8]>, kind: u8) -> Self {
        let path = path.as_ref().to_vec();
        let mode = if kind == b'5' { 0o755 } else { 0o644 };
        Self {
            path,
            kind,
            mode,
            uid: 0,
            gid: 0,
            mtime: (1_000_000_000, 0),
            link: vec![],
            device: (0, 0),
            xattrs: vec![],
            data: vec![],
        }
    }

    pub fn file(path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        Self { data: data.as_ref().to_vec(), ..Self::new(path, b'0') }
    }

    pub fn folder(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, b'5')
    }

    pub fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self { link: target.as_ref().to_vec(), mode: 0o777, ..Self::new(path, b'2') }
    }

    pub fn hard_link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self { link: target.as_ref().to_vec(), ..Self::new(path, b'1') }
    }
}

/// A tar of members, with PAX headers where the plain header cannot say it, and the end mark.
pub fn tar(members: &[Member]) -> Vec<u8> {
    let mut out = Vec::new();
    for member in members {
        let pax = pax_records(member);
        if !pax.is_empty() {
            put(&mut out, &header(b"pax", b'x', pax.len() as u64, |_| {}), &pax);
        }
        let numbers = |h: &mut [u8; 512]| {
            octal(&mut h[100..108], u64::from(member.mode));
            octal(&mut h[108..116], u64::from(member.uid).min(0o777_7777));
            octal(&mut h[116..124], u64::from(member.gid).min(0o777_7777));
            octal(&mut h[136..148], member.mtime.0.try_into().unwrap_or(0));
            let link = member.link.len().min(100);
            h[157..157 + link].copy_from_slice(&member.link[..link]);
            octal(&mut h[329..337], u64::from(member.device.0).min(0o777_7777));
            octal(&mut h[337..345], u64::from(member.device.1).min(0o777_7777));
        };
        put(&mut out, &header(&member.path, member.kind, member.data.len() as u64, numbers), &member.data);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// A header with its checksum; the name is cut to 100 bytes.
pub fn header(name: &[u8], kind: u8, size: u64, set: impl FnOnce(&mut [u8; 512])) -> [u8; 512] {
    let mut h = [0; 512];
    let len = name.len().min(100);
    h[..len].copy_from_slice(&name[..len]);
    octal(&mut h[100..108], 0o644);
    octal(&mut h[108..116], 0);
    octal(&mut h[116..124], 0);
    octal(&mut h[124..136], size);
    octal(&mut h[136..148], 0);
    h[156] = kind;
    h[257..265].copy_from_slice(b"ustar\x0000");
    set(&mut h);
    seal(&mut h);
    h
}

/// Writes the checksum of a header.
pub fn seal(h: &mut [u8; 512]) {
    h[148..156].fill(b' ');
    let sum: u64 = h.iter().map(|b| u64::from(*b)).sum();
    octal(&mut h[148..156], sum);
}

pub fn octal(field: &mut [u8], value: u64) {
    let text = format!("{value:0width$o}\0", width = field.len() - 1);
    field.copy_from_slice(text.as_bytes());
}

/// A header and its data, padded.
pub fn put(out: &mut Vec<u8>, header: &[u8; 512], data: &[u8]) {
    out.extend_from_slice(header);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

/// One PAX record, whose length counts its own digits.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let len = (1..1 << 20).find(|len: &usize| len.to_string().len() + rest.len() == *len).unwrap();
    [len.to_string().as_bytes(), &rest].concat()
}

fn pax_records(member: &Member) -> Vec<u8> {
    let mut out = Vec::new();
    if member.path.len() > 100 {
        out.extend(record("path", &member.path));
    }
    if member.link.len() > 100 {
        out.extend(record("linkpath", &member.link));
    }
    for (key, value) in [("uid", member.uid), ("gid", member.gid)] {
        if value > 0o777_7777 {
            out.extend(record(key, value.to_string().as_bytes()));
        }
    }
    if member.mtime.1 != 0 || member.mtime.0 < 0 {
        out.extend(record("mtime", pax_time(member.mtime).as_bytes()));
    }
    for (name, value) in &member.xattrs {
        out.extend(record(&format!("SCHILY.xattr.{}", String::from_utf8_lossy(name)), value));
    }
    out
}

fn pax_time((seconds, nanoseconds): (i64, u32)) -> String {
    match (seconds, nanoseconds) {
        (..0, 1..) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// How a layer is stored.
#[derive(Clone, Copy, Debug)]
pub enum Packed {
    Plain,
    Gzip,
    Zstd,
}

pub fn pack(data: &[u8], how: Packed) -> Vec<u8> {
    match how {
        Packed::Plain => data.to_vec(),
        Packed::Gzip => gzip(data),
        Packed::Zstd => zstd::encode_all(data, 1).unwrap(),
    }
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub fn sha256(data: &[u8]) -> String {
    let hex = smolpack_format::Digest::of(data).hex();
    format!("sha256:{hex}")
}

/// Puts a blob into a layout; gives its descriptor.
pub fn blob(layout: &Path, media_type: &str, data: &[u8]) -> serde_json::Value {
    let digest = sha256(data);
    let folder = layout.join("blobs/sha256");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(&digest[7..]), data).unwrap();
    serde_json::json!({"mediaType": media_type, "digest": digest, "size": data.len()})
}

/// Puts an image of layers, given as tars, into a layout; gives its manifest's descriptor.
pub fn image(layout: &Path, layers: &[(Vec<u8>, Packed)], config: &serde_json::Value) -> serde_json::Value {
    let diff_ids: Vec<String> = layers.iter().map(|(tar, _)| sha256(tar)).collect();
    let mut document = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": layers.iter().map(|_| serde_json::json!({"created_by": "test"})).collect::<Vec<_>>(),
    });
    if let Some(architecture) = config.get("test.architecture") {
        document["architecture"] = architecture.clone();
    }
    let config = blob(layout, "application/vnd.oci.image.config.v1+json", document.to_string().as_bytes());
    let layers: Vec<_> = layers
        .iter()
        .map(|(tar, how)| {
            let suffix = match how {
                Packed::Plain => "",
                Packed::Gzip => "+gzip",
                Packed::Zstd => "+zstd",
            };
            blob(layout, &format!("application/vnd.oci.image.layer.v1.tar{suffix}"), &pack(tar, *how))
        })
        .collect();
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": layers,
    });
    blob(layout, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())
}

/// Writes `oci-layout` and `index.json`.
pub fn index(layout: &Path, manifests: &[serde_json::Value]) {
    fs::create_dir_all(layout).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
}

pub fn named(mut descriptor: serde_json::Value, name: &str) -> serde_json::Value {
    descriptor["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// A layout folder with one image, tagged [`TAG`].
pub fn layout(folder: &Path, layers: &[(Vec<u8>, Packed)]) {
    let manifest = image(folder, layers, &serde_json::json!({}));
    index(folder, &[named(manifest, TAG)]);
}

/// What a path is, comparable between a tree and a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub what: String,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file.
    pub same_as: Vec<u8>,
}

pub type Listing = BTreeMap<Vec<u8>, Listed>;

/// Lists a tree, reading every file through its extents.
pub fn list_tree(tree: &Tree) -> Listing {
    let mut out = Listing::new();
    let mut first = HashMap::new();
    visit(tree, Tree::ROOT, b"", &mut first, &mut out);
    out
}

fn visit(tree: &Tree, id: NodeId, path: &[u8], first: &mut HashMap<NodeId, Vec<u8>>, out: &mut Listing) {
    let node = tree.node(id);
    let same_as = first.entry(id).or_insert_with(|| path.to_vec()).clone();
    let meta = &node.meta;
    let listed = Listed {
        what: describe(tree, node),
        mode: u32::from(meta.mode),
        uid: meta.uid,
        gid: meta.gid,
        mtime: (meta.mtime.seconds, meta.mtime.nanoseconds),
        xattrs: meta.xattrs.clone(),
        same_as,
    };
    out.insert(path.to_vec(), listed);
    for (name, child) in tree.entries(id).into_iter().flatten() {
        visit(tree, *child, &[path, b"/", name].concat(), first, out);
    }
}

fn describe(tree: &Tree, node: &Node) -> String {
    match &node.kind {
        Kind::File { .. } => format!("file {}", sha256(&contents(tree, node))),
        Kind::Directory(_) => "folder".into(),
        Kind::Symlink(target) => format!("link {}", target.escape_ascii()),
        Kind::CharDevice { major, minor } => format!("char {major}:{minor}"),
        Kind::BlockDevice { major, minor } => format!("block {major}:{minor}"),
        Kind::Fifo => "fifo".into(),
        Kind::Socket => "socket".into(),
    }
}

/// A file's bytes, holes included.
pub fn contents(tree: &Tree, node: &Node) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let Kind::File { size, extents } = &node.kind else { panic!("not a file") };
    let mut data = vec![0; usize::try_from(*size).unwrap()];
    let mut end = 0;
    for extent in extents {
        assert!(extent.len > 0 && extent.at >= end, "extents are sorted and not empty");
        end = extent.at + extent.len;
        let part = &mut data[extent.at as usize..end as usize];
        tree.open(extent.source).unwrap().read_exact_at(part, extent.offset).unwrap();
    }
    data
}

/// The node at a path such as `a/b`.
pub fn at<'a>(tree: &'a Tree, path: &str) -> Option<&'a Node> {
    let mut id = Tree::ROOT;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        id = *tree.entries(id)?.get(part.as_bytes())?;
    }
    Some(tree.node(id))
}

/// Lists a folder on disk, by what the kernel says.
pub fn list_disk(root: &Path) -> Listing {
    let mut out = Listing::new();
    visit_disk(root, b"", &mut HashMap::new(), &mut out);
    out
}

fn visit_disk(path: &Path, name: &[u8], first: &mut HashMap<(u64, u64), Vec<u8>>, out: &mut Listing) {
    let stat = fs::symlink_metadata(path).unwrap();
    let same_as = first.entry((stat.dev(), stat.ino())).or_insert_with(|| name.to_vec()).clone();
    let (major, minor) = (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
    let kind = stat.file_type();
    let what = if kind.is_file() {
        format!("file {}", sha256(&fs::read(path).unwrap()))
    } else if kind.is_dir() {
        "folder".into()
    } else if kind.is_symlink() {
        format!("link {}", fs::read_link(path).unwrap().as_os_str().as_bytes().escape_ascii())
    } else if kind.is_char_device() {
        format!("char {major}:{minor}")
    } else if kind.is_block_device() {
        format!("block {major}:{minor}")
    } else if kind.is_fifo() {
        "fifo".into()
    } else {
        "socket".into()
    };
    let mtime = (stat.mtime(), u32::try_from(stat.mtime_nsec()).unwrap());
    let (mode, uid, gid) = (stat.mode() & 0o7777, stat.uid(), stat.gid());
    let xattrs = disk_xattrs(path);
    out.insert(name.to_vec(), Listed { what, mode, uid, gid, mtime, xattrs, same_as });
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort_unstable_by_key(|name| name.clone().into_vec());
        for child in names {
            visit_disk(&path.join(&child), &[name, b"/", child.as_bytes()].concat(), first, out);
        }
    }
}

fn disk_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// Fails with what differs, if anything does.
pub fn assert_same(ours: &Listing, theirs: &Listing, context: &str) {
    let paths: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differences: Vec<String> = paths
        .into_iter()
        .filter(|path| ours.get(*path) != theirs.get(*path))
        .map(|path| {
            format!("{}\n  ours   {:?}\n  theirs {:?}", path.escape_ascii(), ours.get(path), theirs.get(path))
        })
        .collect();
    assert!(differences.is_empty(), "{context}:\n{}", differences.join("\n"));
}
