//! The 512-byte header: fields, numbers, checksum. Offsets are those of POSIX ustar, and of GNU tar
//! where it differs.

/// A header block.
pub(super) const BLOCK: usize = 512;

/// One header, not yet believed.
pub(super) struct Header<'a>(pub(super) &'a [u8; BLOCK]);

/// Which dialect the magic names: decides whether bytes 345.. are a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Ustar,
    Gnu,
    V7,
}

impl<'a> Header<'a> {
    fn field(&self, at: usize, len: usize) -> &'a [u8] {
        &self.0[at..at + len]
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }

    /// Whether the sum in the header is that of its bytes, summed unsigned, or signed as old tars did.
    pub(super) fn checksum_fits(&self) -> bool {
        let Some(stored) = number(self.field(148, 8)) else { return false };
        let bytes = self.0.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { b' ' } else { *b });
        let unsigned: i64 = bytes.clone().map(i64::from).sum();
        let signed: i64 = bytes.map(|b| i64::from(b.cast_signed())).sum();
        stored == unsigned || stored == signed
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self.field(257, 8) {
            b"ustar  \0" => Dialect::Gnu,
            magic if magic.starts_with(b"ustar") => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name, with the ustar prefix in front.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(self.field(0, 100));
        let prefix = match self.dialect() {
            Dialect::Ustar => text(self.field(345, 155)),
            Dialect::Gnu | Dialect::V7 => &[],
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    pub(super) fn mode(&self) -> Option<i64> {
        number(self.field(100, 8))
    }

    pub(super) fn uid(&self) -> Option<i64> {
        number(self.field(108, 8))
    }

    pub(super) fn gid(&self) -> Option<i64> {
        number(self.field(116, 8))
    }

    pub(super) fn size(&self) -> Option<i64> {
        number(self.field(124, 12))
    }

    pub(super) fn mtime(&self) -> Option<i64> {
        number(self.field(136, 12))
    }

    pub(super) fn device_major(&self) -> Option<i64> {
        number(self.field(329, 8))
    }

    pub(super) fn device_minor(&self) -> Option<i64> {
        number(self.field(337, 8))
    }

    /// GNU sparse: the four map entries of the header itself.
    pub(super) fn sparse_map(&self) -> &'a [u8] {
        self.field(386, 96)
    }

    /// GNU sparse: whether blocks with more of the map follow.
    pub(super) fn sparse_extended(&self) -> bool {
        self.0[482] != 0
    }

    /// GNU sparse: the file's real size.
    pub(super) fn sparse_size(&self) -> Option<i64> {
        number(self.field(483, 12))
    }
}

/// A field up to its first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.iter().position(|b| *b == 0).map_or(field, |end| &field[..end])
}

/// A number: octal digits between spaces and NULs, or base-256 (first bit set, two's complement).
/// An empty field is 0. `None` where it is neither, or does not fit.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base256(field),
        _ => octal(field),
    }
}

fn octal(field: &[u8]) -> Option<i64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

fn base256(field: &[u8]) -> Option<i64> {
    let negative = field[0] & 0x40 != 0;
    let first = if negative { field[0] } else { field[0] & 0x7f };
    let start = if negative { -1i128 } else { 0 };
    let value = std::iter::once(&first).chain(&field[1..]).try_fold(start, |value, byte| {
        let next = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        (i64::try_from(next >> 8).is_ok()).then_some(next)
    })?;
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_reads_every_form() {
        for (field, want) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"00000000", Some(0)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"77777777777\0", Some(0o77_777_777_777)),
            (b"\x80\0\0\0\xff\xff\xff\xfe", Some(4_294_967_294)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0", Some(-256)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\x80\x01\0\0\0\0\0\0\0\0\0\0", None),
            (b"00008644", None),
            (b"-0000001", None),
        ] {
            assert_eq!(number(field), want, "{}", field.escape_ascii());
        }
    }
}
