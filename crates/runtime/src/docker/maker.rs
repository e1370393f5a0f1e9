//! The maker of Docker containers. It does what it is told through the engine and remembers as little as
//! it can: what exists is the engine's knowledge, found by labels. Whatever the engine is in the middle
//! of when it goes away is looked after when it comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{ContainerInspectResponse, ContainerState};
use guest_protocol::message::ExitStatus;
use model::InstanceId;
use rustix::process::geteuid;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::config::{DockerConfig, Endpoint, LinkMode};
use super::container_config::overruled;
use super::container_launch::{Making, Unmade};
use super::engine::{Engine, QUICK, Trouble};
use super::engine_events::follow;
use super::engine_setup::{Ground, Preparation};
use super::images::{Image, Images};
use super::instances::{Instance, Instances};
use super::names::Names;
use crate::container::{End, Made, Maker, places};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{Capabilities, LaunchSpec, Reaped, Root, Users};

const STEP: &str = "launch";

/// How long to ask how a container ended: somebody waits for the reason.
const END_PATIENCE: Duration = Duration::from_millis(1500);
/// How long to wait before it is asked again.
const END_PAUSE: Duration = Duration::from_millis(20);
/// How often a container is asked to pause or to go on: what was asked before may still be carried out.
const PAUSE_ATTEMPTS: u32 = 3;
/// An exit code above this says which signal it was.
const SIGNALS_ABOVE: i64 = 128;
const SIGNAL_MAX: i64 = 64;
/// The signal by which the kernel ends what has no memory.
const KILLED: i32 = 9;

/// Makes Docker containers.
pub(super) struct DockerMaker {
    shared: Arc<Shared>,
    following: JoinHandle<()>,
}

/// What the maker and its tasks share.
pub(super) struct Shared {
    pub engine: Arc<Engine>,
    pub names: Names,
    pub preparation: Arc<Preparation>,
    pub images: Images,
    pub instances: Instances,
    turns: Semaphore,
    /// What earlier runs left is still to be removed.
    pub reaping_owed: AtomicBool,
    /// Somebody tidies up already.
    pub tidying: AtomicBool,
    /// First processes are seen from here and links pass descriptors, as far as is known.
    renewable: AtomicBool,
}

impl DockerMaker {
    /// Begins to look after an engine, which need not be there.
    pub(super) fn start(config: &DockerConfig) -> Result<Self, RuntimeError> {
        config.check()?;
        let engine = Arc::new(Engine::new(config.endpoint.clone()));
        let names = Names::new(&config.node, &config.epoch);
        let is_near = matches!(config.endpoint, Endpoint::Unix(_)) && geteuid().is_root();
        let shared = Arc::new(Shared {
            preparation: Arc::new(Preparation::new(config, Arc::clone(&engine), names.clone())?),
            images: Images::new(Arc::clone(&engine), config.images.clone()),
            engine,
            names,
            instances: Instances::default(),
            turns: Semaphore::new(config.creates_at_once),
            reaping_owed: AtomicBool::new(false),
            tidying: AtomicBool::new(false),
            renewable: AtomicBool::new(is_near && config.link != LinkMode::Attach),
        });
        let following = tasks::spawn(follow(Arc::clone(&shared)));
        Ok(Self { shared, following })
    }

