//! The policy of a sandbox, ready to judge connections: by name, by number, and what a name resolved
//! to. Pure: it must never resolve a name, and never allow what no rule names.

use std::net::IpAddr;
use std::sync::Arc;

use model::addresses::{is_public, special_ranges, unwrapped};
use model::{AddressRange, ConnectionCheck, HostName, NetworkPolicy, NetworkRule, RuleTarget};

use serde::{Deserialize, Serialize};

use crate::node_addresses::NodeAddresses;

/// What a sandbox may reach, as the server says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// What it may reach.
    pub policy: NetworkPolicy,
    /// What its template allows. An address must be allowed by both: a rule about a part of a range
    /// never means more than the rule about the whole range.
    pub template: NetworkPolicy,
}

impl From<NetworkPolicy> for Reach {
    fn from(policy: NetworkPolicy) -> Self {
        Self { template: policy.clone(), policy }
    }
}

/// A policy within that of a template, ready to judge.
#[derive(Debug)]
pub(crate) struct Policy {
    own: Allowed,
    template: Allowed,
}

impl Policy {
    /// Prepares a policy.
    pub(crate) fn new(reach: &Reach) -> Self {
        Self { own: Allowed::new(&reach.policy), template: Allowed::new(&reach.template) }
    }

    /// Whether a name is answered: it is allowed on some port.
    pub(crate) fn resolves(&self, name: &HostName) -> bool {
        self.own.resolves(name)
    }

    /// The rule by which a name may be reached on a port.
    pub(crate) fn grants_name(&self, name: &HostName, port: u16) -> Option<Granted> {
        self.own.grants_name(name, port)
    }

    /// The rule by which an address may be dialled by number.
    pub(crate) fn grants_address(
        &self,
        address: IpAddr,
        port: u16,
        node: &NodeAddresses,
    ) -> Option<Granted> {
        self.template.grants_address(address, port, node)?;
        self.own.grants_address(address, port, node)
    }

    /// Whether a connection to a name that is allowed may go to this address, which the name resolved
    /// to: a public one, or one that a rule names.
    pub(crate) fn admits_resolved(&self, address: IpAddr, port: u16, node: &NodeAddresses) -> bool {
        self.template.admits_resolved(address, port, node)
            && self.own.admits_resolved(address, port, node)
    }
}

/// One policy, ready to judge.
#[derive(Debug)]
enum Allowed {
    /// Nothing outside.
    None,
    /// Every public address.
    Open,
    /// What these rules name.
    Allow(Vec<Rule>),
}

/// A rule and its text.
#[derive(Debug)]
struct Rule {
    rule: NetworkRule,
    text: Arc<str>,
}

/// Why a connection is allowed, and how it is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The rule as written, or `open`.
    pub rule: Arc<str>,
    /// What the connection must prove before bytes pass.
    pub check: Option<ConnectionCheck>,
}

impl Allowed {
    /// Prepares a policy.
    fn new(policy: &NetworkPolicy) -> Self {
        match policy {
            NetworkPolicy::None => Self::None,
            NetworkPolicy::Open => Self::Open,
            NetworkPolicy::Allow(rules) => {
                let rule =
                    |rule: &NetworkRule| Rule { rule: rule.clone(), text: rule.to_string().into() };
                Self::Allow(rules.iter().map(rule).collect())
            }
        }
    }

    fn resolves(&self, name: &HostName) -> bool {
        match self {
            Self::None => false,
            Self::Open => true,
            Self::Allow(rules) => rules.iter().any(|one| one.rule.names(name)),
        }
    }

    /// Where several allow it, one that checks the
    /// connection goes before one that does not, and then the first counts.
    fn grants_name(&self, name: &HostName, port: u16) -> Option<Granted> {
        let rules = match self {
            Self::None => return None,
            Self::Open => return Some(open()),
            Self::Allow(rules) => rules,
        };
        let fits = |one: &&Rule| one.rule.names(name) && one.rule.ports.contains(port);
        let unchecked = |one: &&Rule| one.rule.check_of(port).is_none();
        let one = rules.iter().filter(fits).min_by_key(unchecked)?;
        Some(Granted { rule: one.text.clone(), check: one.rule.check_of(port) })
    }

