//! What a harness learns about its session.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use model::{Generation, SandboxId, SessionId};

/// The session of a harness.
#[derive(Clone, PartialEq, Eq)]
pub struct Binding {
    /// Which.
    pub session: SessionId,
    /// The sandbox, as its user knows it.
    pub sandbox: SandboxId,
    /// The generation of the sandbox.
    pub generation: Generation,
    /// Whether the session had a sandbox before.
    pub resumed: bool,
    /// The session's environment.
    pub env: BTreeMap<String, String>,
    /// The session's configuration: a JSON object.
    pub config: Option<Arc<str>>,
}

impl fmt::Debug for Binding {
    /// Values of the environment and the configuration may be secret: only names and sizes show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding")
            .field("session", &self.session)
            .field("sandbox", &self.sandbox)
            .field("generation", &self.generation)
            .field("resumed", &self.resumed)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("config_bytes", &self.config.as_ref().map(|config| config.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_binding_are_never_printed() {
        let binding = Binding {
            session: SessionId::NIL,
            sandbox: SandboxId::NIL,
            generation: Generation(1),
            resumed: false,
            env: BTreeMap::from([("KEY".to_owned(), "hunter2".to_owned())]),
            config: Some(Arc::from("{\"a\":\"hunter2\"}")),
        };
        let shown = format!("{binding:?}");
        assert!(shown.contains("KEY") && !shown.contains("hunter2"), "{shown}");
    }
}
