//! A runtime made of a maker of containers: the books of what exists, and the tasks in which
//! sandboxes are born and buried. Those tasks are never dropped: whoever loses interest only says so.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use model::InstanceId;
use model::template::{Recycle, RuntimeTraits};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::instance::{Life, Watch};
use super::keeper::Keeper;
use super::launch;
use super::maker::Maker;
use super::sandbox::{Connected, Contained};
use crate::contract::{Runtime, Sandbox};
use crate::deaths::{DeathBoard, Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};
use crate::scale::{ScaleBoard, ScaleNotes};
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// How long ending everything may take.
const END_PATIENCE: Duration = Duration::from_mins(1);
/// How long to ask how a container ended.
const AUTOPSY_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before a removal that failed is tried again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// The number of the signal that ends what is killed.
const KILLED: i32 = 9;
/// An engine needs its time to say how a container ended.
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
    pub(super) scale: Arc<ScaleBoard>,
    link: LinkSettings,
    /// Who wipes, where that can be done.
    pub(super) keeper: Option<Arc<Keeper>>,
    registry: Mutex<BTreeMap<InstanceId, Known<M>>>,
    /// Something was taken out of the registry.
    fewer: Notify,
    closing: AtomicBool,
}

/// What exists under an instance id.
enum Known<M: Maker> {
    /// It is being made, or taken back.
    Unborn(Arc<Life>),
    /// It was handed out.
    Live(Arc<Contained<M>>),
    /// It is being removed.
    Dying(Arc<Life>),
}

/// Whose idea an end was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Ours.
    Killed,
    /// Its own, or somebody else's.
    Itself,
}

