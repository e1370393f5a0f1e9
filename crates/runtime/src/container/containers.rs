//! A runtime made of a maker of containers: the registry of instances, and the tasks that launch
//! and remove them. Those tasks are never dropped: a caller that loses interest only cancels.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use model::template::{Recycle, RuntimeTraits};
use model::{InstanceId, Template};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::instance::{ConnectionWatch, Instance};
use super::keeper::Keeper;
use super::launch;
use super::maker::Maker;
use super::sandbox::{Connected, ContainerSandbox};
use crate::contract::{Runtime, Sandbox};
use crate::deaths::{DeathBoard, Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};
use crate::lost_guests::{LostGuestBoard, LostGuests};
use crate::scale::{ScaleBoard, ScaleNotes};
use crate::spec::{Capabilities, LaunchSpec, NetworkAbility, Reaped};

/// How long a shutdown may take.
const END_PATIENCE: Duration = Duration::from_mins(1);
/// How long to ask the maker how a container exited.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// The pause before a failed removal is retried, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// SIGKILL.
const KILLED: i32 = 9;
/// An engine needs a moment to report how a container exited.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Sandboxes in containers of one kind. Dropped, they end.
pub(crate) struct Containers<M: Maker> {
    shared: Arc<Shared<M>>,
    watching: JoinHandle<()>,
}

/// What the runtime, its sandboxes and its tasks share.
pub(super) struct Shared<M: Maker> {
    pub(super) maker: Arc<M>,
    pub(super) deaths: DeathBoard,
    lost_guests: LostGuestBoard,
    pub(super) scale: Arc<ScaleBoard>,
    link: LinkSettings,
    /// Wipes and proves containers, where that is possible.
    pub(super) keeper: Option<Arc<Keeper>>,
    registry: Mutex<BTreeMap<InstanceId, RegistryEntry<M>>>,
    /// An entry left the registry.
    entry_removed: Notify,
    closing: AtomicBool,
}

/// What exists under an instance id.
enum RegistryEntry<M: Maker> {
    /// Its launch is in progress, or a failed launch is being removed.
    Launching(Arc<Instance>),
    /// It was handed out.
    Live(Arc<ContainerSandbox<M>>),
    /// It is being removed.
    Removing(Arc<Instance>),
}

/// Why an instance exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExitCause {
    /// A caller killed it, or the runtime shuts down.
    Killed,
    /// It exited by itself, or something outside this runtime ended it.
    Unrequested,
}

impl<M: Maker> Containers<M> {
    /// A runtime of what this maker makes. Must be called inside a tokio runtime.
    pub(crate) fn new(maker: M) -> Self {
        let keeper = if maker.renewable() { start_keeper() } else { None };
        let link = LinkSettings { reason_timeout: REASON_TIMEOUT, ..LinkSettings::default() };
        let shared = Arc::new(Shared {
            maker: Arc::new(maker),
            deaths: DeathBoard::default(),
            lost_guests: LostGuestBoard::default(),
            scale: Arc::default(),
            link,
            keeper,
            registry: Mutex::default(),
            entry_removed: Notify::new(),
            closing: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let watching = tasks::spawn(async move {
            loop {
                let dead = watched.maker.next_dead().await;
                watched.begin_removal(dead, ExitCause::Unrequested);
            }
        });
        Self { shared, watching }
    }

    /// The maker of the containers.
    #[cfg(test)]
    pub(crate) fn maker(&self) -> &M {
        &self.shared.maker
    }
}

impl<M: Maker> Shared<M> {
    fn registry(&self) -> MutexGuard<'_, BTreeMap<InstanceId, RegistryEntry<M>>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper, if it sees the containers, as far as is known.
    fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.keeper.as_ref().filter(|_| self.maker.renewable())
    }

    /// How containers with a policy reach the network.
    fn network(&self) -> NetworkAbility {
        self.keeper().map_or(NetworkAbility::None, |keeper| keeper.network())
    }

    /// Registers an instance whose launch begins.
    pub(super) fn reserve(&self, id: InstanceId) -> Result<Arc<Instance>, RuntimeError> {
        const STEP: &str = "launch";
        self.deaths.check_room()?;
        let mut registry = self.registry();
        // Checked under the lock, so that no launch begins after the shutdown cancelled all.
        if self.closing.load(Ordering::Relaxed) {
            let cause = "the runtime is shut down";
            return Err(RuntimeError::new(RuntimeErrorCode::ShuttingDown, STEP, cause));
        }
        if registry.contains_key(&id) {
            let cause = "the instance id is in use";
            return Err(RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause));
        }
        let instance = Arc::new(Instance::new());
        registry.insert(id, RegistryEntry::Launching(Arc::clone(&instance)));
        Ok(instance)
    }

