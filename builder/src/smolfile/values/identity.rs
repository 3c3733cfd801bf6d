//! Names of things: images, platforms, users, file modes, and the kernel's command line.

use std::str::FromStr;

use super::{ValueError, text_schema};

/// What `image` says, not yet looked at: a registry reference or a path.
///
/// Which of the two it is depends on the files there are, so that is decided where images are found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImageName(pub(crate) String);

impl FromStr for ImageName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new("the image's name is empty")
                .help("name a registry reference or a path, or leave `image` out for the minimal image"));
        }
        if text.trim() != text || text.contains(char::is_control) {
            return Err(ValueError::new("white space around an image's name, or a control character in it"));
        }
        if text == "-" {
            return Err(ValueError::new("`-` reads an archive from standard input")
                .help("only the command line can say so: `--image -`"));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    ImageName,
    "a string such as \"debian:trixie-slim\"",
    "A registry reference, or the path of an OCI layout, an image archive, a root folder or a root tar.",
    r"^\S([\s\S]*\S)?$",
    "debian:trixie-slim"
);

/// The platform to take out of an image: `linux/amd64`, the one this version can build for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OciPlatform(pub(crate) String);

impl FromStr for OciPlatform {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "linux/amd64" | "linux/x86_64" => Ok(Self("linux/amd64".to_owned())),
            _ if text.starts_with("linux/") && text.split('/').all(|part| !part.is_empty()) => {
                Err(ValueError::new("this version builds machines for x86-64 only")
                    .help("write \"linux/amd64\" or leave the key out"))
            }
            _ => Err(ValueError::new("not a platform a machine can have").help("write \"linux/amd64\"")),
        }
    }
}

text_schema!(
    OciPlatform,
    "the string \"linux/amd64\"",
    "The platform to take out of a multi-platform image. This version builds for x86-64.",
    r"^linux/(amd64|x86_64)$",
    "linux/amd64"
);

/// Who runs a command or owns a file: `name`, `uid`, `name:group`, `uid:gid` and mixtures of them.
///
/// Names are looked up in the image, not here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UserSpec(pub(crate) String);

impl FromStr for UserSpec {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        check_account(user, "user")?;
        group.map_or(Ok(()), |group| check_account(group, "group"))?;
        Ok(Self(text.to_owned()))
    }
}

/// A number the kernel takes as an identity, or a name as `useradd` makes them.
fn check_account(text: &str, what: &str) -> Result<(), ValueError> {
    if text.is_empty() {
        return Err(ValueError::new(format!("the {what} is empty")).help("write `name`, `uid` or `uid:gid`"));
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        // The highest number means "leave as it is" to chown(2).
        return match text.parse::<u32>() {
            Ok(id) if id != u32::MAX => Ok(()),
            _ => Err(ValueError::new(format!("{what} number out of range"))
                .help("numbers go from 0 to 4294967294")),
        };
    }
    let inner = |c: char| c.is_alphanumeric() || "_.-$@".contains(c);
    if text.starts_with('-') || !text.chars().all(inner) {
        return Err(ValueError::new(format!("{text:?} is not a {what}'s name or number"))
            .help("write `name`, `uid` or `uid:gid`"));
    }
    Ok(())
}

text_schema!(
    UserSpec,
    "a string such as \"1000:1000\"",
    "A user as `docker run --user` takes it: name or uid, and optionally `:` and group or gid.",
    r"^[^\s:-][^\s:]*(:[^\s:-][^\s:]*)?$",
    "1000:1000"
);

/// Permission bits of a file, set-user-ID, set-group-ID and sticky included, as four octal digits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileMode(pub(crate) String);

impl FileMode {
    /// The bits, as an octal integer gives them.
    pub(crate) fn from_bits(bits: i128) -> Result<Self, ValueError> {
        match bits {
            0..=0o7777 => Ok(Self(format!("{bits:04o}"))),
            _ => Err(ValueError::new("not permission bits").help(MODE_HELP)),
        }
    }
}

const MODE_HELP: &str = "write it as chmod takes it: \"0755\"";

impl FromStr for FileMode {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let octal = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match i128::from_str_radix(text, 8) {
            Ok(bits) if octal && (3..=4).contains(&text.len()) => Self::from_bits(bits),
            _ => Err(ValueError::new("not three or four octal digits").help(MODE_HELP)),
        }
    }
}

/// Words for the kernel's command line, added to those smolpack gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KernelCmdline(pub(crate) String);

/// x86 Linux keeps 2048 bytes; smolpack's own words need some of them.
const CMDLINE_LIMIT: usize = 1536;

impl FromStr for KernelCmdline {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(bad) = text.chars().find(|c| !(' '..='~').contains(c)) {
            return Err(ValueError::new(format!("a kernel's command line cannot contain {bad:?}"))
                .help("it is one line of printable ASCII"));
        }
        if text.len() > CMDLINE_LIMIT {
            return Err(ValueError::new(format!(
                "{} bytes long; at most {CMDLINE_LIMIT} fit beside smolpack's own words",
                text.len()
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    KernelCmdline,
    "a string such as \"loglevel=4\"",
    "Words added to the guest kernel's command line.",
    r"^[ -~]{0,1536}$",
    "loglevel=4"
);

/// Names a kernel that was imported or fetched before: its version or its digest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KernelReference(pub(crate) String);

impl FromStr for KernelReference {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(ValueError::new("not a kernel's version or digest")
                .help("`smolpack kernel list` shows those there are"));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    KernelReference,
    "a kernel's version or digest",
    "The version or digest of a kernel that `smolpack kernel list` shows.",
    r"^\S+$",
    "6.12.48+deb13-cloud-amd64"
);
