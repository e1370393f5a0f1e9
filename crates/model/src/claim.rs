//! A claim: a caller's settings that are bound to a warm sandbox at hand-out, so that settings do
//! not need a cold start. Values may be secret: nothing here prints them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::SeedId;

/// Settings of one claim. They apply to processes that start after it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimSettings {
    /// Environment of the processes.
    pub env: BTreeMap<String, String>,
    /// Names of secrets; their values are resolved where they are applied.
    pub secrets: Vec<String>,
    /// What the sandbox may reach.
    pub network: NetworkPolicy,
    /// Labels that the user chose, shown in listings.
    pub labels: BTreeMap<String, String>,
    /// Configuration for the harness of a session, as JSON.
    pub config: Option<Arc<str>>,
    /// The seed archive that a fresh workspace begins with, by its digest.
    pub seed: Option<SeedId>,
}

impl ClaimSettings {
    /// Whether a claim with these settings changes nothing in the sandbox.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty()
            && self.secrets.is_empty()
            && self.labels.is_empty()
            && self.network == NetworkPolicy::None
            && self.config.is_none()
            && self.seed.is_none()
    }
}

impl fmt::Debug for ClaimSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimSettings")
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("secrets", &self.secrets.len())
            .field("network", &self.network)
            .field("labels", &self.labels)
            .field("config_bytes", &self.config.as_ref().map(|config| config.len()))
            .field("seed", &self.seed)
            .finish()
    }
}

/// What a sandbox may reach on the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum NetworkPolicy {
    /// Its own loopback and nothing else.
    #[default]
    None,
    /// Only these `host:port` pairs, through our proxy.
    Allow(Vec<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_environment_are_never_printed() {
        let settings = ClaimSettings {
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]),
            secrets: vec!["DB_PASSWORD".to_owned()],
            ..ClaimSettings::default()
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("TOKEN"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!settings.is_empty());
        assert!(ClaimSettings::default().is_empty());
    }

    #[test]
    fn any_one_setting_makes_a_claim_not_empty() {
        let base = ClaimSettings::default;
        let one = || BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        for (what, settings) in [
            ("env", ClaimSettings { env: one(), ..base() }),
            ("secrets", ClaimSettings { secrets: vec!["s".to_owned()], ..base() }),
            ("network", ClaimSettings { network: NetworkPolicy::Allow(vec![]), ..base() }),
            ("labels", ClaimSettings { labels: one(), ..base() }),
            ("config", ClaimSettings { config: Some(Arc::from("{}")), ..base() }),
            ("seed", ClaimSettings { seed: Some(SeedId::from_bytes([0; 32])), ..base() }),
        ] {
            assert!(!settings.is_empty(), "{what}");
        }
    }
}
