//! Who runs a command: names and numbers, looked up in the machine's own passwd and group.

use std::fs;
use std::path::Path;

/// A resolved user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// Numeric user.
    pub(super) uid: u32,
    /// Numeric group.
    pub(super) gid: u32,
    /// Supplementary groups, `gid` not among them.
    pub(super) groups: Vec<u32>,
    /// Home folder; `/` where passwd names none.
    pub(super) home: String,
}

/// Resolves `name`, `uid`, `name:group` or `uid:gid` as `docker run --user` does.
///
/// # Errors
/// Says which name the machine does not know.
pub(super) fn resolve(wanted: &str, root: &Path) -> Result<User, String> {
    let (passwd, group) = (text(&root.join("etc/passwd")), text(&root.join("etc/group")));
    let (name, wanted_group) = match wanted.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (wanted, None),
    };
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.len() >= 6 && (fields[0] == name || name.parse::<u32>().is_ok() && fields[2] == name)
    });
    let uid = match (&entry, name.parse()) {
        (Some(fields), _) => number(fields[2], "/etc/passwd")?,
        (None, Ok(uid)) => uid,
        (None, Err(_)) => return Err(format!("no user {name} in the machine's /etc/passwd")),
    };
    let gid = match (wanted_group, &entry) {
        (Some(text), _) => group_id(text, &group)?,
        (None, Some(fields)) => number(fields[3], "/etc/passwd")?,
        (None, None) => 0,
    };
    let home = entry.as_ref().map(|fields| fields[5]).filter(|home| !home.is_empty()).unwrap_or("/");
    // An explicit group replaces the supplementary ones, as docker has it.
    let groups = match (&entry, wanted_group) {
        (Some(fields), None) => supplementary(fields[0], gid, &group),
        _ => Vec::new(),
    };
    Ok(User { uid, gid, groups, home: home.to_owned() })
}

/// A file's text. A missing one has no entries; in a full name any bytes may stand.
fn text(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

fn group_id(text: &str, group: &str) -> Result<u32, String> {
    let named = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    match named.filter(|fields| fields.len() >= 3).find(|fields| fields[0] == text) {
        Some(fields) => number(fields[2], "/etc/group"),
        None => text.parse().map_err(|_| format!("no group {text} in the machine's /etc/group")),
    }
}

fn supplementary(name: &str, gid: u32, group: &str) -> Vec<u32> {
    let fields = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let of_user =
        fields.filter(|fields| fields.len() >= 4 && fields[3].split(',').any(|member| member == name));
    of_user.filter_map(|fields| fields[2].parse().ok()).filter(|other| *other != gid).collect()
}

fn number(text: &str, file: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{file} of the machine has {text:?} where a number belongs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(
            root.path().join("etc/passwd"),
            b"root:x:0:0:Ren\xe9:/root:/bin/sh\nweb:x:33:33:w:/var/www:/bin/sh\n",
        )
        .unwrap();
        fs::write(root.path().join("etc/group"), "root:x:0:\nwww:x:33:\nlog:x:4:web,x\nssl:x:5:web\n")
            .unwrap();
        root
    }

    #[test]
    fn names_and_numbers_resolve_as_docker_has_it() {
        let root = machine();
        for (wanted, uid, gid, groups, home) in [
            ("web", 33, 33, vec![4, 5], "/var/www"),
            ("33", 33, 33, vec![4, 5], "/var/www"),
            ("web:log", 33, 4, vec![], "/var/www"),
            ("33:7", 33, 7, vec![], "/var/www"),
            ("1000", 1000, 0, vec![], "/"),
            ("1000:ssl", 1000, 5, vec![], "/"),
            ("root", 0, 0, vec![], "/root"),
        ] {
            let expected = User { uid, gid, groups, home: home.to_owned() };
            assert_eq!(resolve(wanted, root.path()), Ok(expected), "{wanted}");
        }
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        let root = machine();
        assert!(resolve("nobody", root.path()).unwrap_err().contains("no user nobody"));
        assert!(resolve("web:nogroup", root.path()).unwrap_err().contains("no group nogroup"));
    }
}
