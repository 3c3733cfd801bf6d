//! POSIX ACLs: ext4 stores version 1, system calls and archives carry version 2.
//!
//! Version 2 gives every entry a 32-bit identifier; version 1 leaves it out where it means nothing.
//! Bytes stored in the wire form make every read of the file fail in the kernel.

/// The version of `system.posix_acl_access` as `getxattr` returns it.
const WIRE_VERSION: u32 = 2;
/// The version on the disk.
const DISK_VERSION: u32 = 1;
/// `ACL_USER` and `ACL_GROUP`: the entries that name somebody.
const NAMED: [u16; 2] = [0x02, 0x08];
/// `ACL_USER_OBJ`, `ACL_GROUP_OBJ`, `ACL_MASK`, `ACL_OTHER`.
const UNNAMED: [u16; 4] = [0x01, 0x04, 0x10, 0x20];

/// Turns an ACL as `getxattr` returns it into the form on the disk; `None` where it is no ACL.
pub(in crate::ext4) fn to_disk(wire: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = wire.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != WIRE_VERSION {
        return None;
    }
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if NAMED.contains(&tag) {
            disk.extend_from_slice(entry);
        } else if UNNAMED.contains(&tag) {
            disk.extend_from_slice(&entry[..4]);
        } else {
            return None;
        }
    }
    Some(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_disk_keeps_identifiers_of_named_entries_only() {
        let wire = [
            2, 0, 0, 0, //
            1, 0, 6, 0, 255, 255, 255, 255, //
            2, 0, 4, 0, 0xE8, 3, 0, 0, //
        ];
        let disk = [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0];
        assert_eq!(to_disk(&wire).unwrap(), disk);
    }

    #[test]
    fn to_disk_refuses_what_is_no_acl() {
        for (case, wire) in [
            ("empty", &[][..]),
            ("disk version", &[1, 0, 0, 0]),
            ("cut entry", &[2, 0, 0, 0, 1, 0, 6, 0]),
            ("unknown tag", &[2, 0, 0, 0, 3, 0, 6, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(to_disk(wire), None, "{case}");
        }
    }
}
