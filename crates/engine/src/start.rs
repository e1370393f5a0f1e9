//! Starts a node; after a crash, an orderly stop, or for the first time, the steps are the same.
//! The journal is loaded, what an earlier run left is removed, and the kernel is restored from the
//! journal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use egress::Egress;
use kernel::{Boot, Event, Kernel, Recovery};
use model::config::InvalidConfig;
use model::record::Journal;
use model::state::PoolPhase;
use model::template::RuntimeTraits;
use model::{
    ErrorCode, InstanceId, NodeConfig, Refusal, RoleLimits, Template, TemplateName, WorkspaceId,
};
use runtime::{Deaths, LostGuests, Reaped, RuntimeError, ScaleNotes};
use store::{Store, StoreError};
use tokio::time::{Instant, sleep};
use workspaces::{Archives, LostFound, Seeds, Workspaces};

use crate::boxed;
use crate::clock::{Clock, WallClock};
use crate::core::{Core, Parts, unavailable};
use crate::keys::Keyring;
use crate::metering::Metering;
use crate::mounts::Mounts;
use crate::network::{self, Networks};
use crate::processes::{LogDirectory, ProcessLogs};
use crate::roots::Roots;
use crate::runtimes::Runtimes;
use crate::secrets::{ReadVariable, Secrets};
use crate::templates::log_placement;
use crate::workspace_disk::Disk;
use crate::{
    Engine, clock, commit, deaths, disk_usage, image_pins, lost_found, metering, named_sessions,
    processes, scale_file, secrets, seed_archives, timer,
};

/// How long interrupted removals of pools may take.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);

/// The pause before another try to put the configured templates in place.
const BEGIN_PAUSE: Duration = Duration::from_secs(1);

/// The settings of a node.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// Settings of the kernel.
    pub node: NodeConfig,
    /// How long running work may go on after the server was asked to stop.
    pub shutdown_grace_ms: u64,
    /// Templates of the configuration. They replace those of the same name, whatever changed
    /// meanwhile: the configuration counts.
    pub templates: Vec<Template>,
    /// Templates for a node that has none.
    pub first_templates: Vec<Template>,
    /// Where root filesystems are found besides the host's own.
    pub roots: Roots,
    /// The directories of the host that templates may mount.
    pub mounts: Mounts,
    /// The way out of sandboxes; none if they have loopback only.
    pub egress: Option<Egress>,
    /// Workspaces on disk; none if the node has none.
    pub workspaces: Option<Arc<Workspaces>>,
    /// Archives of workspaces; without them, files in memory cannot be saved.
    pub archives: Option<Archives>,
    /// Seed archives, with which workspaces begin.
    pub seeds: Option<Seeds>,
    /// Where workspaces and archives that the store does not name are put; none if they are
    /// removed.
    pub lost_found: Option<LostFound>,
    /// How long they stay there; for ever if not given.
    pub lost_found_keep: Option<Duration>,
    /// Where the output of processes is stored; none if only what fits beside their records is.
    pub process_logs: Option<ProcessLogs>,
    /// What happens to files that the store does not name.
    pub strays: Strays,
    /// The source of wall time.
    pub wall: WallClock,
    /// The limits of keys that have none of their own.
    pub role_limits: RoleLimits,
    /// Reads a variable of the server for claims that name it as a secret; none if they may not.
    pub environment: Option<ReadVariable>,
}

/// What happens to workspaces, archives and seed archives that the store does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strays {
    /// This store is authoritative. Workspaces and archives are moved to lost+found if there is
    /// one; everything else is left from an earlier run, and removed.
    #[default]
    Remove,
    /// Another store may name them.
    Leave,
}

/// What the configuration says to serve from the start.
struct ConfiguredTemplates {
    templates: Vec<Template>,
    first: Vec<Template>,
    wanted: Vec<TemplateName>,
}

impl StartError {
    /// Whether it would have started if the store could be written.
    fn is_store_unwritable(&self) -> bool {
        match self {
            Self::Template(_, refusal) => refusal.code == ErrorCode::StoreUnavailable,
            Self::Config(_)
            | Self::Store(_)
            | Self::Runtime(_)
            | Self::ProcessLogs(_)
            | Self::Random(_) => false,
        }
    }
}