    /// Marks a launched sandbox as live, unless it was cancelled meanwhile.
    pub(super) fn hand_out(self: &Arc<Self>, sandbox: &Arc<ContainerSandbox<M>>) -> bool {
        let id = sandbox.spec.instance;
        let mut registry = self.registry();
        match registry.get_mut(&id) {
            Some(known @ RegistryEntry::Launching(_)) if !sandbox.instance.is_cancelled() => {
                *known = RegistryEntry::Live(Arc::clone(sandbox));
            }
            Some(
                RegistryEntry::Launching(_) | RegistryEntry::Live(_) | RegistryEntry::Removing(_),
            )
            | None => return false,
        }
        drop(registry);
        self.watch(Arc::clone(&sandbox.connected.watch));
        true
    }

    /// Replaces the handle of the last use by that of the next one, unless the removal has begun.
    pub(super) fn replace_live(self: &Arc<Self>, next: &Arc<ContainerSandbox<M>>) -> bool {
        let mut registry = self.registry();
        match registry.get_mut(&next.spec.instance) {
            Some(RegistryEntry::Live(last)) if Arc::ptr_eq(&last.instance, &next.instance) => {
                *last = Arc::clone(next);
            }
            Some(
                RegistryEntry::Launching(_) | RegistryEntry::Live(_) | RegistryEntry::Removing(_),
            )
            | None => return false,
        }
        drop(registry);
        self.watch(Arc::clone(&next.connected.watch));
        true
    }

    /// Takes over the host's end of a connection to a guest.
    pub(super) fn connect(
        &self,
        id: InstanceId,
        instance: &Arc<Instance>,
        socket: OwnedFd,
        pass_descriptors: bool,
    ) -> Result<Connected<M>, RuntimeError> {
        let (instance, maker) = (Arc::clone(instance), Arc::clone(&self.maker));
        let watch = Arc::new(ConnectionWatch::new(id, instance, maker, Arc::clone(&self.scale)));
        let surroundings: Arc<dyn Surroundings> = Arc::clone(&watch) as _;
        let settings = LinkSettings { pass_descriptors, ..self.link };
        let link = Arc::new(GuestLink::new(socket, settings, surroundings)?);
        Ok(Connected { link, watch })
    }

    /// Removes the sandbox when this connection breaks, unless a newer connection replaced it.
    pub(super) fn watch(self: &Arc<Self>, watch: Arc<ConnectionWatch<M>>) {
        let shared = Arc::clone(self);
        tasks::spawn(async move {
            let broken = tokio::select! {
                broken = watch.wait_broken() => broken,
                () = watch.instance.wait_removed() => false,
            };
            if broken {
                shared.begin_removal(watch.id, ExitCause::Unrequested);
            }
        });
    }

    /// Removes an instance that was never handed out, until nothing is left of it.
    pub(super) async fn take_back(&self, id: InstanceId, instance: &Instance) {
        self.remove_for_sure(id).await;
        self.registry().remove(&id);
        instance.mark_removed();
        self.entry_removed.notify_waiters();
    }

    /// Starts to remove a live instance. Does nothing if the removal has begun.
    fn begin_removal(self: &Arc<Self>, id: InstanceId, cause: ExitCause) {
        let sandbox = {
            let mut registry = self.registry();
            let Some(RegistryEntry::Live(sandbox)) = registry.get(&id) else { return };
            let sandbox = Arc::clone(sandbox);
            registry.insert(id, RegistryEntry::Removing(Arc::clone(&sandbox.instance)));
            sandbox
        };
        match cause {
            // The removal may take long, and no caller should get it meanwhile.
            ExitCause::Unrequested => self.lost_guests.report(id),
            ExitCause::Killed => {}
        }
        let shared = Arc::clone(self);
        tasks::spawn(async move {
            let died = shared.exit_of(id, cause).await;
            let died = sandbox.instance.set_exit(died);
            sandbox.connected.link.fail(&died);
            shared.remove_for_sure(id).await;
            shared.registry().remove(&id);
            sandbox.instance.mark_removed();
            shared.deaths.report(died);
            shared.entry_removed.notify_waiters();
        });
    }

    async fn exit_of(&self, instance: InstanceId, cause: ExitCause) -> Died {
        let killed = Some(ExitStatus::Signal(KILLED));
        match cause {
            ExitCause::Killed => Died::alone(instance, killed, false),
            ExitCause::Unrequested => {
                let end = timeout(EXIT_PATIENCE, self.maker.end(instance)).await;
                let end = end.unwrap_or_default();
                let out_of_memory = end.out_of_memory || self.maker.memory_ran_out(instance);
                Died::alone(instance, end.status.or(killed), out_of_memory)
            }
        }
    }

