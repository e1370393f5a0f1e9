//! Network policies: what a sandbox may reach, as rules that a template, a claim or a change names.
//! Pure: it compares names, addresses and ports as they are written. It must never resolve a name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::address_range::AddressRange;
use crate::host_name::HostName;

/// What a sandbox may reach on the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum NetworkPolicy {
    /// Its own loopback and nothing else.
    #[default]
    None,
    /// Every public address, by name or by number. Never private, loopback, link-local or metadata
    /// addresses, nor those of the node.
    Open,
    /// What these rules name, and nothing else.
    Allow(Vec<NetworkRule>),
}

/// The most rules of one policy.
pub const NETWORK_RULES_MAX: usize = 256;

/// One rule, written as `api.example.com`, `*.example.org:443`, `db.internal:5432`, `10.1.0.0/16:5432`,
/// `[fd00::/8]:5432`, `files.example.com:8000-8010/http`. A name without a port means 80 and 443; an
/// address without a port means every port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkRule {
    /// Which hosts.
    pub target: RuleTarget,
    /// Which ports.
    pub ports: Ports,
    /// How connections to other ports than 80 and 443 are checked. Only names have it.
    pub check: Option<ConnectionCheck>,
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for NetworkRule {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = "A name or addresses with ports: `api.example.com`, `*.example.org:443`, \
                    `10.1.0.0/16:5432`, `files.example.com:8000-8010/http`.";
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(text))
            .max_length(Some(RULE_BYTES_MAX))
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for NetworkRule {}

/// The hosts of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RuleTarget {
    /// One name.
    Name(HostName),
    /// Every name below this one, and not this one: `*.example.org`.
    Below(HostName),
    /// Addresses.
    Addresses(AddressRange),
}

/// The ports of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// 80 and 443.
    Web,
    /// From the first to the second.
    Range(u16, u16),
}

/// What a connection must prove before bytes pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionCheck {
    /// Its TLS greeting names the host.
    Tls,
    /// The `Host` of every request names the host.
    Http,
}

/// A rule or a name that is not written as it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {problem}")]
pub struct InvalidRule {
    /// What was given, cut if it was long.
    pub text: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

const RULE_BYTES_MAX: usize = 300;

pub(crate) const OTHER_SCRIPT: &str = "a name in another script is written in its `xn--` form: \
                                       münchen.de is xn--mnchen-3ya.de";

pub(crate) fn invalid<T>(text: &str, problem: &'static str) -> Result<T, InvalidRule> {
    let shown: String = text.chars().take(80).collect();
    Err(InvalidRule { text: shown, problem })
}

/// What is wrong with a rule that was written as an address of the web or with something after its host.
fn misunderstood(text: &str) -> Option<&'static str> {
    if text.contains("://") {
        return Some("a rule has no `http://` or `https://`: example.com, example.com:443");
    }
    let (host, after) = text.split_once('/')?;
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if address.parse::<IpAddr>().is_ok() || matches!(after, "tls" | "http") {
        return None;
    }
    // A range in brackets has its slash before its ports.
    if host.starts_with('[') {
        return None;
    }
    Some(if host.contains(':') {
        "after the port only /tls or /http may stand; every rule is for TCP, and UDP is refused"
    } else {
        "a rule names a host and ports, and no path: example.com, example.com:443"
    })
}

impl Ports {
    /// Every port.
    pub const ALL: Self = Self::Range(1, u16::MAX);

    /// Whether a port is among them.
    pub const fn contains(self, port: u16) -> bool {
        match self {
            Self::Web => matches!(port, 80 | 443),
            Self::Range(first, last) => first <= port && port <= last,
        }
    }

    const fn covers(self, other: Self) -> bool {
        match other {
            Self::Web => self.contains(80) && self.contains(443),
            Self::Range(80 | 443, _) if matches!(self, Self::Web) => {
                matches!(other, Self::Range(80, 80) | Self::Range(443, 443))
            }
            Self::Range(first, last) => match self {
                Self::Web => false,
                Self::Range(from, to) => from <= first && last <= to,
            },
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first > 0 && first <= last).then_some(Self::Range(first, last))
    }
}

/// A number of plain digits, without a sign or zeros before it.
pub(crate) fn number(text: &str) -> Option<u16> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