    /// Waits a little for the engine, so that what can be known is known: whether used containers can
    /// be wiped, for one.
    pub(super) async fn look_for_engine(&self, patience: Duration) -> Result<(), Trouble> {
        let found = match timeout(patience, self.shared.engine.find()).await {
            Ok(found) => found?,
            Err(_) => return Err(Trouble::Unanswered("no answer in time".into())),
        };
        let preparation = &self.shared.preparation;
        self.shared.renewable.fetch_and(preparation.may_be_wiped(&found.facts), Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for DockerMaker {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Shared {
    pub(super) async fn inspect(
        &self,
        container: &str,
        patience: Duration,
    ) -> Result<ContainerInspectResponse, Trouble> {
        self.engine
            .ask(patience, |docker| async move { docker.inspect_container(container, None).await })
            .await
    }

    /// Makes a container. What is known of it stays until it is removed, also if it was never made.
    async fn make(self: &Arc<Self>, spec: &LaunchSpec) -> Result<Made, RuntimeError> {
        let Some(instance) = self.instances.begin(spec.instance) else {
            let cause = "the instance id is in use";
            return Err(RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause));
        };
        let made = self.make_known(spec, &instance).await;
        if made.is_err() && instance.may_exist() {
            // What cannot be removed now is found by its label.
            let _ = self.remove_container(spec.instance).await;
        }
        made
    }

    async fn make_known(
        self: &Arc<Self>,
        spec: &LaunchSpec,
        instance: &Arc<Instance>,
    ) -> Result<Made, RuntimeError> {
        // A little is left of the time, to say what was waited for.
        let image = self.images.find(&spec.root, spec.ready_timeout.mul_f32(0.8)).await?;
        let turn = timeout(spec.ready_timeout, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let cause = "too many containers are being made; raise docker.creates_at_once";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
        };
        let places = places(spec);
        let refused = |cause| RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause);
        let image =
            Image { volumes: overruled(&image.volumes, &places).map_err(refused)?, ..image };
        let mut ground = self.ground(spec, &image).await?;
        let mut made = self.make_on(spec, &image, &ground, instance).await;
        if let Err(Unmade::NoGround(_)) = made {
            // Somebody tidied the engine's volumes or our directory: once more, on new ground.
            self.preparation.forget(&ground);
            self.remove_container(spec.instance).await?;
            ground = self.ground(spec, &image).await?;
            made = self.make_on(spec, &image, &ground, instance).await;
        }
        let made = made.map_err(|(Unmade::NoGround(error) | Unmade::Failed(error))| error)?;
        let seen = made.passes_descriptors && made.pid.is_some();
        self.renewable.store(seen && geteuid().is_root(), Ordering::Relaxed);
        Ok(made)
    }

    async fn ground(&self, spec: &LaunchSpec, image: &Image) -> Result<Arc<Ground>, RuntimeError> {
        let ground = self.preparation.ground(image, spec.ready_timeout).await?;
        if spec.root == Root::Host && !ground.same_files {
            let cause = "the Docker engine does not see this machine's files, so their programs \
                         cannot be shown: name an image";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        }
        Ok(ground)
    }

    async fn make_on(
        self: &Arc<Self>,
        spec: &LaunchSpec,
        image: &Image,
        ground: &Ground,
        instance: &Arc<Instance>,
    ) -> Result<Made, Unmade> {
        Making { shared: self, spec, image, ground, volumes: &image.volumes, instance }.run().await
    }

    async fn pause(&self, instance: InstanceId, wanted: bool) -> Result<(), RuntimeError> {
        let step = if wanted { "freeze" } else { "thaw" };
        let container = self.names.container(instance);
        let name = container.as_str();
        let mut attempt = 1;
        let trouble = loop {
            let asked = self
                .engine
                .ask(QUICK, |docker| async move {
                    if wanted {
                        docker.pause_container(name).await
                    } else {
                        docker.unpause_container(name).await
                    }
                })
                .await;
            let Err(trouble) = asked else { return Ok(()) };
            // The engine says the same of one that is as it should be and of one that has ended.
            let state = self.inspect(name, QUICK).await.ok().and_then(|found| found.state);
            let running = state.filter(|state| state.running == Some(true));
            match running.and_then(|state| state.paused) {
                Some(paused) if paused == wanted => return Ok(()),
                // An earlier request whose caller went away was carried out in between.
                Some(_) if attempt < PAUSE_ATTEMPTS => attempt += 1,
                Some(_) | None => break trouble,
            }
        };
        let code = match &trouble {
            trouble if trouble.is_missing() => RuntimeErrorCode::SandboxUnknown,
            Trouble::Unanswered(_) => RuntimeErrorCode::DeadlineExceeded,
            Trouble::Unreachable(_) | Trouble::Refused { .. } => RuntimeErrorCode::System,
        };
        Err(self.engine.failed(code, step, &trouble))
    }
}

/// How a container that is over ended; none while it runs.
fn status_of(state: &ContainerState) -> Option<ExitStatus> {
    let code = state.exit_code.filter(|_| state.running != Some(true))?;
    match code.checked_sub(SIGNALS_ABOVE) {
        Some(signal @ 1..=SIGNAL_MAX) => i32::try_from(signal).ok().map(ExitStatus::Signal),
        Some(_) | None => i32::try_from(code).ok().map(ExitStatus::Code),
    }
}

#[async_trait]
impl Maker for DockerMaker {
    fn capabilities(&self) -> Capabilities {
        let facts = self.shared.engine.facts();
        // What an engine does not speak of it can do.
        let can = |said: fn(&bollard::models::SystemInfo) -> Option<bool>| {
            facts.as_ref().is_none_or(|facts| said(&facts.info) != Some(false))
        };
        Capabilities {
            memory_limit: can(|info| info.memory_limit),
            cpu_limit: can(|info| info.cpu_cfs_quota),
            pids_limit: can(|info| info.pids_limit),
            freeze: true,
            disk_workspaces: false,
            aliases: false,
            terminals: true,
            scale_file: true,
            users: Users::Alone,
        }
    }

    fn renewable(&self) -> bool {
        self.shared.renewable.load(Ordering::Relaxed)
    }

    fn trouble(&self) -> Option<String> {
        self.shared.engine.absence()
    }

    fn check(&self, spec: &LaunchSpec) -> Result<(), RuntimeError> {
        let cause = match (&spec.root, self.shared.engine.endpoint()) {
            (Root::Directory(_), _) => {
                "directories are no roots of containers: import it as an image"
            }
            (Root::Host, Endpoint::Tcp(_)) => {
                "the Docker engine is on another machine, whose programs are not these: name an image"
            }
            (Root::Host, Endpoint::Unix(_)) | (Root::Image(_) | Root::Named { .. }, _) => {
                return Ok(());
            }
        };
        Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause))
    }

