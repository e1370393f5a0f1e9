//! Starting: after a crash, an orderly stop, or for the first time, it is the same. What the store
//! says is taken up, what an earlier run left is removed, and the kernel is rebuilt; from then on
//! everything goes its ordinary way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Boot, Event, Kernel, Recovery};
use model::config::InvalidConfig;
use model::record::Journal;
use model::state::PoolPhase;
use model::template::RuntimeTraits;
use model::{ErrorCode, NodeConfig, Refusal, Template, TemplateName, WorkspaceId};
use runtime::{Reaped, RuntimeError};
use store::{Store, StoreError};
use tokio::time::{Instant, sleep};
use workspaces::{Archives, LostFound, Seeds, Workspaces};

use crate::boxed;
use crate::clock::{Clock, WallClock};
use crate::core::{Core, Parts, unavailable};
use crate::keys::Keyring;
use crate::mounts::Mounts;
use crate::processes::{ProcessLogs, Shelf};
use crate::roots::Roots;
use crate::runtimes::Runtimes;
use crate::templates::say_placed;
use crate::workspace_disk::Disk;
use crate::{
    Engine, clock, commit, deaths, disk_usage, image_pins, lost_found, named_sessions, processes,
    scale_file, seed_archives, timer,
};

/// How long pools that were being removed may take to be gone.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(30);

/// How long is waited before it is tried again to put in place what is configured.
const BEGIN_PAUSE: Duration = Duration::from_secs(1);

/// How a node is to be.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// What the kernel decides by.
    pub node: NodeConfig,
    /// How long what runs may go on after the server was asked to stop.
    pub shutdown_grace_ms: u64,
    /// Templates that are there from the start. They replace those of the same name, whatever became
    /// of those meanwhile: what is configured counts.
    pub templates: Vec<Template>,
    /// Templates for a node that has none.
    pub first_templates: Vec<Template>,
    /// Where root filesystems are found besides the host's own.
    pub roots: Roots,
    /// Of which directories of the host something may be shown.
    pub mounts: Mounts,
    /// Where workspaces on disk are; none if there are none.
    pub workspaces: Option<Arc<Workspaces>>,
    /// Where archives of workspaces are; none if nothing can be saved that is only in memory.
    pub archives: Option<Archives>,
    /// Where files are that workspaces begin with.
    pub seeds: Option<Seeds>,
    /// Where workspaces and archives are put that the store does not name; none if they are removed.
    pub lost_found: Option<LostFound>,
    /// For how long they are kept there; for ever if not given.
    pub lost_found_keep: Option<Duration>,
    /// Where the output of processes is kept; none if only what fits beside their records is.
    pub process_logs: Option<ProcessLogs>,
    /// What becomes of files there that the store does not name.
    pub strays: Strays,
    /// Where the time on the wall comes from.
    pub wall: WallClock,
}

/// What becomes of workspaces, archives and seeds that the store does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strays {
    /// This store is the one that knows. Workspaces and archives are put into lost+found if there is
    /// one; everything else is left of an earlier run, and removed.
    #[default]
    Remove,
    /// Another store may name them.
    Leave,
}

/// What a node is to serve from the start.
struct Beginning {
    templates: Vec<Template>,
    first: Vec<Template>,
    wanted: Vec<TemplateName>,
}

