//! How the dialect is to behave.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Settings of the dialect of Ash.
#[derive(Clone, PartialEq, Eq)]
pub struct AshSettings {
    /// The template of its sessions.
    pub template: String,
    /// Directories of this machine beneath which agents may be deployed from; none if empty.
    pub agent_roots: Vec<PathBuf>,
    /// Whether a session that its user paused refuses messages until it is resumed, as in Ash.
    pub strict: bool,
    /// Whether the metrics are for everyone, as the documentation of Ash has it.
    pub public_metrics: bool,
    /// A key from the environment, which allows everything.
    pub api_key: Option<String>,
    /// The environment of every session; that of the agent and of the session take precedence.
    pub env: BTreeMap<String, String>,
}

impl Default for AshSettings {
    fn default() -> Self {
        Self {
            template: "ash".to_owned(),
            agent_roots: Vec::new(),
            strict: false,
            public_metrics: false,
            api_key: None,
            env: BTreeMap::new(),
        }
    }
}

impl fmt::Debug for AshSettings {
    /// Keys and values of variables are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AshSettings")
            .field("template", &self.template)
            .field("agent_roots", &self.agent_roots)
            .field("strict", &self.strict)
            .field("public_metrics", &self.public_metrics)
            .field("api_key", &self.api_key.is_some())
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_printed() {
        let settings = AshSettings {
            api_key: Some("hunter2".to_owned()),
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter3".to_owned())]),
            ..AshSettings::default()
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter"), "{shown}");
    }
}
