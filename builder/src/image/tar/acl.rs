//! Access control lists as `star` and GNU tar write them, in text, made into what `getxattr` returns.

/// `struct posix_acl_xattr_header`: version 2, little-endian.
const VERSION: u32 = 2;
/// The identifier of entries that name nobody.
const NOBODY: u32 = u32::MAX;

/// GNU tar writes names where its machine knows them, and only that machine knows what they meant.
const UNKNOWN: &str =
    "a user or group without its number; make the tar with --xattrs --xattrs-include='*' instead of --acls";

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The access list of a text; `None` where it says no more than the mode does, which then is all the
/// kernel keeps.
pub(super) fn access_from_text(text: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let entries = parse(text)?;
    let is_mode = entries.iter().all(|(tag, ..)| matches!(*tag, USER_OBJ | GROUP_OBJ | OTHER));
    Ok((!is_mode).then(|| encode(&entries)))
}

/// The default list of a text.
pub(super) fn default_from_text(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    parse(text).map(|entries| encode(&entries))
}

type Entry = (u16, u16, u32);

/// Reads entries such as `user::rw-`, `user:bob:r--:1000` or `user:1000:r--`, apart by commas or newlines.
///
/// # Errors
/// Says which part is not understood; a name without a number cannot be resolved here.
fn parse(text: &[u8]) -> Result<Vec<Entry>, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8")?;
    let entries = text.split([',', '\n']).map(str::trim).filter(|e| !e.is_empty() && !e.starts_with('#'));
    let mut entries = entries.map(entry).collect::<Result<Vec<_>, _>>()?;
    // The kernel wants them sorted by tag, then by identifier.
    entries.sort_unstable_by_key(|(tag, _, id)| (*tag, *id));
    Ok(entries)
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn entry(text: &str) -> Result<Entry, &'static str> {
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
    digits.parse().map_err(|_| UNKNOWN)
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
    fn a_list_takes_the_wire_form() {
        let text = b"user::rwx,group::r-x,mask::r-x,other::---,user:bob:r--:1000";
        let mut want = vec![2, 0, 0, 0];
        for (tag, bits, id) in
            [(1u8, 7u8, NOBODY), (2, 4, 1000), (4, 5, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY)]
        {
            want.extend([tag, 0, bits, 0]);
            want.extend(id.to_le_bytes());
        }
        assert_eq!(access_from_text(text).unwrap().unwrap(), want);
        assert_eq!(default_from_text(text).unwrap(), want);
    }

    #[test]
    fn an_access_list_that_says_what_the_mode_does_is_none() {
        let text = b"user::rwx\ngroup::r-x\nother::r-x\n";
        assert_eq!(access_from_text(text), Ok(None));
        assert_eq!(default_from_text(text).unwrap().len(), 4 + 3 * 8);
    }

    #[test]
    fn names_without_numbers_and_other_nonsense_are_refused() {
        for text in [&b"user:bob:r--"[..], b"user::q", b"everyone::r", b"user::r--:\xff"] {
            assert!(default_from_text(text).is_err(), "{}", text.escape_ascii());
        }
    }
}
