//! The maker of Docker containers. It keeps as little state as it can: the engine knows what
//! exists, and labels find it. What was in progress when the engine went away is cleaned up when it
//! comes back.

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
use super::container_config::overridden_volumes;
use super::container_launch::{ContainerLaunch, LaunchFailure};
use super::engine::{Engine, EngineFailure, QUICK};
use super::engine_events::follow;
use super::engine_setup::{EngineSetup, Preparation};
use super::images::{Image, Images};
use super::instances::{Instance, Instances};
use super::names::Names;
use crate::container::{ContainerExit, MadeContainer, Maker, writable_mounts};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{Capabilities, LaunchSpec, NetworkAbility, Reaped, Root, Users};

const STEP: &str = "launch";

/// How long to ask how a container exited: callers wait for the reason.
const END_PATIENCE: Duration = Duration::from_millis(1500);
/// The pause before the next request.
const END_PAUSE: Duration = Duration::from_millis(20);
/// How many times a pause or unpause is tried: an earlier request may still be carried out.
const PAUSE_ATTEMPTS: u32 = 3;
/// An exit code above this stands for a signal.
const SIGNALS_ABOVE: i64 = 128;
const SIGNAL_MAX: i64 = 64;
/// SIGKILL, by which the Linux kernel ends processes for want of memory.
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
    /// A cleanup is in progress.
    pub tidying: AtomicBool,
    /// This host sees first processes, and connections pass descriptors, as far as is known.
    renewable: AtomicBool,
}

impl DockerMaker {
    /// Starts to follow an engine, which may be absent.
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

    /// Waits a little for the engine, so that the runtime's traits are known, such as whether used
    /// containers can be wiped.
    pub(super) async fn look_for_engine(&self, patience: Duration) -> Result<(), EngineFailure> {
        let found = match timeout(patience, self.shared.engine.find()).await {
            Ok(found) => found?,
            Err(_) => return Err(EngineFailure::Unanswered("no answer in time".into())),
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
    ) -> Result<ContainerInspectResponse, EngineFailure> {
        self.engine
            .ask(patience, |docker| async move { docker.inspect_container(container, None).await })
            .await
    }

    /// Makes a container. It stays registered until it is removed, also if it was never created.
    async fn make(self: &Arc<Self>, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError> {
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
    ) -> Result<MadeContainer, RuntimeError> {
        // Not all of the time, so that the error can name what was waited for.
        let image = self.images.find(&spec.root, spec.ready_timeout.mul_f32(0.8)).await?;
        let turn = timeout(spec.ready_timeout, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let cause = "too many containers are being created; raise docker.creates_at_once";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
        };
        let places = writable_mounts(spec);
        let refused = |cause| RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause);
        let image = Image {
            volumes: overridden_volumes(&image.volumes, &places).map_err(refused)?,
            ..image
        };
        let mut setup = self.setup(spec, &image).await?;
        let mut made = self.make_with(spec, &image, &setup, instance).await;
        if let Err(LaunchFailure::SetupGone(_)) = made {
            // The engine's volume or our directory was removed: try once more with a new setup.
            self.preparation.forget(&setup);
            self.remove_container(spec.instance).await?;
            setup = self.setup(spec, &image).await?;
            made = self.make_with(spec, &image, &setup, instance).await;
        }
        let made =
            made.map_err(|(LaunchFailure::SetupGone(error) | LaunchFailure::Failed(error))| error)?;
        let seen = made.passes_descriptors && made.pid.is_some();
        self.renewable.store(seen && geteuid().is_root(), Ordering::Relaxed);
        Ok(made)
    }

    async fn setup(
        &self,
        spec: &LaunchSpec,
        image: &Image,
    ) -> Result<Arc<EngineSetup>, RuntimeError> {
        let setup = self.preparation.setup(image, spec.ready_timeout).await?;
        if spec.root == Root::Host && !setup.same_files {
            let cause = "the Docker engine does not see this machine's files, so their programs \
                         cannot be shown: name an image";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        }
        Ok(setup)
    }

    async fn make_with(
        self: &Arc<Self>,
        spec: &LaunchSpec,
        image: &Image,
        setup: &EngineSetup,
        instance: &Arc<Instance>,
    ) -> Result<MadeContainer, LaunchFailure> {
        ContainerLaunch { shared: self, spec, image, setup, volumes: &image.volumes, instance }
            .run()
            .await
    }

    async fn pause(&self, instance: InstanceId, wanted: bool) -> Result<(), RuntimeError> {
        let step = if wanted { "freeze" } else { "thaw" };
        let container = self.names.container(instance);
        let name = container.as_str();
        let mut attempt = 1;
        let failure = loop {
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
            let Err(failure) = asked else { return Ok(()) };
            // The engine answers the same if the container is in that state already and if it has
            // exited.
            let state = self.inspect(name, QUICK).await.ok().and_then(|found| found.state);
            let running = state.filter(|state| state.running == Some(true));
            match running.and_then(|state| state.paused) {
                Some(paused) if paused == wanted => return Ok(()),
                // An earlier request whose caller went away was carried out in between.
                Some(_) if attempt < PAUSE_ATTEMPTS => attempt += 1,
                Some(_) | None => break failure,
            }
        };
        let code = match &failure {
            failure if failure.is_missing() => RuntimeErrorCode::SandboxUnknown,
            EngineFailure::Unanswered(_) => RuntimeErrorCode::DeadlineExceeded,
            EngineFailure::Unreachable(_) | EngineFailure::Refused { .. } => {
                RuntimeErrorCode::System
            }
        };
        Err(self.engine.failed(code, step, &failure))
    }
}

/// How a container exited; none while it runs.
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
        // An ability that the engine does not mention is assumed.
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
            network: NetworkAbility::None,
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
                "the root cannot be a directory: import the directory as an image"
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

    async fn make(&self, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError> {
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

    fn cpu_time(&self, instance: InstanceId) -> Option<Duration> {
        self.shared.instances.get(instance)?.cpu_time()
    }

    async fn end(&self, instance: InstanceId) -> ContainerExit {
        let container = self.shared.names.container(instance);
        let known = self.shared.instances.get(instance);
        let exit = async {
            // The connection breaks a moment before the engine knows.
            loop {
                let found = self.shared.inspect(&container, END_PATIENCE).await.ok()?;
                let state = found.state?;
                if let Some(status) = status_of(&state) {
                    return Some((status, state.oom_killed == Some(true)));
                }
                sleep(END_PAUSE).await;
            }
        };
        let Ok(Some((status, ran_out))) = timeout(END_PATIENCE, exit).await else {
            return ContainerExit::default();
        };
        let killed = status == ExitStatus::Signal(KILLED);
        let lately = known.is_none_or(|known| known.ended_for_want_of_memory());
        ContainerExit { status: Some(status), out_of_memory: ran_out && killed && lately }
    }

    async fn next_dead(&self) -> InstanceId {
        self.shared.instances.next_dead().await
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        // Our own containers are registered; a server must start and run without an engine.
        let listed = self.shared.of_this_run().await.unwrap_or_else(|failure| {
            tracing::debug!(
                why = failure.message(),
                "the engine cannot list containers; using the registry only"
            );
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
