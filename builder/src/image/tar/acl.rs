//! Access control lists as `star` and GNU tar write them, in text, made into what `getxattr` returns.

/// `struct posix_acl_xattr_header`: version 2, little-endian.
const VERSION: u32 = 2;
/// The identifier of entries that name nobody.
const NOBODY: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Reads entries such as `user::rw-`, `user:bob:r--:1000` or `user:1000:r--`, apart by commas or newlines.
///
/// # Errors
/// Says which part is not understood; a name without a number cannot be resolved here.
pub(super) fn from_text(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8")?;
    let entries = text.split([',', '\n']).map(str::trim).filter(|e| !e.is_empty() && !e.starts_with('#'));
    let mut parsed = entries.map(entry).collect::<Result<Vec<_>, _>>()?;
    // The kernel wants them sorted by tag, then by identifier.
    parsed.sort_unstable_by_key(|(tag, _, id)| (*tag, *id));
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in parsed {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
}

fn entry(text: &str) -> Result<(u16, u16, u32), &'static str> {
    let mut fields = text.split(':').map(str::trim);
    let mut next = || fields.next().unwrap_or_default();
    let (kind, name, permissions, number) = (next(), next(), next(), next());
    let tag = match (kind, name.is_empty()) {
        ("user" | "u", true) => USER_OBJ,
        ("user" | "u", false) => USER,
        ("group" | "g", true) => GROUP_OBJ,
        ("group" | "g", false) => GROUP,
        ("mask" | "m", true) => MASK,
        ("other" | "o", true) => OTHER,
        _ => return Err("not an entry of an access control list"),
    };
    let id = if matches!(tag, USER | GROUP) { identifier(name, number)? } else { NOBODY };
    Ok((tag, bits(permissions)?, id))
}

fn identifier(name: &str, number: &str) -> Result<u32, &'static str> {
    let digits = if number.is_empty() { name } else { number };
    digits.parse().map_err(|_| "a user or group without its number; make the tar with --numeric-owner")
}

fn bits(permissions: &str) -> Result<u16, &'static str> {
    permissions.chars().try_fold(0, |bits, letter| {
        Ok(bits
            | match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err("permissions other than r, w, x and -"),
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_text_gives_the_wire_form() {
        let acl = from_text(b"user::rwx,group::r-x,mask::r-x,other::---,user:bob:r--:1000").unwrap();
        let mut want = vec![2, 0, 0, 0];
        for (tag, bits, id) in
            [(1u8, 7u8, NOBODY), (2, 4, 1000), (4, 5, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY)]
        {
            want.extend([tag, 0, bits, 0]);
            want.extend(id.to_le_bytes());
        }
        assert_eq!(acl, want);
    }

    #[test]
    fn from_text_refuses_names_without_numbers() {
        assert!(from_text(b"user:bob:r--").is_err());
        assert!(from_text(b"user::q").is_err());
        assert!(from_text(b"everyone::r").is_err());
    }
}