/// A node that runs.
pub struct Started {
    /// The node.
    pub engine: Engine,
    /// What the kernel found of an earlier run in the store.
    pub recovery: Recovery,
    /// What the runtimes found of earlier runs on the machine.
    pub reaped: Vec<Reaped>,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error("configuration: {0}")]
    Config(#[from] InvalidConfig),
    /// Its store cannot be read.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// A runtime does not work.
    #[error("runtime: {0}")]
    Runtime(#[from] RuntimeError),
    /// A template of the configuration was refused.
    #[error("template \"{0}\": {1}")]
    Template(String, Refusal),
    /// The directory for the output of processes cannot be used.
    #[error("output of processes: {0}")]
    ProcessLogs(std::io::Error),
    /// The machine gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

impl Engine {
    /// Starts a node.
    #[boxed]
    pub async fn start(
        mut config: EngineConfig,
        store: Arc<dyn Store>,
        runtimes: Runtimes,
    ) -> Result<Started, StartError> {
        config.node.validate()?;
        let wanted = config.node.templates.clone();
        let loaded = store.load().await?;
        let keyring = Keyring::new(store.keys().await?, config.role_limits.clone());
        let used = store.usage().await?;
        let watched = WatchedRuntimes::begin(&runtimes).await?;
        let disk = disk_of(&mut config, &runtimes);
        let clock = Clock::new(config.wall);
        match config.strays {
            Strays::Remove => {
                let recorded = recorded_workspaces(&loaded.journal);
                let settled = disk.put_aside_strays(recorded, clock.now().wall).await?;
                lost_found::log_strays(settled, disk.lost_found.as_ref());
            }
            Strays::Leave => {}
        }
        let process_logs = open_process_logs(config.process_logs).await?;
        let max_processes = config.node.max_processes as usize;
        let scan_interval_ms = config.node.workspace_scan_interval_ms;
        let left = processes::end_left_over(&*store, process_logs.as_ref(), clock.now().wall);
        let left = left.await?;
        if left.ended > 0 {
            let processes = left.ended;
            tracing::info!(processes, "processes of the run before were marked as ended");
        }
        let names = named_sessions::left_over(&*store).await?;
        let metering = Metering::new(used, clock.now().mono);
        let boot = Boot::new(config.node, random()?, clock.now());
        let (kernel, recovery) = Kernel::restore(boot, loaded.journal, &watched.alive);
        let core = Arc::new(Core::new(Parts {
            kernel,
            names,
            clock,
            store,
            runtimes,
            roots: config.roots,
            mounts: config.mounts,
            networks: Networks::new(config.egress.clone()),
            disk,
            scan_interval_ms,
            keyring,
            secrets: Secrets::new(config.environment),
            metering,
            last_event: loaded.last_event,
            process_logs,
            max_processes,
            shutdown_grace_ms: config.shutdown_grace_ms,
            id_base: random()?,
        }));
        if let Some(error) = left.why {
            tracing::warn!(
                %error,
                "the store cannot be written; the node starts and serves reads only"
            );
            core.keep_running(processes::store_left_over(Arc::clone(&core), left.unstored));
        }
        core.take_first_decision();
        named_sessions::go_on_ending(&core);
        keep_running(&core, config.strays, config.lost_found_keep);
        image_pins::pin_now(&core).await;
        core.keep_running(image_pins::run(Arc::clone(&core)));
        network::follow(&core, config.egress.as_ref());
        let reaped = watched.follow(&core);
        let engine = Self::of(core);
        engine.apply_all_limits().await;
        secrets::count(&engine.core).await;
        engine.look_at_images().await;
        let configured = ConfiguredTemplates {
            templates: config.templates,
            first: config.first_templates,
            wanted,
        };
        engine.put_first_templates(configured).await?;
        Ok(Started { engine, recovery, reaped })
    }
}

/// What the runtimes found of earlier runs, and what they report from now on.
struct WatchedRuntimes {
    reaped: Vec<Reaped>,
    alive: Vec<InstanceId>,
    deaths: Vec<Deaths>,
    lost_guests: Vec<LostGuests>,
    scale_notes: Vec<ScaleNotes>,
}

impl WatchedRuntimes {
    /// Passes on what the runtimes report, as long as the node runs. Returns what was removed.
    fn follow(self, core: &Arc<Core>) -> Vec<Reaped> {
        for deaths in self.deaths {
            core.keep_running(deaths::run(Arc::clone(core), deaths));
        }
        for lost in self.lost_guests {
            core.keep_running(deaths::run_lost_guests(Arc::clone(core), lost));
        }
        for notes in self.scale_notes {
            core.keep_running(scale_file::run(Arc::clone(core), notes));
        }
        self.reaped
    }

    /// Watches each runtime before it removes its orphans, so that no death is missed.
    async fn begin(runtimes: &Runtimes) -> Result<Self, RuntimeError> {
        let mut watched = Self {
            reaped: Vec::new(),
            alive: Vec::new(),
            deaths: Vec::new(),
            lost_guests: Vec::new(),
            scale_notes: Vec::new(),
        };
        for runtime in runtimes.iter() {
            watched.deaths.push(runtime.events());
            watched.lost_guests.push(runtime.lost_guests());
            watched.scale_notes.push(runtime.scale_notes());
            watched.reaped.push(runtime.reap_orphans().await?);
            watched.alive.extend(runtime.list().await?);
        }
        Ok(watched)
    }
}

async fn open_process_logs(
    settings: Option<ProcessLogs>,
) -> Result<Option<Arc<LogDirectory>>, StartError> {
    let Some(settings) = settings else { return Ok(None) };
    let opened = tasks::spawn_blocking(move || LogDirectory::open(settings)).await;
    let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    Ok(Some(Arc::new(opened.map_err(StartError::ProcessLogs)?)))
}

/// The workspaces of the node, taken from its configuration.
fn disk_of(config: &mut EngineConfig, runtimes: &Runtimes) -> Disk {
    Disk {
        hard: config.workspaces.as_ref().map(|workspaces| workspaces.hard().kept()),
        unable: runtimes.without_disk_support(),
        failed_trials: runtimes.failed_disk_trials(),
        workspaces: config.workspaces.take(),
        archives: config.archives.take(),
        seeds: config.seeds.take(),
        lost_found: config.lost_found.take(),
        spared_bytes: config.node.workspace_free_floor_mb.saturating_mul(1 << 20),
        ..Disk::default()
    }
}

/// Starts the tasks that run for as long as the engine lives.
fn keep_running(core: &Arc<Core>, strays: Strays, lost_found_keep: Option<Duration>) {
    core.keep_running(commit::run(Arc::clone(core)));
    core.keep_running(timer::run(Arc::clone(core)));
    core.keep_running(clock::watch(Arc::clone(core)));
    core.keep_running(processes::save(Arc::clone(core)));
    core.keep_running(processes::store(Arc::clone(core)));
    core.keep_running(processes::sweep(Arc::clone(core), strays == Strays::Remove));
    core.keep_running(disk_usage::watch_free(Arc::clone(core)));
    core.keep_running(disk_usage::measure(Arc::clone(core)));
    core.keep_running(disk_usage::measure_sleeping(Arc::clone(core)));
    core.keep_running(metering::run(Arc::clone(core)));
    match strays {
        Strays::Remove => core.keep_running(seed_archives::run(Arc::clone(core))),
        Strays::Leave => {}
    }
    core.keep_running(lost_found::run(Arc::clone(core), lost_found_keep));
}

impl Engine {
    /// Puts the configured templates in place, or later if the store cannot be written now.
    async fn put_first_templates(&self, configured: ConfiguredTemplates) -> Result<(), StartError> {
        match self.put_templates(&configured).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_store_unwritable() => {
                tracing::warn!(
                    %error,
                    "the configured templates are put in place when the store can be written"
                );
                self.core.keep_running(self.clone().put_templates_later(configured));
                Ok(())
            }
            Err(error) => {
                // Pools may be warming already: nothing of them must stay behind.
                let _ = self.shutdown_now().await;
                Err(error)
            }
        }
    }

    /// Puts the configured templates in place.
    async fn put_templates(&self, configured: &ConfiguredTemplates) -> Result<(), StartError> {
        self.finish_removals().await?;
        let none = configured.templates.is_empty() && self.templates().is_empty();
        let templates = if none { &configured.first } else { &configured.templates };
        for template in templates {
            self.put_configured(template.clone()).await?;
        }
        self.update_pool_traits().await;
        self.refuse_unknown(&configured.wanted)
    }

    /// Does so once the store can be written. Then it is too late to refuse the start.
    async fn put_templates_later(self, configured: ConfiguredTemplates) {
        loop {
            self.core.journal_health.until_healthy().await;
            match self.put_templates(&configured).await {
                Ok(()) => return,
                Err(error) if error.is_store_unwritable() => sleep(BEGIN_PAUSE).await,
                Err(error) => {
                    tracing::error!(%error, "the configured templates cannot be put in place");
                    let _ = self.core.templates_failed.set(error.to_string());
                    return;
                }
            }
        }
    }

    /// Whether used sandboxes are wiped, and where workspaces are, depends on the runtimes and the
    /// disk as they are now, not as they were when a template was put.
    async fn update_pool_traits(&self) {
        for template in self.templates() {
            let Ok(runtime) = self.core.runtimes.of(template.runtime) else { continue };
            let known = self.core.read(|kernel| kernel.traits_of(&template.name));
            let Some(known) = known else { continue };
            let (recycle, name) = (runtime.traits().recycle, template.name.clone());
            let traits = match self.traits_for(runtime.traits(), &template) {
                Ok((now, placed)) => {
                    log_placement(&template, &placed);
                    let RuntimeTraits { workspace_survives, disk, .. } = now;
                    RuntimeTraits { recycle, workspace_survives, disk, ..known }
                }
                Err(refusal) => {
                    tracing::warn!(
                        template = %name,
                        %refusal,
                        "this node cannot do what a template asks for"
                    );
                    RuntimeTraits { recycle, ..known }
                }
            };
            if traits != known {
                let event = Event::TemplatePut { template, traits };
                // A pool that is being removed refuses it.
                if let Err(refusal) = self.core.ask(self.core.request(), event).await {
                    tracing::debug!(
                        template = %name,
                        %refusal,
                        "the traits of a pool were not updated"
                    );
                }
            }
        }
    }

    /// A configuration that names templates must name existing ones.
    fn refuse_unknown(&self, wanted: &[TemplateName]) -> Result<(), StartError> {
        let known = self.templates();
        let unknown = wanted.iter().find(|name| known.iter().all(|one| one.name != **name));
        let Some(name) = unknown else { return Ok(()) };
        let known: Vec<_> = known.iter().map(|template| template.name.as_str()).collect();
        let cause = format!(
            "node.templates names a template that does not exist; the templates are {}",
            known.join(", ")
        );
        Err(StartError::Template(name.to_string(), Refusal::new(ErrorCode::TemplateUnknown, cause)))
    }

    /// Removals of pools that a crash interrupted are finished before templates are put.
    async fn finish_removals(&self) -> Result<(), StartError> {
        let removing = || self.pools().into_iter().find(|pool| pool.phase == PoolPhase::Destroying);
        let began = Instant::now();
        while let Some(pool) = removing() {
            if let Some(cause) = self.core.journal_health.failure() {
                return Err(StartError::Template(pool.template.to_string(), unavailable(&cause)));
            }
            if began.elapsed() > REMOVAL_PATIENCE {
                let cause = "the removal that a crash interrupted takes longer than 30 s";
                let refusal = Refusal::new(ErrorCode::DeadlineExceeded, cause);
                return Err(StartError::Template(pool.template.to_string(), refusal));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn put_configured(&self, template: Template) -> Result<(), StartError> {
        let name = template.name.clone();
        match self.template(&name) {
            Some(known) if *known == template => return Ok(()),
            Some(_) => {
                tracing::info!(template = %name, "a template was reset to its configuration");
            }
            None => {}
        }
        let put = self.put_unlogged(template).await;
        put.map(|_| ()).map_err(|refusal| StartError::Template(name.to_string(), refusal))
    }
}

/// The workspaces that records name, also those that are to be deleted.
fn recorded_workspaces(journal: &Journal) -> BTreeSet<WorkspaceId> {
    let sandboxes = journal.sandboxes.iter();
    let named = sandboxes.flat_map(|record| [Some(record.workspace), record.copying_from]);
    let shelved = journal.sessions.iter().filter_map(|record| record.files);
    let shelved = shelved.map(|files| files.workspace);
    named.flatten().chain(shelved).chain(journal.doomed_workspaces.iter().copied()).collect()
}

/// Bits that no earlier run had.
fn random() -> Result<u64, StartError> {
    getrandom::u64().map_err(StartError::Random)
}