impl NetworkRule {
    /// How a connection to this port is checked.
    pub const fn check_of(&self, port: u16) -> Option<ConnectionCheck> {
        match (self.check, port, &self.target) {
            (Some(check), ..) => Some(check),
            (None, _, RuleTarget::Addresses(_)) => None,
            (None, 80, _) => Some(ConnectionCheck::Http),
            (None, 443, _) => Some(ConnectionCheck::Tls),
            (None, ..) => None,
        }
    }

    /// Whether a name is allowed by it, on any port.
    pub fn names(&self, name: &HostName) -> bool {
        match &self.target {
            RuleTarget::Name(own) => own == name,
            RuleTarget::Below(above) => name.is_below(above),
            RuleTarget::Addresses(_) => false,
        }
    }

    /// Whether it allows everything that another rule allows, and checks as much.
    fn covers(&self, other: &Self) -> bool {
        let targets = match (&self.target, &other.target) {
            (RuleTarget::Name(own), RuleTarget::Name(theirs)) => own == theirs,
            (RuleTarget::Below(above), RuleTarget::Name(theirs)) => theirs.is_below(above),
            (RuleTarget::Below(above), RuleTarget::Below(theirs)) => {
                theirs == above || theirs.is_below(above)
            }
            (RuleTarget::Addresses(own), RuleTarget::Addresses(theirs)) => own.covers(theirs),
            (RuleTarget::Name(_) | RuleTarget::Addresses(_) | RuleTarget::Below(_), _) => false,
        };
        targets
            && self.ports.covers(other.ports)
            && (self.check.is_none() || self.check == other.check)
    }
}

impl FromStr for NetworkRule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        if !text.is_ascii() {
            return invalid(text, OTHER_SCRIPT);
        }
        if text.is_empty() || text.len() > RULE_BYTES_MAX {
            return invalid(text, "a rule has 1 to 300 letters");
        }
        if let Some(problem) = misunderstood(text) {
            return invalid(text, problem);
        }
        let (rest, check) = if let Some(rest) = text.strip_suffix("/tls") {
            (rest, Some(ConnectionCheck::Tls))
        } else if let Some(rest) = text.strip_suffix("/http") {
            (rest, Some(ConnectionCheck::Http))
        } else {
            (text, None)
        };
        let (host, ports) = split_ports(rest);
        let ports = match ports.map(Ports::parse) {
            Some(None) => {
                return invalid(text, "ports are a number from 1 to 65535, or two: 8000-8010");
            }
            Some(Some(ports)) => Some(ports),
            None => None,
        };
        if let Some(range) = addresses(host) {
            if check.is_some() {
                return invalid(text, "only names have /tls or /http");
            }
            let target = RuleTarget::Addresses(range?);
            return Ok(Self { target, ports: ports.unwrap_or(Ports::ALL), check: None });
        }
        if matches!(host, "*" | "*.") {
            return invalid(
                text,
                "`*` alone is not a rule: the policy `open` allows every public address",
            );
        }
        // The whole rule is what its writer looks for.
        let name = |name| HostName::parse(name).or_else(|wrong| invalid(text, wrong.problem));
        let above = host.strip_prefix("*.");
        if above.unwrap_or(host).contains('*') {
            return invalid(
                text,
                "`*` stands once, at the beginning, for any number of whole parts: *.example.org",
            );
        }
        let target = match above {
            Some(above) => RuleTarget::Below(name(above)?),
            None => RuleTarget::Name(name(host)?),
        };
        if check.is_some() && ports.is_none() {
            return invalid(text, "/tls and /http need a port: name:8443/tls");
        }
        Ok(Self { target, ports: ports.unwrap_or(Ports::Web), check })
    }
}

/// Splits `host:ports` and `[v6]:ports`. An address of IPv6 without brackets has no ports.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    if let Some(rest) = text.strip_prefix('[')
        && let Some((host, after)) = rest.split_once(']')
    {
        return match after.strip_prefix(':') {
            Some(ports) => (host, Some(ports)),
            None if after.is_empty() => (host, None),
            None => (text, None),
        };
    }
    match text.split_once(':') {
        Some((host, ports)) if !ports.contains(':') => (host, Some(ports)),
        Some(_) | None => (text, None),
    }
}

