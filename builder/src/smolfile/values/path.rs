//! Paths: of the host, of the guest, of the build context; and volumes, which join two of them.

use std::str::FromStr;

use super::{ValueError, text_schema};

/// An absolute path in the guest, without `.`, `..`, double or final slashes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuestPath(pub(crate) String);

impl FromStr for GuestPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if !text.starts_with('/') {
            return Err(ValueError::new("a path in the guest must be absolute")
                .help(format!("write {:?}", format!("/{}", text.trim_start_matches("./")))));
        }
        let parts = parts(text)?;
        Ok(Self(format!("/{}", parts.join("/"))))
    }
}

/// The parts of a path, where `..`, NUL and lengths the kernel refuses are errors.
fn parts(text: &str) -> Result<Vec<&str>, ValueError> {
    if text.contains('\0') {
        return Err(ValueError::new("a path cannot contain a NUL character"));
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(ValueError::new("`..` is not allowed here").help("write the path it leads to"));
    }
    if text.len() > 4095 || parts.iter().any(|part| part.len() > 255) {
        return Err(ValueError::new("longer than a path can be")
            .help("Linux takes 255 bytes for one name and 4095 for a whole path"));
    }
    Ok(parts)
}

text_schema!(GuestPath, "an absolute path such as \"/app\"", "An absolute path in the guest.", r"^/", "/app");

/// A path on the host, as written: relative to the Smolfile, absolute, or below `~`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostPath(pub(crate) String);

impl HostPath {
    /// Whether it means the same from every folder.
    pub(crate) fn is_anchored(&self) -> bool {
        self.0.starts_with(['/', '~'])
    }
}

impl FromStr for HostPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(
                ValueError::new("the host's path is empty").help("write `.` for the Smolfile's folder")
            );
        }
        if text.contains('\0') || text.len() > 4095 {
            return Err(ValueError::new("longer than 4095 bytes, or with a NUL character: not a path"));
        }
        if text.starts_with('~') && text != "~" && !text.starts_with("~/") {
            return Err(ValueError::new("only your own home folder can be written with `~`")
                .help("write `~/...` or an absolute path"));
        }
        if text.starts_with('$') {
            return Err(ValueError::new("variables are not expanded in paths")
                .help("write `~/...`, a path relative to the Smolfile, or an absolute one"));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    HostPath,
    "a path on the host",
    "A path on the host: absolute, relative to the Smolfile, or below `~`.",
    r"^[^$]",
    "./kernel"
);

/// A path inside the build context, the Smolfile's folder, without `..`; `.` is the whole of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContextPath(pub(crate) String);

impl FromStr for ContextPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new("the path is empty").help("write `.` for the whole build context"));
        }
        if text.starts_with(['/', '~']) {
            return Err(ValueError::new("only files of the build context can be named here")
                .help("write a path relative to the Smolfile, and keep the file beside it"));
        }
        let parts = parts(text)?;
        Ok(Self(if parts.is_empty() { ".".to_owned() } else { parts.join("/") }))
    }
}

text_schema!(
    ContextPath,
    "a path inside the build context",
    "A path inside the build context, which is the Smolfile's folder.",
    r"^[^/~]",
    "app/"
);

/// A folder or file of the host, seen in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// On the host, as written: relative to the Smolfile, absolute, or below `~`.
    pub host: String,
    /// In the guest: absolute, without `.` and `..`.
    pub guest: String,
    /// The guest may not write.
    pub read_only: bool,
}

/// Where the kernel's own file systems are: nothing may be laid over them or below them.
const KERNEL_TREES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// What a machine cannot run without: these may not be covered, but folders below them may.
const SYSTEM_FOLDERS: [&str; 14] = [
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/run",
    "/sbin",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/sbin",
    "/var",
];

impl FromStr for Volume {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (paths, read_only) = match text.rsplit_once(':') {
            Some((paths, "ro")) => (paths, true),
            Some((paths, "rw")) => (paths, false),
            _ => (text, false),
        };
        // The guest's path is absolute, so a colon inside the host's path does no harm.
        let split = paths.rfind(":/").map(|at| (&paths[..at], &paths[at + 1..]));
        let (host, guest) = split.ok_or_else(|| malformed(paths))?;
        if let Some((_, option)) = guest.split_once(':') {
            return Err(ValueError::new(format!("{option:?} is not an option of a volume"))
                .help("write \":ro\" or nothing after the guest's path"));
        }
        let GuestPath(guest) = guest.parse()?;
        refuse_system_target(&guest)?;
        let HostPath(host) = host.parse()?;
        Ok(Self { host, guest, read_only })
    }
}

fn malformed(paths: &str) -> ValueError {
    let problem = match paths.rsplit_once(':') {
        Some((_, guest)) => format!("{guest:?} is not an absolute path in the guest"),
        None => "not a volume".to_owned(),
    };
    ValueError::new(problem).help("write \"HOST:GUEST\" or \"HOST:GUEST:ro\"")
}

fn refuse_system_target(path: &str) -> Result<(), ValueError> {
    let below =
        |tree: &str| path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if KERNEL_TREES.iter().any(|tree| below(tree)) || SYSTEM_FOLDERS.contains(&path) {
        return Err(ValueError::new(format!("{path} is a system folder of the guest"))
            .help("mount below another folder, such as /mnt or /app"));
    }
    Ok(())
}

text_schema!(
    Volume,
    "a string such as \"./src:/app\"",
    "`HOST:GUEST`, or `HOST:GUEST:ro` to let the guest only read. System folders of the guest are refused.",
    r"^[^$][\s\S]*:/[\s\S]+$",
    "./src:/app:ro"
);