    fn grants_address(&self, address: IpAddr, port: u16, node: &NodeAddresses) -> Option<Granted> {
        match self {
            Self::None => None,
            Self::Open => is_ordinary(address, node).then(open),
            Self::Allow(rules) => {
                let address = unmapped(address);
                let fits = |one: &&Rule| {
                    one.rule.ports.contains(port)
                        && range_of(&one.rule).is_some_and(|range| means(&range, address, node))
                };
                let one = rules.iter().find(fits)?;
                Some(Granted { rule: one.text.clone(), check: None })
            }
        }
    }

    fn admits_resolved(&self, address: IpAddr, port: u16, node: &NodeAddresses) -> bool {
        match self {
            Self::None => false,
            Self::Open => is_ordinary(address, node),
            Self::Allow(_) => {
                is_ordinary(address, node) || self.grants_address(address, port, node).is_some()
            }
        }
    }
}

fn open() -> Granted {
    Granted { rule: "open".into(), check: None }
}

fn is_ordinary(address: IpAddr, node: &NodeAddresses) -> bool {
    is_public(address) && !node.contains(address)
}

fn range_of(rule: &NetworkRule) -> Option<AddressRange> {
    match &rule.target {
        RuleTarget::Addresses(range) => Some(*range),
        RuleTarget::Name(_) | RuleTarget::Below(_) => None,
    }
}

/// Whether a range means an address. A wide range does not mean the special addresses that lie in it:
/// `0.0.0.0/0` is not the metadata service, and `10.0.0.0/8` is not the node. They need a range that
/// lies among them, and the node needs its address alone.
fn means(range: &AddressRange, address: IpAddr, node: &NodeAddresses) -> bool {
    let whole = if range.first().is_ipv4() { 32 } else { 128 };
    if !range.contains(address) {
        return false;
    }
    if range.bits() == whole {
        return true;
    }
    let reached = unwrapped(address);
    let among_special = special_ranges()
        .filter(|special| special.contains(reached))
        .all(|special| special.covers(range));
    among_special && !node.contains(address)
}

