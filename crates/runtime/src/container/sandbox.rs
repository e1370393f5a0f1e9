//! One use of a sandbox in a container: its guest does most of it; freezing and removing are its maker's.
//! A wipe makes another of these, with a connection of its own. Whoever still has the old one has the
//! old connection with it, and reaches nothing that is somebody else's by now.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use model::{ClaimSettings, InstanceId, WorkspaceId};

use super::Shared;
use super::instance::{Life, Watch};
use super::keeper::Baseline;
use super::maker::Maker;
use crate::claim::environment;
use crate::contract::{Inside, Sandbox};
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::GuestLink;
use crate::spec::LaunchSpec;

/// A sandbox in a container, for one use.
pub(crate) struct Contained<M: Maker> {
    pub(super) spec: LaunchSpec,
    pub(super) life: Arc<Life>,
    pub(super) shared: Arc<Shared<M>>,
    pub(super) container_id: String,
    /// What it was like at its birth, where it can be looked at from outside.
    pub(super) baseline: Option<Arc<Baseline>>,
    /// No wipe of it was left unfinished.
    pub(super) fit: AtomicBool,
    pub(super) connected: Connected<M>,
}

/// A connection and who watches it.
pub(super) struct Connected<M> {
    pub link: Arc<GuestLink>,
    pub watch: Arc<Watch<M>>,
}

impl<M> Clone for Connected<M> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), watch: Arc::clone(&self.watch) }
    }
}

impl<M: Maker> Contained<M> {
    pub(super) fn new(
        spec: LaunchSpec,
        life: Arc<Life>,
        shared: Arc<Shared<M>>,
        container_id: String,
        baseline: Option<Baseline>,
        connected: Connected<M>,
    ) -> Self {
        let (baseline, fit) = (baseline.map(Arc::new), AtomicBool::new(true));
        Self { spec, life, shared, container_id, baseline, fit, connected }
    }

    /// The same sandbox for the next use, which it is not fit for yet.
    pub(super) fn successor(&self, connected: Connected<M>) -> Self {
        Self {
            spec: self.spec.clone(),
            life: Arc::clone(&self.life),
            shared: Arc::clone(&self.shared),
            container_id: self.container_id.clone(),
            baseline: self.baseline.clone(),
            fit: AtomicBool::new(false),
            connected,
        }
    }

    fn link(&self) -> &GuestLink {
        &self.connected.link
    }

    /// Refuses what needs a living sandbox.
    pub(super) fn alive(&self, step: &'static str) -> Result<(), RuntimeError> {
        self.life.reason().map_or(Ok(()), |died| Err(died.error(step)))
    }

    /// What a maker says of a sandbox that ended meanwhile is that it ended.
    pub(super) fn unless_over<T>(
        &self,
        step: &'static str,
        result: Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        match (self.life.reason(), result) {
            (Some(died), _) => Err(died.error(step)),
            (None, result) => result,
        }
    }
}

#[async_trait]
impl<M: Maker> Sandbox for Contained<M> {
    fn instance(&self) -> InstanceId {
        self.spec.instance
    }

    fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    fn ended(&self) -> Option<Died> {
        self.life.died()
    }

    fn container_id(&self) -> Option<String> {
        Some(self.container_id.clone())
    }

    async fn claim(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError> {
        let env = environment(settings)?;
        if workspace.is_some() {
            let cause = "workspaces on disk cannot be attached to containers";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, "claim", cause));
        }
        self.link().claim(env).await
    }

    fn inside(&self) -> &dyn Inside {
        &*self.connected.link
    }

    async fn freeze(&self) -> Result<(), RuntimeError> {
        self.alive("freeze")?;
        let frozen = self.shared.maker.freeze(self.spec.instance).await;
        self.unless_over("freeze", frozen)
    }

    async fn thaw(&self) -> Result<(), RuntimeError> {
        self.alive("thaw")?;
        let thawed = self.shared.maker.thaw(self.spec.instance).await;
        self.unless_over("thaw", thawed)
    }

    async fn sync(&self) -> Result<(), RuntimeError> {
        // All of it is in memory, where nothing lies behind.
        self.alive("flush the workspace")
    }

    async fn wipe(&self) -> Result<(), RuntimeError> {
        self.renew().await
    }

    async fn prove(&self) -> Result<(), RuntimeError> {
        self.prove_clean().await
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        self.shared.kill(self.spec.instance, &self.life).await;
        Ok(())
    }
}