impl StartError {
    /// Whether it would have started if the store could be written.
    fn is_for_want_of_the_store(&self) -> bool {
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

/// A node that works.
pub struct Started {
    /// The node.
    pub engine: Engine,
    /// What was found of an earlier run in the store.
    pub recovery: Recovery,
    /// What was found of earlier runs on the machine.
    pub reaped: Vec<Reaped>,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its configuration makes no sense.
    #[error("configuration: {0}")]
    Config(#[from] InvalidConfig),
    /// Its store cannot be read.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// A runtime does not work.
    #[error("runtime: {0}")]
    Runtime(#[from] RuntimeError),
    /// A template of the configuration was refused.
    #[error("template {0}: {1}")]
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
        config: EngineConfig,
        store: Arc<dyn Store>,
        runtimes: Runtimes,
    ) -> Result<Started, StartError> {
        config.node.validate()?;
        let wanted = config.node.templates.clone();
        let loaded = store.load().await?;
        let keyring = Keyring::new(store.keys().await?);
        let mut reaped = Vec::new();
        let mut alive = Vec::new();
        let mut watches = Vec::new();
        let mut scales = Vec::new();
        for runtime in runtimes.iter() {
            watches.push(runtime.events());
            scales.push(runtime.scale_notes());
            reaped.push(runtime.reap_orphans().await?);
            alive.extend(runtime.list().await?);
        }
        let disk = Disk {
            hard: config.workspaces.as_ref().map(|workspaces| workspaces.hard().kept()),
            unable: runtimes.unable_of_disk(),
            why_not: runtimes.disk_tried_in_vain(),
            workspaces: config.workspaces,
            archives: config.archives,
            seeds: config.seeds,
            lost_found: config.lost_found,
            spared_bytes: config.node.workspace_free_floor_mb.saturating_mul(1 << 20),
            ..Disk::default()
        };
        let clock = Clock::new(config.wall);
        match config.strays {
            Strays::Remove => {
                let now = clock.now().wall;
                let settled = disk.settle_strays(written_down(&loaded.journal), now).await?;
                lost_found::tell(settled, disk.lost_found.as_ref());
            }
            Strays::Leave => {}
        }
        let process_logs = match config.process_logs {
            Some(settings) => {
                let opened = tasks::spawn_blocking(move || Shelf::open(settings)).await;
                let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                Some(Arc::new(opened.map_err(StartError::ProcessLogs)?))
            }
            None => None,
        };
        let max_processes = config.node.max_processes as usize;
        let scan_interval_ms = config.node.workspace_scan_interval_ms;
        let left = processes::end_left_over(&*store, process_logs.as_ref(), clock.now().wall);
        let left = left.await?;
        match left.ended {
            0 => {}
            left => tracing::info!(left, "processes ended with the run before"),
        }
        let names = named_sessions::left_over(&*store).await?;
        let boot = Boot::new(config.node, random()?, clock.now());
        let (kernel, recovery) = Kernel::restore(boot, loaded.journal, &alive);
        let core = Arc::new(Core::new(Parts {
            kernel,
            names,
            clock,
            store,
            runtimes,
            roots: config.roots,
            mounts: config.mounts,
            disk,
            scan_interval_ms,
            keyring,
            last_event: loaded.last_event,
            process_logs,
            max_processes,
            shutdown_grace_ms: config.shutdown_grace_ms,
            id_base: random()?,
        }));
        if let Some(error) = left.why {
            tracing::warn!(%error, "the store cannot be written: what is there can be read");
            core.keep_running(processes::store_left_over(Arc::clone(&core), left.unstored));
        }
        core.take_first_decision();
        named_sessions::go_on_ending(&core);
        core.keep_running(commit::run(Arc::clone(&core)));
        core.keep_running(timer::run(Arc::clone(&core)));
        core.keep_running(clock::watch(Arc::clone(&core)));
        core.keep_running(processes::save(Arc::clone(&core)));
        core.keep_running(processes::store(Arc::clone(&core)));
        core.keep_running(processes::sweep(Arc::clone(&core), config.strays == Strays::Remove));
        core.keep_running(disk_usage::watch_free(Arc::clone(&core)));
        core.keep_running(disk_usage::measure(Arc::clone(&core)));
        core.keep_running(disk_usage::measure_kept(Arc::clone(&core)));
        match config.strays {
            Strays::Remove => core.keep_running(seed_archives::run(Arc::clone(&core))),
            Strays::Leave => {}
        }
        core.keep_running(lost_found::run(Arc::clone(&core), config.lost_found_keep));
        image_pins::hold_now(&core).await;
        core.keep_running(image_pins::run(Arc::clone(&core)));
        for watch in watches {
            core.keep_running(deaths::run(Arc::clone(&core), watch));
        }
        for notes in scales {
            core.keep_running(scale_file::run(Arc::clone(&core), notes));
        }
        let engine = Self::of(core);
        engine.look_at_images().await;
        let beginning =
            Beginning { templates: config.templates, first: config.first_templates, wanted };
        match engine.begin(&beginning).await {
            Ok(()) => {}
            Err(error) if error.is_for_want_of_the_store() => {
                tracing::warn!(%error, "what is configured is put in place when the store can be written");
                engine.core.keep_running(engine.clone().begin_later(beginning));
            }
            Err(error) => {
                // Pools may be warming already: nothing of them stays behind.
                let _ = engine.shutdown_now().await;
                return Err(error);
            }
        }
        Ok(Started { engine, recovery, reaped })
    }
}

impl Engine {
    /// Begins to serve what is configured.
    async fn begin(&self, beginning: &Beginning) -> Result<(), StartError> {
        self.finish_removals().await?;
        let none = beginning.templates.is_empty() && self.templates().is_empty();
        let templates = if none { &beginning.first } else { &beginning.templates };
        for template in templates {
            self.put_configured(template.clone()).await?;
        }
        self.tell_pools().await;
        self.refuse_unknown(&beginning.wanted)
    }

    /// Begins once the store can be written. Then it is too late to refuse to start.
    async fn begin_later(self, beginning: Beginning) {
        loop {
            self.core.trouble.over().await;
            match self.begin(&beginning).await {
                Ok(()) => return,
                Err(error) if error.is_for_want_of_the_store() => sleep(BEGIN_PAUSE).await,
                Err(error) => {
                    tracing::error!(%error, "what is configured cannot be put in place");
                    let _ = self.core.not_begun.set(error.to_string());
                    return;
                }
            }
        }
    }

    /// Whether used sandboxes are wiped, and where the files of workspaces are, depends on how runtimes
    /// and the disk are now, not when a template was put.
    async fn tell_pools(&self) {
        for template in self.templates() {
            let Ok(runtime) = self.core.runtimes.of(template.runtime) else { continue };
            let known = self.core.read(|kernel| kernel.traits_of(&template.name));
            let Some(known) = known else { continue };
            let (recycle, name) = (runtime.traits().recycle, template.name.clone());
            let traits = match self.traits_for(runtime.traits(), &template) {
                Ok((now, placed)) => {
                    say_placed(&template, &placed);
                    let RuntimeTraits { workspace_survives, disk, .. } = now;
                    RuntimeTraits { recycle, workspace_survives, disk, ..known }
                }
                Err(refusal) => {
                    tracing::warn!(%name, %refusal, "a template asks for what this node cannot do");
                    RuntimeTraits { recycle, ..known }
                }
            };
            if traits != known {
                let told = Event::TemplatePut { template, traits };
                // A pool that is being removed needs no news.
                if let Err(refusal) = self.core.ask(self.core.request(), told).await {
                    tracing::debug!(%name, %refusal, "a pool was not told how its sandboxes are");
                }
            }
        }
    }

    /// Whoever asks for some templates only means such as there are.
    fn refuse_unknown(&self, wanted: &[TemplateName]) -> Result<(), StartError> {
        let known = self.templates();
        let unknown = wanted.iter().find(|name| known.iter().all(|one| one.name != **name));
        let Some(name) = unknown else { return Ok(()) };
        let known: Vec<_> = known.iter().map(|template| template.name.as_str()).collect();
        let cause = format!(
            "node.templates names it, and there is no such template; there is {}",
            known.join(", ")
        );
        Err(StartError::Template(name.to_string(), Refusal::new(ErrorCode::TemplateUnknown, cause)))
    }

    /// Pools whose removal a crash interrupted are removed before anything is made in their place.
    async fn finish_removals(&self) -> Result<(), StartError> {
        let removing = || self.pools().into_iter().find(|pool| pool.phase == PoolPhase::Destroying);
        let began = Instant::now();
        while let Some(pool) = removing() {
            if let Some(cause) = self.core.trouble.now() {
                return Err(StartError::Template(pool.template.to_string(), unavailable(&cause)));
            }
            if began.elapsed() > REMOVAL_PATIENCE {
                let cause = "its removal, which a crash interrupted, takes very long";
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
            Some(_) => tracing::info!(%name, "a template is put back to what is configured"),
            None => {}
        }
        let put = self.put_quietly(template).await;
        put.map(|_| ()).map_err(|refusal| StartError::Template(name.to_string(), refusal))
    }
}

/// The workspaces that records name, also those that are to be deleted.
fn written_down(journal: &Journal) -> BTreeSet<WorkspaceId> {
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