/// An IPv4 address that is written as one of IPv6 is dialled as what it is.
fn unmapped(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &[&str]) -> Policy {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        Policy::new(&NetworkPolicy::Allow(rules).into())
    }

    fn usual() -> Policy {
        policy(&["api.shoal.test:443", "*.wild.test:443", "http.shoal.test:80"])
    }

    fn node() -> NodeAddresses {
        NodeAddresses::new(["8.8.4.4", "10.0.0.5", "2001:4860:4860::8844"].map(ip))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    fn by_name(
        policy: &Policy,
        text: &str,
        port: u16,
    ) -> Option<(String, Option<ConnectionCheck>)> {
        let granted = policy.grants_name(&name(text), port)?;
        Some((granted.rule.to_string(), granted.check))
    }

    fn by_address(policy: &Policy, text: &str, port: u16) -> Option<String> {
        let granted = policy.grants_address(ip(text), port, &node())?;
        assert_eq!(granted.check, None);
        Some(granted.rule.to_string())
    }

    fn admits(policy: &Policy, text: &str, port: u16) -> bool {
        policy.admits_resolved(ip(text), port, &node())
    }

    #[test]
    fn a_part_of_a_range_never_means_more_than_the_whole_range_of_the_template() {
        let read = |rules: &[&str]| {
            NetworkPolicy::Allow(rules.iter().map(|rule| rule.parse().unwrap()).collect())
        };
        for (template, claim, address) in [
            (read(&["10.0.0.0/8"]), "10.0.0.5", "10.0.0.5"),
            (read(&["0.0.0.0/0"]), "169.254.169.254", "169.254.169.254"),
            (read(&["0.0.0.0/0"]), "169.254.0.0/16", "169.254.169.254"),
            (NetworkPolicy::Open, "8.8.4.4", "8.8.4.4"),
        ] {
            let reach = Reach { policy: read(&[claim]), template };
            let policy = Policy::new(&reach);
            assert_eq!(by_address(&policy, address, 443), None, "{reach:?}");
            assert!(!admits(&policy, address, 443), "{reach:?}");
        }
        let reach = Reach { policy: read(&["10.0.0.6"]), template: read(&["10.0.0.0/8"]) };
        assert!(by_address(&Policy::new(&reach), "10.0.0.6", 443).is_some(), "it is not the node");
    }

    /// Addresses that only a rule about them allows.
    const SPECIAL: &[&str] = &[
        "0.0.0.0",
        "10.1.2.3",
        "100.100.100.200",
        "127.0.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.5.6",
        "198.19.255.255",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:169.254.169.254",
        "::ffff:0:a9fe:a9fe",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "2002:a9fe:a9fe::",
        "2001:0::1",
        "fd00:ec2::254",
        "fe80::1",
        "ff02::1",
        // The node, by all its addresses.
        "8.8.4.4",
        "::ffff:8.8.4.4",
        "64:ff9b::8.8.4.4",
        "10.0.0.5",
        "2001:4860:4860::8844",
    ];

    #[test]
    fn names_are_allowed_as_the_rules_say() {
        let policy = usual();
        let tls = Some(ConnectionCheck::Tls);
        let rule = "api.shoal.test:443".to_owned();
        assert_eq!(by_name(&policy, "api.shoal.test", 443), Some((rule.clone(), tls)));
        assert_eq!(by_name(&policy, "API.Shoal.Test.", 443), Some((rule, tls)));
        let wild = Some(("*.wild.test:443".to_owned(), tls));
        assert_eq!(by_name(&policy, "a.wild.test", 443), wild);
        assert_eq!(by_name(&policy, "a.b.wild.test", 443), wild);
        let http = ("http.shoal.test:80".to_owned(), Some(ConnectionCheck::Http));
        assert_eq!(by_name(&policy, "http.shoal.test", 80), Some(http));
        for (case, text, port) in [
            ("another port", "api.shoal.test", 80),
            ("port 0", "api.shoal.test", 0),
            ("the largest port", "api.shoal.test", 65535),
            ("a name below", "x.api.shoal.test", 443),
            ("a name above", "shoal.test", 443),
            ("the apex of a wildcard", "wild.test", 443),
            ("a name that ends like a wildcard", "evilwild.test", 443),
            ("a name that begins like a wildcard", "wild.test.evil", 443),
            ("a name within", "a.wild.test.evil", 443),
            ("an underscore for a dot", "a_wild.test", 443),
            ("the form of another script", "xn--pi-7kc.shoal.test", 443),
            ("the other's port", "http.shoal.test", 443),
            ("no name of a rule", "evil.test", 443),
            ("localhost", "localhost", 443),
        ] {
            assert_eq!(by_name(&policy, text, port), None, "{case}");
        }
    }

    #[test]
    fn only_names_that_may_be_reached_are_answered() {
        let policy = usual();
        for text in ["api.shoal.test", "http.shoal.test", "a.wild.test", "A.B.WILD.test"] {
            assert!(policy.resolves(&name(text)), "{text}");
        }
        for text in ["wild.test", "evilwild.test", "wild.test.evil", "shoal.test", "localhost"] {
            assert!(!policy.resolves(&name(text)), "{text}");
        }
        let addresses = self::policy(&["10.1.0.0/16", "0.0.0.0/0"]);
        assert!(!addresses.resolves(&name("api.shoal.test")));
        assert_eq!(by_name(&addresses, "api.shoal.test", 443), None);
    }

    #[test]
    fn an_empty_list_and_none_allow_nothing() {
        for policy in [Policy::new(&NetworkPolicy::None.into()), policy(&[])] {
            assert!(!policy.resolves(&name("api.shoal.test")));
            assert_eq!(by_name(&policy, "api.shoal.test", 443), None);
            assert_eq!(by_address(&policy, "1.2.3.4", 443), None);
        }
        assert!(!admits(&Policy::new(&NetworkPolicy::None.into()), "1.2.3.4", 443));
    }

    #[test]
    fn open_allows_public_addresses_only() {
        let open = Policy::new(&NetworkPolicy::Open.into());
        assert!(open.resolves(&name("anything.test")));
        let granted = Some(("open".to_owned(), None));
        assert_eq!(by_name(&open, "anything.test", 25), granted);
        for public in ["1.2.3.4", "2606:4700::1111", "::ffff:1.2.3.4"] {
            assert_eq!(by_address(&open, public, 443).as_deref(), Some("open"), "{public}");
            assert!(admits(&open, public, 443));
        }
        for special in SPECIAL {
            assert_eq!(by_address(&open, special, 443), None, "{special}");
            assert!(!admits(&open, special, 443), "{special}");
        }
    }

    #[test]
    fn rules_for_names_allow_no_address_by_number() {
        for policy in [usual(), policy(&["api.shoal.test:1-65535"])] {
            for address in SPECIAL.iter().chain(&["1.2.3.4", "2606:4700::1111"]) {
                assert_eq!(by_address(&policy, address, 443), None, "{address}");
            }
        }
    }

    #[test]
    fn a_name_leads_to_public_addresses_only() {
        let policy = usual();
        assert!(admits(&policy, "1.2.3.4", 443) && admits(&policy, "2606:4700::1111", 443));
        for special in SPECIAL {
            assert!(!admits(&policy, special, 443), "{special}");
        }
    }

    #[test]
    fn a_name_leads_to_private_addresses_that_a_rule_names() {
        let policy = policy(&["db.internal:5432", "10.1.0.0/16:5432", "fd00::/8"]);
        assert!(admits(&policy, "10.1.2.3", 5432) && admits(&policy, "fd00::1", 5432));
        assert!(!admits(&policy, "10.1.2.3", 443), "another port");
        assert!(!admits(&policy, "10.2.0.0", 5432), "beside the range");
    }

    #[test]
    fn addresses_are_allowed_as_the_rules_say() {
        let policy = policy(&["10.1.0.0/16:8000-8100", "1.2.3.4:443", "[fd00::/8]:5432"]);
        for (text, port, expected) in [
            ("10.1.0.0", 8000, true),
            ("10.1.255.255", 8100, true),
            ("::ffff:10.1.2.3", 8005, true),
            ("10.1.2.3", 8101, false),
            ("10.1.2.3", 7999, false),
            ("10.0.255.255", 8000, false),
            ("10.2.0.0", 8000, false),
            ("64:ff9b::10.1.2.3", 8005, false),
            ("1.2.3.4", 443, true),
            ("::ffff:1.2.3.4", 443, true),
            ("1.2.3.4", 80, false),
            ("1.2.3.5", 443, false),
            ("fd12::1", 5432, true),
            ("fc00::1", 5432, false),
        ] {
            assert_eq!(by_address(&policy, text, port).is_some(), expected, "{text} {port}");
        }
        assert_eq!(by_address(&policy, "10.1.2.3", 8005).unwrap(), "10.1.0.0/16:8000-8100");
    }

    #[test]
    fn a_wide_rule_does_not_mean_special_addresses_within() {
        let all = policy(&["0.0.0.0/0", "::/0"]);
        assert!(by_address(&all, "1.2.3.4", 443).is_some());
        assert!(by_address(&all, "2606:4700::1111", 443).is_some());
        for special in SPECIAL {
            assert_eq!(by_address(&all, special, 443), None, "{special}");
            assert!(!admits(&all, special, 443), "{special}");
        }
        // The node is none of the private addresses around it.
        let private = policy(&["10.0.0.0/8", "169.254.0.0/16", "127.0.0.0/8"]);
        for (text, expected) in [
            ("10.0.0.4", true),
            ("10.0.0.5", false),
            ("169.254.169.254", true),
            ("127.0.0.1", false),
        ] {
            assert_eq!(by_address(&private, text, 443).is_some(), expected, "{text}");
        }
    }

    #[test]
    fn a_rule_that_is_one_address_means_it_whatever_it_is() {
        for text in ["10.0.0.5", "8.8.4.4", "169.254.169.254", "127.0.0.1", "168.63.129.16"] {
            assert!(by_address(&policy(&[text]), text, 443).is_some(), "{text}");
            let mapped = format!("::ffff:{text}");
            assert!(by_address(&policy(&[text]), &mapped, 443).is_some(), "{mapped}");
        }
        for text in ["::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2001:4860:4860::8844"] {
            assert!(by_address(&policy(&[text]), text, 443).is_some(), "{text}");
        }
    }

    #[test]
    fn a_rule_that_checks_goes_before_one_that_does_not() {
        let policy =
            policy(&["*.wild.test:8000-9000", "a.wild.test:8443/tls", "a.wild.test:8443/http"]);
        let tls = ("a.wild.test:8443/tls".to_owned(), Some(ConnectionCheck::Tls));
        assert_eq!(by_name(&policy, "a.wild.test", 8443), Some(tls));
        let unchecked = ("*.wild.test:8000-9000".to_owned(), None);
        assert_eq!(by_name(&policy, "b.wild.test", 8443), Some(unchecked));
    }

    #[test]
    fn a_name_without_a_port_means_80_and_443_and_both_are_checked() {
        let policy = policy(&["api.shoal.test"]);
        let check = |port| by_name(&policy, "api.shoal.test", port).map(|(_, check)| check);
        assert_eq!(check(80), Some(Some(ConnectionCheck::Http)));
        assert_eq!(check(443), Some(Some(ConnectionCheck::Tls)));
        assert_eq!(check(8080), None);
    }
}
