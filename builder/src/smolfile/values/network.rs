//! Ports, host names and address ranges.

use std::net::IpAddr;
use std::str::FromStr;

use super::{ValueError, text_schema};

/// A port of the host that leads into the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The address of the host to listen on; the runner's default where absent.
    pub ip: Option<IpAddr>,
    /// The host's port.
    pub host: u16,
    /// The guest's port.
    pub guest: u16,
    /// UDP rather than TCP.
    pub udp: bool,
}

impl Port {
    /// Whether both would listen on the same port of the host.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        let any = |ip: Option<IpAddr>| ip.is_none_or(|ip| ip.is_unspecified());
        self.host == other.host
            && self.udp == other.udp
            && (self.ip == other.ip || any(self.ip) || any(other.ip))
    }
}

const PORT_HELP: &str = "write \"HOST:GUEST\", \"PORT\" or \"IP:HOST:GUEST\", with \"/udp\" for UDP";

/// A port's number, 1 to 65535.
pub(crate) fn port_number(number: i128) -> Result<u16, ValueError> {
    match u16::try_from(number) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(ValueError::new(format!("{number} is not a port")).help("ports go from 1 to 65535")),
    }
}

fn port_text(text: &str) -> Result<u16, ValueError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => port_number(number),
        _ => Err(ValueError::new(format!("{text:?} is not a port")).help(PORT_HELP)),
    }
}

impl FromStr for Port {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (ports, udp) = split_protocol(text)?;
        let (ip, ports) = split_address(ports)?;
        match *ports.split(':').collect::<Vec<_>>() {
            [both] if ip.is_none() => {
                let both = port_text(both)?;
                Ok(Self { ip, host: both, guest: both, udp })
            }
            [host, guest] => Ok(Self { ip, host: port_text(host)?, guest: port_text(guest)?, udp }),
            _ => Err(ValueError::new("not a port mapping").help(PORT_HELP)),
        }
    }
}

/// Takes the protocol off the end; true is UDP.
fn split_protocol(text: &str) -> Result<(&str, bool), ValueError> {
    match text.split_once('/') {
        None => Ok((text, false)),
        Some((ports, "tcp")) => Ok((ports, false)),
        Some((ports, "udp")) => Ok((ports, true)),
        Some((_, other)) => {
            Err(ValueError::new(format!("{other:?} is not a protocol")).help("write \"/tcp\" or \"/udp\""))
        }
    }
}

/// Takes the address off the front: an IPv4 address, or an IPv6 address in brackets.
fn split_address(text: &str) -> Result<(Option<IpAddr>, &str), ValueError> {
    let split = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None if text.matches(':').count() == 2 => text.split_once(':'),
        None => return Ok((None, text)),
    };
    let (address, ports) = split.ok_or_else(|| ValueError::new("not a port mapping").help(PORT_HELP))?;
    match address.parse() {
        Ok(ip) => Ok((Some(ip), ports)),
        Err(_) => Err(ValueError::new(format!("{address:?} is not an IP address")).help(PORT_HELP)),
    }
}

/// A host's name in lower case, without a final dot; a leading `*.` stands for all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

impl FromStr for HostName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let literal = name.strip_prefix("*.").unwrap_or(name);
        if let Some(error) = not_a_name(literal) {
            return Err(error);
        }
        let label = |l: &str| {
            (1..=63).contains(&l.len())
                && !l.starts_with('-')
                && !l.ends_with('-')
                && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if name.len() > 253 || !literal.split('.').all(label) {
            return Err(ValueError::new(format!("{text:?} is not a host name")).help(
                "a name has labels of letters, digits and `-` with dots between; write an international \
                 name in its xn-- form",
            ));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

/// The things that people write where a bare name belongs.
fn not_a_name(text: &str) -> Option<ValueError> {
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', ':']).next().unwrap_or(rest);
        return Some(ValueError::new("a URL, not a host name").help(format!("write {host:?}")));
    }
    if text.contains('*') {
        return Some(
            ValueError::new("a `*` can only stand for the first labels").help("write \"*.example.com\""),
        );
    }
    if text.contains('/') {
        return Some(ValueError::new("not a host name").help("address ranges go to `allow_cidrs`"));
    }
    if text.contains(':') {
        return Some(
            ValueError::new("a host name without a port is expected")
                .help("an allowed host may be reached on every port; IPv6 addresses go to `allow_cidrs`"),
        );
    }
    None
}

text_schema!(
    HostName,
    "a host name such as \"pypi.org\"",
    "A host's name, without scheme, port or path; `*.example.com` is all below example.com.",
    r"^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$",
    "pypi.org"
);

/// A range of addresses as `ADDRESS/PREFIX`, with the bits beyond the prefix cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cidr(pub String);

impl FromStr for Cidr {
    type Err = ValueError;

    /// A range, or a single address. The peer takes `10.1.2.3/8` for `10.0.0.0/8`, so that is no error.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let ip: IpAddr = address
            .parse()
            .map_err(|_| ValueError::new(format!("{address:?} is not an IP address")).help(CIDR_HELP))?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let length = prefix.map_or(Ok(longest), |prefix| prefix_length(prefix, longest))?;
        Ok(Self(format!("{}/{length}", network_of(ip, length))))
    }
}

const CIDR_HELP: &str = "write a range or an address, such as \"10.0.0.0/8\", \"1.1.1.1\" or \"fd00::/8\"";

fn prefix_length(text: &str, longest: u32) -> Result<u32, ValueError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(length) if digits && length <= longest => Ok(length),
        _ => {
            let problem = format!("{text:?} is not a prefix length from 0 to {longest}");
            Err(ValueError::new(problem).help(CIDR_HELP))
        }
    }
}

/// The range's first address: that of all spellings, so that one range has one name.
fn network_of(ip: IpAddr, length: u32) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

text_schema!(
    Cidr,
    "an address range such as \"10.0.0.0/8\"",
    "An IPv4 or IPv6 range, or a single address.",
    r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$",
    "10.0.0.0/8"
);

/// What a service speaks, such as `http`; information only.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServiceProtocol(pub(crate) String);

impl FromStr for ServiceProtocol {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"+-./".contains(&b);
        if text.is_empty() || text.len() > 32 || !text.bytes().all(allowed) {
            return Err(ValueError::new("not a protocol's name").help("write \"http\" or \"tcp\""));
        }
        Ok(Self(text.to_owned()))
    }
}

text_schema!(
    ServiceProtocol,
    "a string such as \"http\"",
    "What the service speaks.",
    r"^[A-Za-z0-9+./-]{1,32}$",
    "http"
);
