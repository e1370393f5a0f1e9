//! The runtimes of a node, by the name with which templates choose them.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::placing::in_memory_only;
use model::template::RuntimeKind;
use model::{ErrorCode, InstanceId, Refusal};
use runtime::{Runtime, RuntimeError, Sandbox};

/// The runtimes of a node.
#[derive(Clone, Default)]
pub struct Runtimes {
    all: Vec<(RuntimeKind, Arc<dyn Runtime>)>,
    /// Runtimes that are not available, and why.
    missing: Vec<(RuntimeKind, String)>,
    /// Runtimes whose trial of a workspace on disk failed, and why.
    without_disk: Vec<(RuntimeKind, String)>,
}

impl Runtimes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a runtime.
    #[must_use]
    pub fn with(mut self, kind: RuntimeKind, runtime: Arc<dyn Runtime>) -> Self {
        self.all.retain(|(known, _)| *known != kind);
        self.all.push((kind, runtime));
        self
    }

    /// Adds a runtime that is not available; requests for it are refused with the reason.
    #[must_use]
    pub fn without(mut self, kind: RuntimeKind, why: impl Into<String>) -> Self {
        self.missing.push((kind, why.into()));
        self
    }

    /// Notes that the trial of a workspace on disk failed in a runtime: templates that leave the
    /// kind of workspace open get one in memory.
    #[must_use]
    pub fn without_disk(mut self, kind: RuntimeKind, why: impl Into<String>) -> Self {
        self.without_disk.push((kind, why.into()));
        self
    }

    /// The runtimes whose trial of workspaces on disk failed.
    pub(crate) fn failed_disk_trials(&self) -> BTreeMap<RuntimeKind, String> {
        self.without_disk.iter().cloned().collect()
    }

    /// The runtimes that cannot use workspaces on disk.
    pub(crate) fn without_disk_support(&self) -> BTreeMap<RuntimeKind, String> {
        let unable = self.all.iter().filter(|(_, runtime)| !runtime.capabilities().disk_workspaces);
        unable.map(|(kind, _)| (*kind, in_memory_only(*kind))).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Runtime>> {
        self.all.iter().map(|(_, runtime)| runtime)
    }

    /// All runtimes, with the reason why one does not work.
    pub(crate) fn failures(&self) -> Vec<(RuntimeKind, Option<String>)> {
        self.all.iter().map(|(kind, runtime)| (*kind, runtime.trouble())).collect()
    }

    pub(crate) fn of(&self, kind: RuntimeKind) -> Result<&Arc<dyn Runtime>, Refusal> {
        let found = self.all.iter().find(|(known, _)| *known == kind);
        found.map(|(_, runtime)| runtime).ok_or_else(|| {
            let known: Vec<_> = self.all.iter().map(|(kind, _)| kind.as_str()).collect();
            let why = self.missing.iter().find(|(missing, _)| *missing == kind);
            let why = why.map(|(_, why)| format!(" ({why})")).unwrap_or_default();
            let cause = format!(
                "runtime: {} is not available here{why}; there is {}",
                kind.as_str(),
                known.join(", ")
            );
            Refusal::new(ErrorCode::Unsupported, cause)
        })
    }

    /// A live sandbox, in whichever runtime.
    pub(crate) fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        self.iter().find_map(|runtime| runtime.sandbox(instance))
    }

    /// The id of a live sandbox in the engine of its runtime.
    pub(crate) fn container_id(&self, kind: RuntimeKind, instance: InstanceId) -> Option<String> {
        match kind {
            // There is no engine, and every checkout asks this.
            RuntimeKind::Native => None,
            RuntimeKind::Docker
            | RuntimeKind::Runc
            | RuntimeKind::Runsc
            | RuntimeKind::Crun
            | RuntimeKind::Youki
            | RuntimeKind::Fake => self.of(kind).ok()?.sandbox(instance)?.container_id(),
        }
    }

    /// The runtime of a live sandbox.
    pub(crate) fn kind_of(&self, instance: InstanceId) -> Option<RuntimeKind> {
        let home = self.all.iter().find(|(_, runtime)| runtime.sandbox(instance).is_some());
        home.map(|(kind, _)| *kind)
    }

    /// Removes the instance with this label. A label of an earlier run may be unknown to all.
    pub(crate) async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        if let Some(home) = self.iter().find(|runtime| runtime.sandbox(instance).is_some()) {
            return home.kill(instance).await;
        }
        // A runtime that fails must not keep the others from being asked.
        let mut failed = Ok(());
        for runtime in self.iter() {
            failed = failed.and(runtime.kill(instance).await);
        }
        failed
    }
}
