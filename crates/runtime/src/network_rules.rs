//! What of a policy the kernel of a sandbox enforces: addresses that programs dial by number. Names
//! are judged outside. It must never allow an address that no rule names.

use std::net::IpAddr;

use guest_protocol::network::{AddressRule, NetworkRules};
use model::{NetworkPolicy, NetworkRule, Ports, RuleTarget};

/// The part of a policy that is about addresses.
pub(crate) fn of_policy(policy: &NetworkPolicy) -> NetworkRules {
    match policy {
        NetworkPolicy::None => NetworkRules::Addresses(Vec::new()),
        NetworkPolicy::Open => NetworkRules::Open,
        NetworkPolicy::Allow(rules) => {
            NetworkRules::Addresses(rules.iter().flat_map(of_rule).collect())
        }
    }
}

fn of_rule(rule: &NetworkRule) -> Vec<AddressRule> {
    let range = match &rule.target {
        RuleTarget::Addresses(range) => range,
        RuleTarget::Name(_) | RuleTarget::Below(_) => return Vec::new(),
    };
    // Programs cannot dial addresses of IPv6; names may still resolve to them.
    let IpAddr::V4(first) = range.first() else { return Vec::new() };
    let with = |from_port, to_port| AddressRule {
        first: first.octets(),
        bits: range.bits(),
        from_port,
        to_port,
    };
    match rule.ports {
        Ports::Web => vec![with(80, 80), with(443, 443)],
        Ports::Range(from, to) => vec![with(from, to)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_address_rules_reach_the_kernel() {
        let rules = ["a.test", "*.b.test:8443", "10.1.0.0/16:5432", "[fd00::/8]:1", "10.2.0.0/16"];
        let rules = rules.map(|rule| rule.parse().unwrap()).to_vec();
        let rule = |second, from_port, to_port| AddressRule {
            first: [10, second, 0, 0],
            bits: 16,
            from_port,
            to_port,
        };
        assert_eq!(
            of_policy(&NetworkPolicy::Allow(rules)),
            NetworkRules::Addresses(vec![rule(1, 5432, 5432), rule(2, 1, u16::MAX)])
        );
        assert_eq!(of_policy(&NetworkPolicy::None), NetworkRules::Addresses(Vec::new()));
        assert_eq!(of_policy(&NetworkPolicy::Open), NetworkRules::Open);
    }
}
