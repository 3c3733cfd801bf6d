//! Random trees: whatever their shape, e2fsck and the kernel agree with them.

use crate::image::{Image, MIB, assert_same, judge, options};
use crate::maker::{Maker, folder, meta};
use smolpack_builder::ext4::minimum_size;
use smolpack_builder::tree::{Kind, Metadata, NodeId, Timestamp, Tree};

/// A small generator (xorshift), so that a printed seed makes the same tree everywhere.
struct Random(u64);

/// 2310-01-01: e2fsck takes anything much later for a time before 1970 that an old kernel wrote wrongly.
const MAX_SECONDS: i64 = 10_729_324_800;

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    fn meta(&mut self) -> Metadata {
        let mut meta = meta(self.below(0o10000) as u16);
        meta.uid = self.below(1 << 32).min(4_294_967_294) as u32;
        meta.gid = self.below(70_000) as u32;
        let seconds = i64::try_from(self.below(1 << 34)).unwrap() - (1 << 31) + 1;
        meta.mtime =
            Timestamp { seconds: seconds.min(MAX_SECONDS), nanoseconds: self.below(1_000_000_000) as u32 };
        if self.below(4) == 0 {
            for _ in 0..self.below(6) {
                let prefix = [&b"trusted."[..], b"security.", b"trusted.long-name-that-takes-room."]
                    [self.below(3) as usize];
                let len = [10, 60, 800, 6000][self.below(4) as usize];
                let name = [prefix, format!("{}", self.below(1000)).as_bytes()].concat();
                let value_len = self.below(len);
                meta.xattrs.insert(name, self.bytes(value_len));
            }
        }
        meta
    }

    fn name(&mut self) -> Vec<u8> {
        let len = [8, 30, 255][self.below(3) as usize];
        let len = 1 + self.below(len);
        let name: Vec<u8> = self.bytes(len).into_iter().filter(|byte| !matches!(byte, 0 | b'/')).collect();
        if matches!(&name[..], b"" | b"." | b"..") { b"other".to_vec() } else { name }
    }

    fn kind(&mut self, maker: &mut Maker) -> Kind {
        match self.below(12) {
            0 => Kind::Symlink({
                let len = 1 + self.below(200);
                self.bytes(len).iter().map(|byte| byte | 1).collect()
            }),
            1 => Kind::CharDevice { major: self.below(4096) as u32, minor: self.below(1 << 20) as u32 },
            2 => Kind::Fifo,
            3 => Kind::Socket,
            4 => self.sparse(maker),
            _ => {
                let len = self.below(20_000);
                let bytes = self.bytes(len);
                maker.contents(len, &[(0, &bytes)])
            }
        }
    }

    fn sparse(&mut self, maker: &mut Maker) -> Kind {
        let mut at = 0;
        let mut pieces = Vec::new();
        for _ in 0..self.below(12) {
            at += [0, 512, 10_000, 1 << 32][self.below(4) as usize];
            let len = 1 + self.below(9000);
            pieces.push((at, self.bytes(len)));
            at += len;
        }
        let pieces: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let hole = self.below(100_000);
        maker.contents(at + hole, &pieces)
    }

    fn tree(&mut self) -> Tree {
        let mut maker = Maker::new();
        let mut folders = vec![Tree::ROOT];
        let mut files: Vec<NodeId> = Vec::new();
        for _ in 0..self.below(1500) {
            let parent = folders[self.below(folders.len() as u64) as usize];
            let name = self.name();
            if maker.tree.entries(parent).unwrap().contains_key(&name[..]) {
                continue;
            }
            let layer = self.below(3) as u32;
            match self.below(10) {
                0 | 1 => {
                    let meta = self.meta();
                    folders.push(maker.add_in_layer(parent, &name, meta, folder(), layer));
                }
                2 if !files.is_empty() => {
                    let file = files[self.below(files.len() as u64) as usize];
                    maker.link(parent, &name, file);
                }
                _ => {
                    let kind = self.kind(&mut maker);
                    let meta = self.meta();
                    files.push(maker.add_in_layer(parent, &name, meta, kind, layer));
                }
            }
        }
        maker.tree
    }
}

fn seed() -> u64 {
    match std::env::var("SMOLPACK_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1,
    }
}

#[test]
fn random_trees_are_clean_and_come_back() {
    let seed = seed();
    println!("SMOLPACK_TEST_SEED={seed}");
    let mut random = Random(seed);
    for _ in 0..6 {
        let tree = random.tree();
        let size = minimum_size(&tree).unwrap() + random.below(300) * MIB;
        judge(&tree, size);
    }
}

#[test]
fn the_smallest_size_fits_and_a_tree_written_twice_is_the_same() {
    let seed = seed();
    println!("SMOLPACK_TEST_SEED={seed}");
    let tree = Random(seed).tree();
    let size = minimum_size(&tree).unwrap();
    let image = judge(&tree, size);
    assert!(image.bytes() == Image::write(&tree, &options(size)).bytes(), "the bytes differ");
    assert_same(&crate::manifest::of_tree(&tree), &image.manifest());
}
