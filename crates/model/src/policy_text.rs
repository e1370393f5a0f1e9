//! Reads network policies as people write them, and says what they should have written.

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::network::{NetworkPolicy, NetworkRule};

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(PolicyOfPeople);
        }
        Ok(match Plain::deserialize(deserializer)? {
            Plain::None => Self::None,
            Plain::Open => Self::Open,
            Plain::Allow(rules) => Self::Allow(rules),
        })
    }
}

/// A policy in formats that do not describe themselves.
#[derive(Deserialize)]
enum Plain {
    None,
    Open,
    Allow(Vec<NetworkRule>),
}

/// Reads a policy as people write it, and says what they should have written.
struct PolicyOfPeople;

impl<'de> Visitor<'de> for PolicyOfPeople {
    type Value = NetworkPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"open\" or { allow = [RULE, ...] }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<NetworkPolicy, E> {
        match text {
            "none" => Ok(NetworkPolicy::None),
            "open" => Ok(NetworkPolicy::Open),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<NetworkPolicy, A::Error> {
        Err(de::Error::custom("a list alone is no policy: write { allow = [RULE, ...] }"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NetworkPolicy, A::Error> {
        let mut rules = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "allow" {
                return Err(de::Error::unknown_field(&key, &["allow"]));
            }
            if rules.replace(map.next_value()?).is_some() {
                return Err(de::Error::duplicate_field("allow"));
            }
        }
        rules.map(NetworkPolicy::Allow).ok_or_else(|| de::Error::missing_field("allow"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_are_no_policy_say_what_to_write() {
        for (text, said) in [
            (r#"{"allow":["a.test"],"x":1}"#, "unknown field `x`, expected `allow`"),
            (r#"{"x":1}"#, "unknown field `x`"),
            ("{}", "missing field `allow`"),
            (r#"{"allow":[],"allow":[]}"#, "duplicate field `allow`"),
            (r#"["a.test"]"#, "write { allow = [RULE, ...] }"),
            (r#""all""#, r#""none", "open" or { allow = [RULE, ...] }"#),
            ("null", "{ allow = [RULE, ...] }"),
        ] {
            let wrong = serde_json::from_str::<NetworkPolicy>(text).unwrap_err().to_string();
            assert!(wrong.contains(said), "{wrong}");
        }
    }

    #[test]
    fn policies_are_read_from_words_and_rules() {
        let read = |text: &str| serde_json::from_str::<NetworkPolicy>(text);
        assert_eq!(read("\"none\"").unwrap(), NetworkPolicy::None);
        assert_eq!(read("\"open\"").unwrap(), NetworkPolicy::Open);
        let policy = read(r#"{"allow":["a.test","*.b.test:443"]}"#).unwrap();
        let rules = policy.rules().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(rules, ["a.test", "*.b.test:443"]);
        let said = read(r#"{"allow":["a.test:0"]}"#).unwrap_err().to_string();
        assert!(said.contains("a.test:0") && said.contains("port"), "{said}");
        assert!(NetworkPolicy::Allow(Vec::new()).is_none(), "an empty list allows nothing");
    }
}