impl<M: Maker> Containers<M> {
    /// A runtime of what this maker makes. Must be called inside a tokio runtime.
    pub(crate) fn new(maker: M) -> Self {
        let keeper = if maker.renewable() { start_keeper() } else { None };
        let link = LinkSettings { reason_timeout: REASON_TIMEOUT, ..LinkSettings::default() };
        let shared = Arc::new(Shared {
            maker: Arc::new(maker),
            deaths: DeathBoard::default(),
            scale: Arc::default(),
            link,
            keeper,
            registry: Mutex::default(),
            fewer: Notify::new(),
            closing: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let watching = tasks::spawn(async move {
            loop {
                let fallen = watched.maker.fallen().await;
                watched.bury(fallen, Cause::Itself);
            }
        });
        Self { shared, watching }
    }

    /// Who makes the containers.
    #[cfg(test)]
    pub(crate) fn maker(&self) -> &M {
        &self.shared.maker
    }
}

impl<M: Maker> Shared<M> {
    fn registry(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Known<M>>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox is begun.
    pub(super) fn conceive(&self, id: InstanceId) -> Result<Arc<Life>, RuntimeError> {
        const STEP: &str = "launch";
        self.deaths.check_room()?;
        let mut registry = self.registry();
        // Looked at under the lock, so that nothing begins once all have been told to end.
        if self.closing.load(Ordering::Relaxed) {
            let cause = "the runtime is shut down";
            return Err(RuntimeError::new(RuntimeErrorCode::ShuttingDown, STEP, cause));
        }
        if registry.contains_key(&id) {
            let cause = "the instance id is in use";
            return Err(RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause));
        }
        let life = Arc::new(Life::new());
        registry.insert(id, Known::Unborn(Arc::clone(&life)));
        Ok(life)
    }

    /// It is somebody's from now on, unless its end was wanted meanwhile.
    pub(super) fn hand_out(self: &Arc<Self>, sandbox: &Arc<Contained<M>>) -> bool {
        let id = sandbox.spec.instance;
        let mut registry = self.registry();
        match registry.get_mut(&id) {
            Some(known @ Known::Unborn(_)) if !sandbox.life.is_rejected() => {
                *known = Known::Live(Arc::clone(sandbox));
            }
            Some(Known::Unborn(_) | Known::Live(_) | Known::Dying(_)) | None => return false,
        }
        drop(registry);
        self.watch(Arc::clone(&sandbox.connected.watch));
        true
    }

    /// The next use of a sandbox takes the place of the last one, unless its end was begun.
    pub(super) fn succeed(self: &Arc<Self>, next: &Arc<Contained<M>>) -> bool {
        let mut registry = self.registry();
        match registry.get_mut(&next.spec.instance) {
            Some(Known::Live(last)) if Arc::ptr_eq(&last.life, &next.life) => {
                *last = Arc::clone(next);
            }
            Some(Known::Unborn(_) | Known::Live(_) | Known::Dying(_)) | None => return false,
        }
        drop(registry);
        self.watch(Arc::clone(&next.connected.watch));
        true
    }

    /// Takes over our end of a connection to a guest.
    pub(super) fn connect(
        &self,
        id: InstanceId,
        life: &Arc<Life>,
        socket: OwnedFd,
        pass_descriptors: bool,
    ) -> Result<Connected<M>, RuntimeError> {
        let (life, maker) = (Arc::clone(life), Arc::clone(&self.maker));
        let watch = Arc::new(Watch::new(id, life, maker, Arc::clone(&self.scale)));
        let surroundings: Arc<dyn Surroundings> = Arc::clone(&watch) as _;
        let settings = LinkSettings { pass_descriptors, ..self.link };
        let link = Arc::new(GuestLink::new(socket, settings, surroundings)?);
        Ok(Connected { link, watch })
    }

    /// Buries a sandbox when this connection breaks, unless another has taken its place by then.
    pub(super) fn watch(self: &Arc<Self>, watch: Arc<Watch<M>>) {
        let shared = Arc::clone(self);
        tasks::spawn(async move {
            let broken = tokio::select! {
                broken = watch.is_broken() => broken,
                () = watch.life.removed() => false,
            };
            if broken {
                shared.bury(watch.id, Cause::Itself);
            }
        });
    }

    /// Removes what never was handed out, until nothing is left of it.
    pub(super) async fn take_back(&self, id: InstanceId, life: &Life) {
        self.remove_for_sure(id).await;
        self.registry().remove(&id);
        life.is_removed();
        self.fewer.notify_waiters();
    }

    /// Begins the end of one that was handed out; that it has begun is fine.
    fn bury(self: &Arc<Self>, id: InstanceId, cause: Cause) {
        let sandbox = {
            let mut registry = self.registry();
            let Some(Known::Live(sandbox)) = registry.get(&id) else { return };
            let sandbox = Arc::clone(sandbox);
            registry.insert(id, Known::Dying(Arc::clone(&sandbox.life)));
            sandbox
        };
        let shared = Arc::clone(self);
        tasks::spawn(async move {
            let died = shared.autopsy(id, cause).await;
            let died = sandbox.life.ends(died);
            sandbox.connected.link.fail(&died);
            shared.remove_for_sure(id).await;
            shared.registry().remove(&id);
            sandbox.life.is_removed();
            shared.deaths.tell(died);
            shared.fewer.notify_waiters();
        });
    }

    async fn autopsy(&self, instance: InstanceId, cause: Cause) -> Died {
        let killed = Some(ExitStatus::Signal(KILLED));
        match cause {
            Cause::Killed => Died { instance, status: killed, out_of_memory: false },
            Cause::Itself => {
                let end = timeout(AUTOPSY_PATIENCE, self.maker.end(instance)).await;
                let end = end.unwrap_or_default();
                let out_of_memory = end.out_of_memory || self.maker.memory_ran_out(instance);
                Died { instance, status: end.status.or(killed), out_of_memory }
            }
        }
    }

    /// Removes a container, however often that has to be tried.
    async fn remove_for_sure(&self, id: InstanceId) {
        let mut pause = AGAIN_MIN;
        let mut tries: u32 = 0;
        while let Err(error) = self.maker.remove(id).await {
            tries = tries.saturating_add(1);
            // Ever more seldom: its place stays taken as long, and somebody may wonder why.
            if tries.is_power_of_two() {
                tracing::warn!(instance = %id, tries, %error, "a container cannot be removed yet");
            }
            sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    /// Ends a sandbox and waits until nothing is left of it.
    pub(super) async fn kill(self: &Arc<Self>, id: InstanceId, life: &Arc<Life>) {
        life.reject();
        self.bury(id, Cause::Killed);
        life.removed().await;
    }

    fn life_of(&self, id: InstanceId) -> Option<Arc<Life>> {
        match self.registry().get(&id)? {
            Known::Unborn(life) | Known::Dying(life) => Some(Arc::clone(life)),
            Known::Live(sandbox) => Some(Arc::clone(&sandbox.life)),
        }
    }

    /// Begins the end of everything.
    fn end_all(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Relaxed);
        let all: Vec<_> = self.registry().keys().copied().collect();
        for id in all {
            if let Some(life) = self.life_of(id) {
                life.reject();
            }
            self.bury(id, Cause::Killed);
        }
    }

    async fn emptied(&self) {
        loop {
            let fewer = self.fewer.notified();
            if self.registry().is_empty() {
                return;
            }
            fewer.await;
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

/// Without it used containers are made anew, which is right but slower: somebody may wonder why.
fn start_keeper() -> Option<Arc<Keeper>> {
    Keeper::start()
        .inspect_err(|error| tracing::warn!(%error, "used containers are not wiped but made anew"))
        .ok()
}

#[async_trait]
impl<M: Maker> Runtime for Containers<M> {
    fn capabilities(&self) -> Capabilities {
        self.shared.maker.capabilities()
    }

    fn traits(&self) -> RuntimeTraits {
        let wipes = self.shared.keeper.is_some() && self.shared.maker.renewable();
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
            Known::Live(sandbox) => Some(Arc::clone(sandbox) as _),
            Known::Unborn(_) | Known::Dying(_) => None,
        }
    }

    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        // Of one that is not known there is nothing of this run, and what earlier ones left is found
        // by its label, whether that can be done now or not.
        if let Some(life) = self.shared.life_of(instance) {
            self.shared.kill(instance, &life).await;
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
        // Where no tasks can be started any more, the next run finds what is left.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.shared.end_all();
        }
    }
}
