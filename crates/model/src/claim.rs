//! A claim: a caller's settings that are bound to a warm sandbox at hand-out, so that settings do
//! not need a cold start. Values may be secret: nothing here prints them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::SeedId;
use crate::network::NetworkPolicy;
use crate::secret::{SecretName, SecretUse};

/// Settings of one claim. They apply to processes that start after it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimSettings {
    /// Environment of the processes.
    pub env: BTreeMap<String, String>,
    /// Secrets that it uses beside those of its template; their values are found where they are
    /// applied.
    pub secrets: Vec<SecretUse>,
    /// Values that the caller brings itself. They come before those of its key and of the node.
    pub secret_values: BTreeMap<SecretName, String>,
    /// What the sandbox may reach, within its template's policy; that policy if not given.
    pub network: Option<NetworkPolicy>,
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
            && self.secret_values.is_empty()
            && self.labels.is_empty()
            && self.network.is_none()
            && self.config.is_none()
            && self.seed.is_none()
    }
}

impl fmt::Debug for ClaimSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimSettings")
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("secrets", &self.secrets.len())
            .field("secret_values", &self.secret_values.keys().collect::<Vec<_>>())
            .field("network", &self.network)
            .field("labels", &self.labels)
            .field("config_bytes", &self.config.as_ref().map(|config| config.len()))
            .field("seed", &self.seed)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> SecretName {
        SecretName::new("DB_PASSWORD").unwrap()
    }

    #[test]
    fn values_of_the_environment_are_never_printed() {
        let settings = ClaimSettings {
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]),
            secret_values: BTreeMap::from([(secret(), "hunter2".to_owned())]),
            ..ClaimSettings::default()
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("TOKEN") && shown.contains("DB_PASSWORD"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!settings.is_empty());
        assert!(ClaimSettings::default().is_empty());
    }

    #[test]
    fn any_one_setting_makes_a_claim_not_empty() {
        let base = ClaimSettings::default;
        let one = || BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let value = || BTreeMap::from([(secret(), "b".to_owned())]);
        let env = Some("A".to_owned());
        let used = || SecretUse { secret: secret(), env: env.clone(), file: None, boundary: None };
        for (what, settings) in [
            ("env", ClaimSettings { env: one(), ..base() }),
            ("secrets", ClaimSettings { secrets: vec![used()], ..base() }),
            ("values", ClaimSettings { secret_values: value(), ..base() }),
            ("network", ClaimSettings { network: Some(NetworkPolicy::None), ..base() }),
            ("labels", ClaimSettings { labels: one(), ..base() }),
            ("config", ClaimSettings { config: Some(Arc::from("{}")), ..base() }),
            ("seed", ClaimSettings { seed: Some(SeedId::from_bytes([0; 32])), ..base() }),
        ] {
            assert!(!settings.is_empty(), "{what}");
        }
    }
}