/// The range that a host of a rule is, if it looks like one.
fn addresses(host: &str) -> Option<Result<AddressRange, InvalidRule>> {
    let looks = host.contains('/') || host.contains(':') || host.parse::<Ipv4Addr>().is_ok();
    looks.then(|| host.parse())
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = match &self.target {
            RuleTarget::Name(name) => return write_name(f, "", name, self),
            RuleTarget::Below(above) => return write_name(f, "*.", above, self),
            RuleTarget::Addresses(range) => range,
        };
        match (self.ports, open.first()) {
            (Ports::ALL, _) => write!(f, "{open}"),
            (ports, IpAddr::V4(_)) => write!(f, "{open}:{ports}"),
            (ports, IpAddr::V6(_)) => write!(f, "[{open}]:{ports}"),
        }
    }
}

fn write_name(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    name: &HostName,
    rule: &NetworkRule,
) -> fmt::Result {
    write!(f, "{before}{name}")?;
    match rule.ports {
        Ports::Web => {}
        ports @ Ports::Range(..) => write!(f, ":{ports}")?,
    }
    match rule.check {
        None => Ok(()),
        Some(ConnectionCheck::Tls) => f.write_str("/tls"),
        Some(ConnectionCheck::Http) => f.write_str("/http"),
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Web => f.write_str("80,443"),
            Self::Range(first, last) if first == last => write!(f, "{first}"),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl TryFrom<String> for NetworkRule {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Self, InvalidRule> {
        text.parse()
    }
}

impl From<NetworkRule> for String {
    fn from(rule: NetworkRule) -> Self {
        rule.to_string()
    }
}

impl NetworkPolicy {
    /// Whether nothing outside may be reached.
    pub fn is_none(&self) -> bool {
        match self {
            Self::None => true,
            Self::Allow(rules) => rules.is_empty(),
            Self::Open => false,
        }
    }

    /// Its rules; `Open` and `None` have none.
    pub fn rules(&self) -> &[NetworkRule] {
        match self {
            Self::None | Self::Open => &[],
            Self::Allow(rules) => rules,
        }
    }

    /// Whether a name may be reached on a port, as far as names decide it.
    pub fn may_reach(&self, name: &HostName, port: u16) -> bool {
        match self {
            Self::None => false,
            Self::Open => true,
            Self::Allow(rules) => {
                rules.iter().any(|rule| rule.names(name) && rule.ports.contains(port))
            }
        }
    }

    /// The problem with it, if there is one.
    pub fn problem(&self) -> Option<&'static str> {
        (self.rules().len() > NETWORK_RULES_MAX).then_some("at most 256 rules are allowed")
    }

    /// What a sandbox may reach if this is the policy of its template and its claim asks for that: never
    /// more than the template allows, also if the template was changed after the claim.
    #[must_use]
    pub fn within(&self, claimed: Option<&Self>) -> Self {
        match claimed {
            None | Some(Self::Open) => self.clone(),
            Some(Self::None) => Self::None,
            Some(Self::Allow(rules)) => {
                let covered = |rule: &&NetworkRule| self.allows_rule(rule);
                Self::Allow(rules.iter().filter(covered).cloned().collect())
            }
        }
    }

    fn allows_rule(&self, rule: &NetworkRule) -> bool {
        match self {
            Self::None => false,
            Self::Open => is_public_rule(rule),
            Self::Allow(own) => own.iter().any(|one| one.covers(rule)),
        }
    }

    /// The part of a narrower policy that this one does not allow, if there is any.
    pub fn first_beyond(&self, narrower: &Self) -> Option<String> {
        let beyond = |rule: &&NetworkRule| !self.allows_rule(rule);
        match narrower {
            Self::None => None,
            Self::Open => (*self != Self::Open).then(|| "open".to_owned()),
            Self::Allow(rules) => rules.iter().find(beyond).map(ToString::to_string),
        }
    }
}

/// Whether a rule needs no more than `open` allows. An address rule also allows names that resolve
/// into it, so one that is not all public is more.
fn is_public_rule(rule: &NetworkRule) -> bool {
    match &rule.target {
        RuleTarget::Name(_) | RuleTarget::Below(_) => true,
        RuleTarget::Addresses(range) => {
            crate::addresses::special_ranges().all(|special| !special.overlaps(range))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> NetworkRule {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn allow(rules: &[&str]) -> NetworkPolicy {
        NetworkPolicy::Allow(rules.iter().map(|text| rule(text)).collect())
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in [
            "api.example.com",
            "*.example.org:443",
            "db.internal:5432",
            "10.1.0.0/16:5432",
            "10.1.2.3",
            "0.0.0.0/0:443",
            "[fd00::/8]:5432",
            "fd00::/8",
            "files.example.com:8000-8010/http",
            "x.test:8443/tls",
        ] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule("API.Example.com.").to_string(), "api.example.com");
        assert_eq!(rule("a.test").ports, Ports::Web);
        assert_eq!(rule("10.0.0.0/8").ports, Ports::ALL);
    }

    #[test]
    fn rules_that_could_mean_something_else_are_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a.*.test",
            "*a.test",
            "a..test",
            "a.test..",
            "-a.test",
            "a b.test",
            "a.test:0",
            "a.test:65536",
            "a.test:443x",
            "a.test:+443",
            "a.test:20-10",
            "a.test:",
            "a.test/tls",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0.0/8:80/tls",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "a.0x7f",
            "[fd00::1]x",
            "fd00::1%lo",
            "https://a.test",
            "a.test/path",
            "user@a.test",
            "a%2etest",
            "a.test\0.evil",
            "bücher.test",
        ] {
            assert!(text.parse::<NetworkRule>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn refused_rules_are_quoted_whole_with_what_to_write() {
        for (text, said) in [
            ("http://x.com", "no `http://` or `https://`: example.com"),
            ("x.com/path", "and no path: example.com"),
            ("x.com:443/udp", "UDP is refused"),
            ("x.com:443/path", "only /tls or /http"),
            ("*.*.com", "once, at the beginning"),
            ("a.*.com", "once, at the beginning"),
            ("*._!.com", "letters, digits"),
            ("münchen.de", "xn--mnchen-3ya.de"),
            ("10.0.0.0/33", "10.0.0.0/33"),
            ("[fd00::/8]:x", "ports are"),
            ("x.com/tls", "need a port"),
        ] {
            let wrong = text.parse::<NetworkRule>().unwrap_err();
            assert_eq!(wrong.text, text);
            assert!(wrong.to_string().contains(said), "{wrong}");
        }
    }

    #[test]
    fn names_below_a_name_are_not_the_name_and_not_look_alikes() {
        let below = rule("*.wild.test");
        let name = |text| HostName::parse(text).unwrap();
        assert!(below.names(&name("a.wild.test")) && below.names(&name("a.b.wild.test")));
        for other in ["wild.test", "evilwild.test", "wild.test.evil"] {
            assert!(!below.names(&name(other)), "{other}");
        }
    }

    #[test]
    fn a_claim_is_narrower_than_its_template_or_refused() {
        let template =
            allow(&["*.a.test", "b.test:1000-2000", "10.0.0.0/8:5432", "c.test:90/http"]);
        for narrower in [
            NetworkPolicy::None,
            allow(&[]),
            allow(&["x.a.test:443"]),
            allow(&["*.y.a.test"]),
            allow(&["b.test:1500"]),
            allow(&["10.1.0.0/16:5432"]),
            allow(&["c.test:90/http"]),
        ] {
            assert_eq!(template.first_beyond(&narrower), None, "{narrower:?}");
        }
        for (wider, named) in [
            (NetworkPolicy::Open, "open"),
            (allow(&["a.test"]), "a.test"),
            (allow(&["x.a.test:22"]), "x.a.test:22"),
            (allow(&["x.a.test:443", "b.test:999-1500"]), "b.test:999-1500"),
            (allow(&["10.0.0.0/7:5432"]), "10.0.0.0/7:5432"),
            (allow(&["10.1.0.0/16"]), "10.1.0.0/16"),
            (allow(&["c.test:90"]), "c.test:90"),
            (allow(&["*.test:443"]), "*.test:443"),
        ] {
            assert_eq!(template.first_beyond(&wider).as_deref(), Some(named));
        }
        let claimed = allow(&["x.a.test:443", "d.test"]);
        assert_eq!(template.within(Some(&claimed)), allow(&["x.a.test:443"]));
        assert_eq!(template.within(Some(&NetworkPolicy::Open)), template);
        assert_eq!(template.within(None), template);
        let open = NetworkPolicy::Open;
        assert_eq!(open.first_beyond(&allow(&["db.internal:5432", "8.8.8.0/24"])), None);
        assert!(open.first_beyond(&allow(&["10.0.0.0/8"])).is_some());
        assert!(open.first_beyond(&allow(&["0.0.0.0/0"])).is_some());
        assert!(NetworkPolicy::None.first_beyond(&allow(&["a.test"])).is_some());
    }
}
