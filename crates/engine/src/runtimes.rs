//! The runtimes of a node, by the word with which templates choose them.

use std::sync::Arc;

use model::template::RuntimeKind;
use model::{ErrorCode, InstanceId, Refusal};
use runtime::{Runtime, RuntimeError, Sandbox};

/// The runtimes of a node.
#[derive(Clone, Default)]
pub struct Runtimes {
    all: Vec<(RuntimeKind, Arc<dyn Runtime>)>,
}

impl Runtimes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more.
    #[must_use]
    pub fn with(mut self, kind: RuntimeKind, runtime: Arc<dyn Runtime>) -> Self {
        self.all.retain(|(known, _)| *known != kind);
        self.all.push((kind, runtime));
        self
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Runtime>> {
        self.all.iter().map(|(_, runtime)| runtime)
    }

    pub(crate) fn of(&self, kind: &RuntimeKind) -> Result<&Arc<dyn Runtime>, Refusal> {
        self.all.iter().find(|(known, _)| known == kind).map(|(_, runtime)| runtime).ok_or_else(
            || {
                let known: Vec<_> = self.all.iter().map(|(kind, _)| word(kind)).collect();
                let cause = format!(
                    "runtime: {} is not available here; there is {}",
                    word(kind),
                    known.join(", ")
                );
                Refusal::new(ErrorCode::Unsupported, cause)
            },
        )
    }

    /// A sandbox that is alive, in whichever runtime.
    pub(crate) fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        self.iter().find_map(|runtime| runtime.sandbox(instance))
    }

    /// Removes whatever has this label. A label that an earlier run used may be known nowhere.
    pub(crate) async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        if let Some(home) = self.iter().find(|runtime| runtime.sandbox(instance).is_some()) {
            return home.kill(instance).await;
        }
        for runtime in self.iter() {
            runtime.kill(instance).await?;
        }
        Ok(())
    }
}

fn word(kind: &RuntimeKind) -> String {
    match kind {
        RuntimeKind::Native => "native".to_owned(),
        RuntimeKind::Docker => "docker".to_owned(),
        RuntimeKind::Oci(name) => name.clone(),
        RuntimeKind::Fake => "fake".to_owned(),
    }
}
