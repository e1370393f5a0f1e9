//! One use of a sandbox in a container. Its guest does most of the work; its maker freezes and
//! removes it. A wipe makes a new handle with a connection of its own. An old handle keeps the old
//! connection, and never reaches the next user's sandbox.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use model::{ClaimSettings, InstanceId, NetworkPolicy, WorkspaceId};
use tokio::sync::Mutex;

use super::Shared;
use super::instance::{ConnectionWatch, Instance};
use super::keeper::Baseline;
use super::maker::Maker;
use crate::claim::environment;
use crate::contract::{Inside, NetworkSockets, Sandbox};
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::GuestLink;
use crate::spec::LaunchSpec;

/// A sandbox in a container, for one use.
pub(crate) struct ContainerSandbox<M: Maker> {
    pub(super) spec: LaunchSpec,
    pub(super) instance: Arc<Instance>,
    pub(super) shared: Arc<Shared<M>>,
    pub(super) container_id: String,
    /// Its state at the launch, where the keeper can see it.
    pub(super) baseline: Option<Arc<Baseline>>,
    /// Whether its last wipe, if any, was complete.
    pub(super) wipe_complete: AtomicBool,
    /// Calls about its network take turns, also those of different uses.
    pub(super) network_turn: Arc<Mutex<()>>,
    pub(super) connected: Connected<M>,
}

/// A connection and its watch.
pub(super) struct Connected<M> {
    pub link: Arc<GuestLink>,
    pub watch: Arc<ConnectionWatch<M>>,
}

impl<M> Clone for Connected<M> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), watch: Arc::clone(&self.watch) }
    }
}

impl<M: Maker> ContainerSandbox<M> {
    pub(super) fn new(
        spec: LaunchSpec,
        instance: Arc<Instance>,
        shared: Arc<Shared<M>>,
        container_id: String,
        baseline: Option<Baseline>,
        connected: Connected<M>,
    ) -> Self {
        let (baseline, wipe_complete) = (baseline.map(Arc::new), AtomicBool::new(true));
        let network_turn = Arc::default();
        Self {
            spec,
            instance,
            shared,
            container_id,
            baseline,
            wipe_complete,
            network_turn,
            connected,
        }
    }

    /// The same sandbox for the next use. The wipe is not complete yet.
    pub(super) fn for_next_use(&self, connected: Connected<M>) -> Self {
        Self {
            spec: self.spec.clone(),
            instance: Arc::clone(&self.instance),
            shared: Arc::clone(&self.shared),
            container_id: self.container_id.clone(),
            baseline: self.baseline.clone(),
            wipe_complete: AtomicBool::new(false),
            network_turn: Arc::clone(&self.network_turn),
            connected,
        }
    }

    fn link(&self) -> &GuestLink {
        &self.connected.link
    }

    /// Refuses what needs a living sandbox.
    pub(super) fn alive(&self, step: &'static str) -> Result<(), RuntimeError> {
        self.instance.reason().map_or(Ok(()), |died| Err(died.error(step)))
    }

    /// Replaces the result by the exit if the sandbox exited meanwhile.
    pub(super) fn unless_dead<T>(
        &self,
        step: &'static str,
        result: Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        match (self.instance.reason(), result) {
            (Some(died), _) => Err(died.error(step)),
            (None, result) => result,
        }
    }
}

#[async_trait]
impl<M: Maker> Sandbox for ContainerSandbox<M> {
    fn instance(&self) -> InstanceId {
        self.spec.instance
    }

    fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    fn ended(&self) -> Option<Died> {
        self.instance.died()
    }

    fn container_id(&self) -> Option<String> {
        Some(self.container_id.clone())
    }

    fn cpu_time(&self) -> Option<Duration> {
        let time = self.shared.maker.cpu_time(self.spec.instance);
        time.filter(|_| self.instance.reason().is_none())
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
        self.unless_dead("freeze", frozen)
    }

    async fn thaw(&self) -> Result<(), RuntimeError> {
        self.alive("thaw")?;
        let thawed = self.shared.maker.thaw(self.spec.instance).await;
        self.unless_dead("thaw", thawed)
    }

    async fn sync(&self) -> Result<(), RuntimeError> {
        // The workspace is in memory: there is no disk to flush to.
        self.alive("flush the workspace")
    }

    async fn arm_network(&self, policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        self.arm(policy).await
    }

    async fn change_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.change_rules(policy).await
    }

    async fn refused_addresses(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        self.refused().await
    }

    async fn disarm_network(&self) -> Result<(), RuntimeError> {
        self.disarm().await
    }

    async fn wipe(&self) -> Result<(), RuntimeError> {
        self.renew().await
    }

    async fn prove(&self) -> Result<(), RuntimeError> {
        self.prove_clean().await
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        self.shared.kill(self.spec.instance, &self.instance).await;
        Ok(())
    }
}
