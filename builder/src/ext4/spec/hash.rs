//! The half-MD4 hash of names that orders large folders (the kernel's `fs/ext4/hash.c`), in its
//! unsigned variant: the superblock says so, so that it is the same on every processor.

/// A name's place in its folder's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::ext4) struct NameHash {
    /// What the index compares. Always even: the lowest bit marks a continued run of equal hashes.
    pub(in crate::ext4) major: u32,
    /// What orders names of equal `major`.
    pub(in crate::ext4) minor: u32,
}

/// The largest value means end of folder; a name that hashes to it takes the one before.
const END_OF_DIRECTORY: u32 = 0x7FFF_FFFF << 1;

/// MD4's initial state, for a seed of zeros.
const MD4_STATE: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// The superblock's hash seed as the hash takes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct HashSeed([u32; 4]);

impl HashSeed {
    /// Reads the superblock's field. All zeros stand for MD4's own initial state.
    pub(in crate::ext4) fn new(seed: &[u8; 16]) -> Self {
        if seed == &[0; 16] {
            return Self(MD4_STATE);
        }
        let (words, _) = seed.as_chunks::<4>();
        Self(std::array::from_fn(|i| u32::from_le_bytes(words[i])))
    }

    /// Hashes a name.
    pub(in crate::ext4) fn hash(self, name: &[u8]) -> NameHash {
        let mut state = self.0;
        let mut rest = name;
        while !rest.is_empty() {
            half_md4(&mut state, &words(rest));
            rest = rest.get(32..).unwrap_or_default();
        }
        let major = match state[1] & !1 {
            END_OF_DIRECTORY => END_OF_DIRECTORY - 2,
            major => major,
        };
        NameHash { major, minor: state[2] }
    }
}

/// The next 32 bytes of a name as words, big-endian, padded with the length of what is left of it.
fn words(rest: &[u8]) -> [u32; 8] {
    let length = rest.len() as u32;
    let pad = length | length << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; 8];
    for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |value, &byte| (value << 8).wrapping_add(u32::from(byte)));
    }
    words
}

/// One step of a round: mixes `input` into `a`.
fn step(a: u32, mixed: u32, input: u32, rotate: u32) -> u32 {
    a.wrapping_add(mixed).wrapping_add(input).rotate_left(rotate)
}

/// Which word, rotated how far, in the order of the steps of each round.
const ROUNDS: [[(usize, u32); 8]; 3] = [
    [(0, 3), (1, 7), (2, 11), (3, 19), (4, 3), (5, 7), (6, 11), (7, 19)],
    [(1, 3), (3, 5), (5, 9), (7, 13), (0, 3), (2, 5), (4, 9), (6, 13)],
    [(3, 3), (7, 9), (2, 11), (6, 15), (1, 3), (5, 9), (0, 11), (4, 15)],
];

/// The cut-down MD4 transformation: 8 words, 3 rounds.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    const CONSTANTS: [u32; 3] = [0, 0x5A82_7999, 0x6ED9_EBA1];
    let [mut a, mut b, mut c, mut d] = *state;
    for (round, steps) in ROUNDS.iter().enumerate() {
        for &(word, rotate) in steps {
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c).wrapping_add((b ^ c) & d),
                _ => b ^ c ^ d,
            };
            let stepped = step(a, mixed, input[word].wrapping_add(CONSTANTS[round]), rotate);
            (a, b, c, d) = (d, stepped, b, c);
        }
    }
    for (word, mixed) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(mixed);
    }
}