    /// Removes a container, with as many retries as it takes.
    async fn remove_for_sure(&self, id: InstanceId) {
        let mut pause = AGAIN_MIN;
        let mut tries: u32 = 0;
        while let Err(error) = self.maker.remove(id).await {
            tries = tries.saturating_add(1);
            // Ever more seldom: its place stays taken until then, and an operator may ask why.
            if tries.is_power_of_two() {
                tracing::warn!(instance = %id, tries, %error, "container removal failed; retrying");
            }
            sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    /// Kills a sandbox and waits until nothing is left of it.
    pub(super) async fn kill(self: &Arc<Self>, id: InstanceId, instance: &Arc<Instance>) {
        instance.cancel();
        self.begin_removal(id, ExitCause::Killed);
        instance.wait_removed().await;
    }

    fn instance_of(&self, id: InstanceId) -> Option<Arc<Instance>> {
        match self.registry().get(&id)? {
            RegistryEntry::Launching(instance) | RegistryEntry::Removing(instance) => {
                Some(Arc::clone(instance))
            }
            RegistryEntry::Live(sandbox) => Some(Arc::clone(&sandbox.instance)),
        }
    }

    /// Starts to remove every instance.
    fn end_all(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Relaxed);
        let all: Vec<_> = self.registry().keys().copied().collect();
        for id in all {
            if let Some(instance) = self.instance_of(id) {
                instance.cancel();
            }
            self.begin_removal(id, ExitCause::Killed);
        }
    }

    async fn emptied(&self) {
        loop {
            let entry_removed = self.entry_removed.notified();
            if self.registry().is_empty() {
                return;
            }
            entry_removed.await;
        }
    }

    async fn close(self: &Arc<Self>) -> Result<(), RuntimeError> {
        self.end_all();
        let end = async {
            self.emptied().await;
            self.maker.close().await
        };
        timeout(END_PATIENCE, end)
            .await
            .unwrap_or_else(|_| Err(RuntimeError::deadline("shut down")))?;
        self.deaths.close();
        self.scale.close();
        Ok(())
    }
}

/// Without a keeper, used containers are recreated: correct but slower, so the reason is logged.
fn start_keeper() -> Option<Arc<Keeper>> {
    Keeper::start()
        .inspect_err(|error| {
            tracing::warn!(%error, "the keeper did not start; used containers are recreated");
        })
        .ok()
}

#[async_trait]
impl<M: Maker> Runtime for Containers<M> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { network: self.shared.network(), ..self.shared.maker.capabilities() }
    }

    fn refuses(&self, template: &Template) -> Option<String> {
        let has_none = self.shared.network() == NetworkAbility::None;
        let refused = has_none && !template.network.is_none();
        refused.then(|| format!("network: {}", self.shared.maker.why_no_network()))
    }

    fn traits(&self) -> RuntimeTraits {
        let wipes = self.shared.keeper().is_some();
        RuntimeTraits {
            recycle: if wipes { Recycle::Wipe } else { Recycle::Recreate },
            can_freeze: self.capabilities().freeze,
            workspace_survives: false,
            disk: None,
        }
    }

    fn trouble(&self) -> Option<String> {
        self.shared.maker.trouble()
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        Ok(launch::launch(&self.shared, spec).await?)
    }

    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        match self.shared.registry().get(&instance)? {
            RegistryEntry::Live(sandbox) => Some(Arc::clone(sandbox) as _),
            RegistryEntry::Launching(_) | RegistryEntry::Removing(_) => None,
        }
    }

    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        // An unknown id has nothing in this run. What earlier runs left is found by its label.
        if let Some(known) = self.shared.instance_of(instance) {
            self.shared.kill(instance, &known).await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        let mut listed = self.shared.maker.list().await?;
        listed.extend(self.shared.registry().keys());
        listed.sort_unstable();
        listed.dedup();
        Ok(listed)
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        self.shared.maker.reap_orphans().await
    }

    fn events(&self) -> Deaths {
        self.shared.deaths.subscribe()
    }

    fn lost_guests(&self) -> LostGuests {
        self.shared.lost_guests.subscribe()
    }

    fn scale_notes(&self) -> ScaleNotes {
        self.shared.scale.subscribe()
    }

    async fn shutdown(&self) -> Result<(), RuntimeError> {
        self.shared.close().await?;
        self.watching.abort();
        Ok(())
    }
}

impl<M: Maker> Drop for Containers<M> {
    fn drop(&mut self) {
        self.watching.abort();
        // Without a tokio runtime no task can start; the next run removes what is left.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.shared.end_all();
        }
    }
}
