//! A node for tests: its runtime and its store outlive it, so that it can be killed and started
//! again on what it left.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::template::{Recycle, RuntimeKind, WorkspaceKind};
use model::{KeyId, NodeConfig, Refusal, Role, Template, TemplateName, Wall};
use runtime::fake::{FakeRuntime, FakeSettings};
use runtime::{Capabilities, Collected, ExecSpec, RunLimits};
use store::Retention;
use store::memory::MemoryStore;
use workspaces::Archives;

use crate::{
    Caller, CheckoutRequest, Engine, EngineConfig, HandedOut, ProcessLogs, Runtimes, UseKind,
    WallClock,
};

pub(super) const ADMIN: Caller = Caller::SERVER;
pub(super) const ALICE: Caller = Caller { key: KeyId::from_u128(0xa11ce), role: Role::Use };
pub(super) const BOB: Caller = Caller { key: KeyId::from_u128(0xb0b), role: Role::Use };

pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) runtime: Arc<FakeRuntime>,
    /// Another runtime, which stands for one that has images of its own.
    pub(super) docker: Arc<FakeRuntime>,
    pub(super) store: Arc<MemoryStore>,
    config: EngineConfig,
    place: Arc<Place>,
}

static PLACES: AtomicU64 = AtomicU64::new(0);

/// A directory that is removed with the test.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn new() -> Self {
        let n = PLACES.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("engine-test-{}-{n}", std::process::id())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn name(text: &str) -> TemplateName {
    TemplateName::new(text).unwrap()
}

pub(super) fn template(text: &str) -> Template {
    Template { runtime: RuntimeKind::Fake, ..Template::named(name(text)) }
}

/// The same, with its workspaces in memory wherever it is.
pub(super) fn in_memory(text: &str) -> Template {
    let mut template = template(text);
    template.workspace.kind = Some(WorkspaceKind::Memory);
    template
}

pub(super) fn config() -> EngineConfig {
    EngineConfig {
        egress: None,
        node: NodeConfig::default(),
        shutdown_grace_ms: 10_000,
        templates: vec![template("default")],
        first_templates: Vec::new(),
        workspaces: None,
        archives: None,
        seeds: None,
        lost_found: None,
        lost_found_keep: None,
        process_logs: None,
        strays: crate::Strays::Remove,
        wall: WallClock::Steady(Wall(1_700_000_000_000)),
        roots: crate::Roots::default(),
        mounts: crate::Mounts::default(),
        role_limits: model::RoleLimits::default(),
        environment: None,
    }
}

impl Node {
    pub(super) async fn start(config: EngineConfig) -> Self {
        let store = Arc::new(MemoryStore::new(Retention::default()));
        Self::on(store, config).await
    }

    pub(super) async fn on(store: Arc<MemoryStore>, config: EngineConfig) -> Self {
        Self::at(store, config, Arc::new(Place::new())).await
    }

    async fn at(store: Arc<MemoryStore>, config: EngineConfig, place: Arc<Place>) -> Self {
        Self::recycling(store, config, place, Recycle::Wipe).await
    }

    /// A node on which a trial of a workspace on disk failed.
    pub(super) async fn start_without_disk(config: EngineConfig, why: &str) -> Self {
        let store = Arc::new(MemoryStore::new(Retention::default()));
        let place = Arc::new(Place::new());
        let tried = |runtimes: Runtimes| runtimes.without_disk(RuntimeKind::Fake, why);
        Self::of(store, config, place, Recycle::Wipe, tried).await
    }

    async fn recycling(
        store: Arc<MemoryStore>,
        config: EngineConfig,
        place: Arc<Place>,
        recycle: Recycle,
    ) -> Self {
        Self::of(store, config, place, recycle, |runtimes| runtimes).await
    }

    async fn of(
        store: Arc<MemoryStore>,
        mut config: EngineConfig,
        place: Arc<Place>,
        recycle: Recycle,
        changed: impl FnOnce(Runtimes) -> Runtimes,
    ) -> Self {
        // Files in memory are saved here, unless a test has a directory of its own.
        let archives = || Archives::open(place.0.join("archives")).unwrap();
        config.archives.get_or_insert_with(archives);
        config.process_logs.get_or_insert_with(|| ProcessLogs {
            directory: place.0.join("processes"),
            each_bytes: 4 << 20,
            all_bytes: 64 << 20,
        });
        let runtime = Arc::new(FakeRuntime::new(FakeSettings {
            any_workspace: true,
            ..FakeSettings::default()
        }));
        let capabilities = Capabilities { aliases: false, ..Capabilities::ALL };
        let settings = FakeSettings { capabilities, recycle, ..FakeSettings::default() };
        let docker = Arc::new(FakeRuntime::new(settings));
        let runtimes = Runtimes::new()
            .with(RuntimeKind::Fake, Arc::clone(&runtime) as _)
            .with(RuntimeKind::Docker, Arc::clone(&docker) as _)
            .without(RuntimeKind::Runc, "it is not in PATH");
        let runtimes = changed(runtimes);
        let started = Engine::start(config.clone(), Arc::clone(&store) as _, runtimes).await;
        Self { engine: started.unwrap().engine, runtime, docker, store, config, place }
    }

    /// What `kill -9` does: commits survive, and every sandbox is gone with its launcher.
    pub(super) async fn kill_and_start(self) -> Self {
        self.kill_and_start_recycling(Recycle::Wipe).await
    }

    /// The same, and containers are recycled in another way by then.
    pub(super) async fn kill_and_start_recycling(self, recycle: Recycle) -> Self {
        let store = Arc::new(self.store.crash());
        self.engine.core.halt();
        Self::recycling(store, self.config, self.place, recycle).await
    }

    /// The same, with another configuration.
    pub(super) async fn kill_and_start_with(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self.kill_and_start().await
    }

    /// Lets everything in progress arrive.
    pub(super) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    pub(super) async fn checkout(&self, caller: Caller) -> Result<HandedOut, Refusal> {
        self.engine.checkout(caller, CheckoutRequest::of(name("default"))).await
    }

    pub(super) async fn run(
        &self,
        caller: Caller,
        sandbox: model::SandboxId,
        line: &str,
    ) -> Result<Collected, Refusal> {
        let used = self.engine.use_sandbox(caller, sandbox, UseKind::Exec).await?;
        let limits = RunLimits::from(&used.limits());
        used.run(ExecSpec::shell(line), limits).await
    }
}
