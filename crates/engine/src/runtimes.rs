//! The runtimes of a node, by the word with which templates choose them.

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
    /// Those that there could be, and why they are not here.
    missing: Vec<(RuntimeKind, String)>,
    /// Those in which a workspace on disk was tried in vain, and why.
    without_disk: Vec<(RuntimeKind, String)>,
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

    /// One that cannot be used, and why: whoever asks for it is told.
    #[must_use]
    pub fn without(mut self, kind: RuntimeKind, why: impl Into<String>) -> Self {
        self.missing.push((kind, why.into()));
        self
    }

    /// One in which a workspace on disk was tried in vain, and why: templates that leave open where
    /// their workspaces are have them in memory.
    #[must_use]
    pub fn without_disk(mut self, kind: RuntimeKind, why: impl Into<String>) -> Self {
        self.without_disk.push((kind, why.into()));
        self
    }

    /// Those in which workspaces on disk were tried in vain.
    pub(crate) fn disk_tried_in_vain(&self) -> BTreeMap<RuntimeKind, String> {
        self.without_disk.iter().cloned().collect()
    }

    /// Those that cannot use workspaces on disk.
    pub(crate) fn unable_of_disk(&self) -> BTreeMap<RuntimeKind, String> {
        let unable = self.all.iter().filter(|(_, runtime)| !runtime.capabilities().disk_workspaces);
        unable.map(|(kind, _)| (*kind, in_memory_only(*kind))).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Runtime>> {
        self.all.iter().map(|(_, runtime)| runtime)
    }

    /// All of them, with what keeps each from working.
    pub(crate) fn troubles(&self) -> Vec<(RuntimeKind, Option<String>)> {
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

    /// A sandbox that is alive, in whichever runtime.
    pub(crate) fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        self.iter().find_map(|runtime| runtime.sandbox(instance))
    }

    /// What the engine of a runtime calls a sandbox that is alive.
    pub(crate) fn container_id(&self, kind: RuntimeKind, instance: InstanceId) -> Option<String> {
        match kind {
            // There is no engine, and this is asked at every checkout.
            RuntimeKind::Native => None,
            RuntimeKind::Docker
            | RuntimeKind::Runc
            | RuntimeKind::Runsc
            | RuntimeKind::Crun
            | RuntimeKind::Youki
            | RuntimeKind::Fake => self.of(kind).ok()?.sandbox(instance)?.container_id(),
        }
    }

    /// In which runtime a sandbox is, if it is alive.
    pub(crate) fn kind_of(&self, instance: InstanceId) -> Option<RuntimeKind> {
        let home = self.all.iter().find(|(_, runtime)| runtime.sandbox(instance).is_some());
        home.map(|(kind, _)| *kind)
    }

    /// Removes whatever has this label. A label that an earlier run used may be known nowhere.
    pub(crate) async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        if let Some(home) = self.iter().find(|runtime| runtime.sandbox(instance).is_some()) {
            return home.kill(instance).await;
        }
        // One that fails must not keep the others from being asked.
        let mut failed = Ok(());
        for runtime in self.iter() {
            failed = failed.and(runtime.kill(instance).await);
        }
        failed
    }
}
