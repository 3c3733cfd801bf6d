//! Who runs a command or owns a file: names and numbers, looked up in the machine's own passwd and group.

use std::fs;
use std::path::Path;

/// A resolved user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Supplementary groups, `gid` not among them.
    pub groups: Vec<u32>,
    /// Home folder; `/` where passwd names none.
    pub home: String,
}

/// What a machine knows of users.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// From the contents of `/etc/passwd` and `/etc/group`, empty where there are none. In a full name any
    /// bytes may stand.
    #[must_use]
    pub fn new(passwd: &[u8], group: &[u8]) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Self { passwd: text(passwd), group: text(group) }
    }

    /// Those of the system below `root`.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let read = |file| fs::read(root.join(file)).unwrap_or_default();
        Self::new(&read("etc/passwd"), &read("etc/group"))
    }
}

/// Resolves `name`, `uid`, `name:group` or `uid:gid` as `docker run --user` does.
///
/// # Errors
/// Says which name the machine does not know.
pub fn resolve(wanted: &str, accounts: &Accounts) -> Result<User, String> {
    let Accounts { passwd, group } = accounts;
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
        (Some(text), _) => group_id(text, group)?,
        (None, Some(fields)) => number(fields[3], "/etc/passwd")?,
        (None, None) => 0,
    };
    let home = entry.as_ref().map(|fields| fields[5]).filter(|home| !home.is_empty()).unwrap_or("/");
    // An explicit group replaces the supplementary ones, as docker has it.
    let groups = match (&entry, wanted_group) {
        (Some(fields), None) => supplementary(fields[0], gid, group),
        _ => Vec::new(),
    };
    Ok(User { uid, gid, groups, home: home.to_owned() })
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

    fn machine() -> Accounts {
        Accounts::new(
            b"root:x:0:0:Ren\xe9:/root:/bin/sh\nweb:x:33:33:w:/var/www:/bin/sh\n",
            b"root:x:0:\nwww:x:33:\nlog:x:4:web,x\nssl:x:5:web\n",
        )
    }

    #[test]
    fn a_system_without_accounts_knows_numbers_alone() {
        let none = Accounts::of(Path::new("/nowhere"));
        assert_eq!(resolve("7:8", &none).map(|user| (user.uid, user.gid)), Ok((7, 8)));
        assert!(resolve("root", &none).is_err());
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
            assert_eq!(resolve(wanted, &root), Ok(expected), "{wanted}");
        }
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        let root = machine();
        assert!(resolve("nobody", &root).unwrap_err().contains("no user nobody"));
        assert!(resolve("web:nogroup", &root).unwrap_err().contains("no group nogroup"));
    }
}