    fn making_can_be_dropped(&self) -> bool {
        true
    }

    async fn make(&self, spec: &LaunchSpec) -> Result<Made, RuntimeError> {
        self.shared.make(spec).await
    }

    async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.shared.remove(instance).await
    }

    async fn freeze(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.shared.pause(instance, true).await
    }

    async fn thaw(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.shared.pause(instance, false).await
    }

    fn memory_ran_out(&self, instance: InstanceId) -> bool {
        self.shared.instances.get(instance).is_some_and(|one| one.memory_ran_out())
    }

    async fn end(&self, instance: InstanceId) -> End {
        let container = self.shared.names.container(instance);
        let known = self.shared.instances.get(instance);
        let over = async {
            // Its connection breaks a moment before the engine knows.
            loop {
                let found = self.shared.inspect(&container, END_PATIENCE).await.ok()?;
                let state = found.state?;
                if let Some(status) = status_of(&state) {
                    return Some((status, state.oom_killed == Some(true)));
                }
                sleep(END_PAUSE).await;
            }
        };
        let Ok(Some((status, ran_out))) = timeout(END_PATIENCE, over).await else {
            return End::default();
        };
        let killed = status == ExitStatus::Signal(KILLED);
        let lately = known.is_none_or(|known| known.ended_for_want_of_memory());
        End { status: Some(status), out_of_memory: ran_out && killed && lately }
    }

    async fn fallen(&self) -> InstanceId {
        self.shared.instances.next_fallen().await
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        // What is ours is known without an engine; a server must start and go on without one.
        let listed = self.shared.of_this_run().await.unwrap_or_else(|trouble| {
            tracing::debug!(why = trouble.said(), "containers cannot be listed");
            Vec::new()
        });
        Ok(listed.into_iter().filter_map(|listed| listed.instance).collect())
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        self.shared.reap().await
    }

    async fn close(&self) -> Result<(), RuntimeError> {
        self.shared.close().await
    }
}
