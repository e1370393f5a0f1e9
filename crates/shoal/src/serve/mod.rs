//! `shoal serve`: starts the server from its parts: configuration, data directory, launcher, store,
//! engine, API. It only wires them; it decides nothing about sandboxes.

mod address_file;
mod ash;
mod banner;
mod blaxel;
pub(crate) mod data_dir;
mod disk_workspace_probe;
pub(crate) mod egress;
mod first_key;
mod logs;
mod runtimes;
mod stop;
mod stored_images;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::{Api, ConnectionLimits, Settings, WebSettings};
use engine::{
    Archives, Engine, EngineConfig, LostFound, Mounts, ProcessLogs, ReadVariable, Reaped, Recovery,
    Roots, Seeds, StartError, Started, Strays, Workspaces,
};
use model::Template;
use model::template::RuntimeKind;
use runtime::native::{LauncherProcess, Native, NativeConfig};
use store::memory::MemoryStore;
use store::sqlite::{self, Inspected, LossPolicy, SqliteStore};
use store::{Retention, Store, StoreError, StoreErrorCode};
use tokio::sync::watch;

use self::ash::PutError;
use self::data_dir::DataDir;
use self::stop::Stops;
use crate::config::{self, Config, ConfigError, HostContext, Overrides, StoreKind};
use crate::failure::Failure;
use crate::native;
use crate::output::Output;

/// How much longer than running work connections may last at a stop, so that their clients still
/// receive how it ended.
const CONNECTION_EXTRA_GRACE: Duration = Duration::from_secs(30);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Limit on the records of ended processes, with the output that is stored in them.
const PROCESS_BYTES_MAX: u64 = 256 << 20;
/// How readily the kernel ends the server when the machine has no memory left: not before the others,
/// and not never, because it may be the server that uses the memory.
const SERVER_OOM_SCORE: &str = "-500";
/// How long threads may take to end after everything else has ended.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `shoal serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sudo shoal serve                                  on 127.0.0.1:7600, data in /var/lib/shoal\n  \
    sudo shoal serve --listen 127.0.0.1:8000 --data-dir ./data\n  \
    sudo shoal serve --store memory --log-level debug     to try things out; stores nothing\n  \
    sudo shoal serve --set node.max_live=50\n  \
    sudo shoal serve --ash                            also for clients of Ash, on 127.0.0.1:4100\n  \
    sudo shoal serve --blaxel default                 also one sandbox for clients of Blaxel, on 127.0.0.1:8080\n  \
    sudo shoal serve --templates web,batch            start only the pools of these templates\n  \
    sudo shoal serve --new-admin-key                  if DATA_DIR/admin.key is lost\n  \
    sudo shoal serve --accept-loss                    if a start was refused because commits are lost\n\n\
    `shoal config` shows every value that can be set. SIGTERM or Ctrl-C stops the server in order:\n\
    running work may finish, and then the server ends every sandbox. After a second signal the\n\
    server does not wait for running work.\n\n\
    Exit codes: 0 after an orderly stop; 1 if the stop was not orderly; 2 if the configuration, the\n\
    address or the data directory cannot be used; 125 if sandboxes cannot run on this machine.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    overrides: Overrides,
    /// Make another key with the role admin and write it to `DATA_DIR/admin.key`; older keys still work
    #[arg(long)]
    new_admin_key: bool,
    /// Start although commits or the whole database are lost; use this only after a start was
    /// refused for that reason
    #[arg(long)]
    accept_loss: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let effective = config::load(&arguments.overrides, &HostContext::read());
    let effective = effective.map_err(ConfigError::failure)?;
    effective.refuse_unstartable().map_err(ConfigError::failure)?;
    config::warn_of_variables(&effective, output);
    let config = effective.config;
    let place = DataDir::open(&config.server.data_dir, config.store.kind)?;
    // Before any change: damaged data stays as it is until the operator decides.
    place.check()?;
    let inspected = inspect_store(&config, &place, arguments.accept_loss)?;
    let listeners = Listeners {
        main: listen(config.server.listen, "--listen")?,
        ash: config.ash.listen.map(|address| listen(address, "--ash")).transpose()?,
        blaxel: config.blaxel.listen.map(|at| listen(at, "--blaxel-listen")).transpose()?,
    };
    // The launcher opens the image store when it starts.
    let images = images::Store::open(&place.images())
        .map_err(|error| Failure::of_image("cannot open the image store", &error))?;
    let mounts = config.mounts().map_err(|wrong| wrong.failure())?;
    spare_the_server();
    jail::sys::memory::give_back_large_blocks();
    // Before any other thread exists: the launcher is single-threaded and privileged.
    let launcher = start_launcher(&config, &place, &mounts);
    logs::start(config.log)?;
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.server.workers as usize)
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start threads", error))?;
    let served = native::block_on(&tokio, async {
        let parts = Parts { config: &config, place: &place, mounts, output };
        let started = start(&parts, launcher, images, inspected).await?;
        serve(&parts, started, listeners, arguments.new_admin_key).await
    });
    tokio.shutdown_timeout(END_PATIENCE);
    served
}

/// What all steps of the start need.
struct Parts<'a> {
    config: &'a Config,
    place: &'a DataDir,
    /// The directories below which templates may mount files.
    mounts: Mounts,
    output: &'a Output,
}

/// The listening sockets.
struct Listeners {
    main: TcpListener,
    ash: Option<TcpListener>,
    blaxel: Option<TcpListener>,
}

/// Listens before anything is started, so that an address in use is reported at once.
fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        // The backlog of the standard library is small.
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error: std::io::Error| {
        Failure::new(format!("cannot listen on {address}"), error)
            .remedy(format!(
                "stop the program that listens there, or choose another address with {flag}"
            ))
            .usage()
    })
}

/// Asks the kernel to end other processes first if the machine has no memory left. The launcher and
/// the keeper inherit it; sandboxes are given the opposite. It needs a privilege, and without it the
/// server is still spared longer than its sandboxes.
fn spare_the_server() {
    let _ = std::fs::write("/proc/self/oom_score_adj", SERVER_OOM_SCORE);
}

fn start_launcher(
    config: &Config,
    place: &DataDir,
    mounts: &Mounts,
) -> Result<LauncherProcess, Failure> {
    native::raise_descriptor_limit();
    let native = NativeConfig {
        slots: config.node.max_live,
        spares: config.native.spares,
        workspaces: Some(place.workspaces()),
        directories: config.native.directories.clone(),
        mounts: mounts.roots.clone(),
        images: Some(place.images()),
        restart: true,
        ..NativeConfig::new(native::run_directory()?)
    };
    LauncherProcess::start(native).map_err(|error| no_launcher(&error))
}

fn no_launcher(error: &runtime::RuntimeError) -> Failure {
    Failure::of_runtime("cannot start the launcher", error)
        .remedy("`shoal doctor` says what this machine lacks, and what to do about it")
}

async fn start(
    parts: &Parts<'_>,
    launcher: Result<LauncherProcess, Failure>,
    images: images::Store,
    inspected: Option<Inspected>,
) -> Result<Started, Failure> {
    let (config, place) = (parts.config, parts.place);
    let native = native_of(launcher).await;
    let unenforced: Vec<_> = match &native {
        Ok(native) => runtime::Runtime::capabilities(&**native).unenforced().collect(),
        Err(_) => Vec::new(),
    };
    let alive = native.as_ref().ok().cloned();
    let (runtimes, usual) = runtimes::gather(parts, native, &images, &place.node()?).await?;
    let (store, strays) = open_store(config, place, inspected)?;
    let built_in = built_in_templates(config, usual, &unenforced);
    let workspaces = Workspaces::open(place.workspaces()).map_err(|error| {
        Failure::new("cannot use the workspaces directory", error)
            .remedy("check DATA_DIR/workspaces, or choose another with --data-dir")
    })?;
    // Files on disk survive more than files in memory: templates that leave the place open get it
    // on disk, if sandboxes can use it.
    let runtimes = match &alive {
        None => runtimes,
        Some(native) => match disk_workspace_probe::probe(&**native, &workspaces).await {
            Ok(()) => runtimes,
            Err(why) => runtimes.without_disk(RuntimeKind::Native, why),
        },
    };
    let unusable = |what: &str, error| {
        Failure::new(format!("cannot use the {what} directory"), error)
            .remedy(format!("check DATA_DIR/{what}, or choose another with --data-dir"))
    };
    let archives = Archives::open(place.archives()).map_err(|error| unusable("archives", error))?;
    let seeds = Seeds::open(place.seeds()).map_err(|error| unusable("seeds", error))?;
    let egress = egress::start(config)?;
    let engine = EngineConfig {
        egress,
        workspaces: Some(Arc::new(workspaces)),
        archives: Some(archives),
        seeds: Some(seeds),
        lost_found: Some(LostFound::at(place.lost_found())),
        lost_found_keep: match config.store.lost_found_keep_days {
            0 => None,
            days => Some(Duration::from_hours(24 * u64::from(days))),
        },
        strays,
        node: config.node.clone(),
        shutdown_grace_ms: config.server.shutdown_grace_ms,
        templates: config.given_templates().to_vec(),
        first_templates: built_in,
        process_logs: Some(ProcessLogs {
            directory: place.processes(),
            each_bytes: u64::from(config.store.process_log_mb) << 20,
            all_bytes: u64::from(config.store.process_logs_mb) << 20,
        }),
        roots: Roots { images: Some(images), directories: config.native.directories.clone() },
        mounts: parts.mounts.clone(),
        role_limits: config.limits.clone(),
        environment: config.secrets.from_environment.then_some(variable as ReadVariable),
        ..EngineConfig::default()
    };
    let started =
        Engine::start(engine, store, runtimes).await.map_err(|error| not_started(&error))?;
    log_recovery(&started.recovery, &started.reaped);
    put_template_of_ash(started, config, !unenforced.is_empty()).await
}

/// A variable of this server, which a claim may name as a secret.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Puts the template of Ash, now or as soon as the store can be written.
async fn put_template_of_ash(
    started: Started,
    config: &Config,
    best_effort: bool,
) -> Result<Started, Failure> {
    match ash::put_template(&started.engine, config, best_effort).await {
        Ok(()) => Ok(started),
        Err(PutError::RetryLater(refusal)) => {
            tracing::warn!(%refusal, "cannot make the template of Ash yet; the server tries again");
            let (engine, config) = (started.engine.clone(), config.clone());
            tasks::spawn(async move { ash::put_template_later(engine, config, best_effort).await });
            Ok(started)
        }
        Err(PutError::Refused(failure)) => {
            // Leave nothing behind of what was started.
            let _ = started.engine.shutdown_now().await;
            Err(failure)
        }
    }
}

/// The templates of a first start; configured templates count at every start.
fn built_in_templates(
    config: &Config,
    runtime: RuntimeKind,
    unenforced: &[&'static str],
) -> Vec<Template> {
    let mut built_in = match &config.templates {
        Some(_) => Vec::new(),
        None => Config::built_in(),
    };
    for template in &mut built_in {
        template.runtime = runtime;
        // A new user has no template yet that could accept missing limits.
        template.limits.best_effort |= !unenforced.is_empty();
    }
    if !unenforced.is_empty() {
        let names: Vec<_> = unenforced.iter().map(|name| native::limit_in_words(name)).collect();
        tracing::warn!(
            limits = names.join(", "),
            "this machine cannot enforce these limits: templates need limits.best_effort, and the \
             built-in one has it (`shoal doctor` says why)"
        );
    }
    built_in
}

/// The native runtime, if this machine can run it.
async fn native_of(launcher: Result<LauncherProcess, Failure>) -> Result<Arc<Native>, Failure> {
    let native = Native::with(launcher?).await.map_err(|error| no_launcher(&error))?;
    if let Some(reason) = native.shared_user_reason() {
        tracing::warn!(
            reason,
            "guests run as the same user as programs; docs/guides/rootless.md says how to give them \
             subordinate users"
        );
    }
    Ok(Arc::new(native))
}

fn retention(config: &Config) -> Retention {
    Retention {
        events: config.store.events,
        ends: config.store.ends,
        remembered_ends: config.node.remembered_ends.min(config.store.ends),
        turns: config.store.turns,
        turns_age: Duration::from_hours(24 * u64::from(config.store.turns_age_days)),
        turn_bytes: u64::from(config.store.turns_mb) << 20,
        processes: config.store.processes,
        processes_age: Duration::from_hours(24 * u64::from(config.store.processes_age_days)),
        process_bytes: PROCESS_BYTES_MAX,
        database_bytes: u64::from(config.store.database_mb) << 20,
    }
}

/// Checks whether the database may be opened. A store in memory has none.
fn inspect_store(
    config: &Config,
    place: &DataDir,
    accept_loss: bool,
) -> Result<Option<Inspected>, Failure> {
    match config.store.kind {
        StoreKind::Memory => Ok(None),
        StoreKind::Sqlite => {
            let database = sqlite::DatabaseLocation {
                directory: place.path().to_owned(),
                beside: place.trace_of_an_earlier_run(),
                loss: if accept_loss { LossPolicy::Accept } else { LossPolicy::Refuse },
            };
            SqliteStore::inspect(&database, retention(config)).map(Some).map_err(not_opened)
        }
    }
}

fn not_opened(error: StoreError) -> Failure {
    let (code, remedy) = (error.code, error.remedy());
    let failure = Failure::new("cannot open the store", error).remedy(remedy);
    match code {
        // The store recovers by itself only after it was opened.
        StoreErrorCode::DiskFull => {
            failure.remedy("free space on the file system of the data directory, and start again")
        }
        StoreErrorCode::NewerVersion
        | StoreErrorCode::Corrupt
        | StoreErrorCode::Incomplete
        | StoreErrorCode::Missing
        | StoreErrorCode::NodeKeyMissing
        | StoreErrorCode::NodeKeyWrong => failure.usage(),
        StoreErrorCode::Locked | StoreErrorCode::Io | StoreErrorCode::Closed => failure,
    }
}

/// Opens the store. Also gives what happens to files that the store does not name.
fn open_store(
    config: &Config,
    place: &DataDir,
    inspected: Option<Inspected>,
) -> Result<(Arc<dyn Store>, Strays), Failure> {
    let retention = retention(config);
    let Some(inspected) = inspected else {
        return Ok((Arc::new(MemoryStore::new(retention)), Strays::Remove));
    };
    if let Some(lost) = inspected.lost() {
        tracing::warn!(
            commits = lost.commits,
            cause = lost.cause,
            "the database lacks commits; the server continues without them (--accept-loss)"
        );
    }
    let store = SqliteStore::open_inspected(inspected, retention).map_err(not_opened)?;
    if let Some(error) = store.clear_text_left() {
        tracing::warn!(
            %error,
            "cannot remove from shoal.db what an older version stored in clear text, or what was \
             encrypted with an earlier node.key; the next start tries again"
        );
    }
    let ours = place.belongs_to(store.id())?;
    Ok((Arc::new(store), if ours { Strays::Remove } else { Strays::Leave }))
}

fn not_started(error: &StartError) -> Failure {
    let failure = Failure::new("cannot start", error);
    match error {
        StartError::Store(error) => failure.remedy(error.remedy()),
        StartError::Runtime(error) => failure.remedy(error.code.remedy()),
        StartError::Template(_, refusal) => failure.remedy(refusal.code.remedy()).usage(),
        StartError::Config(_) => failure.remedy("correct the configuration").usage(),
        StartError::ProcessLogs(_) => {
            failure.remedy("check DATA_DIR/processes, or choose another with --data-dir")
        }
        StartError::Random(_) => failure,
    }
}

/// Logs what the last run left and what the start did about it.
fn log_recovery(recovery: &Recovery, reaped: &[Reaped]) {
    api::log_recovery(recovery);
    tracing::debug!(
        cold = recovery.marked_cold,
        "sandboxes of the last run kept their files and are cold"
    );
    if recovery.ended > 0 || recovery.orphans > 0 {
        let (ended, orphans) = (recovery.ended, recovery.orphans);
        tracing::info!(ended, orphans, "removed sandboxes of the last run");
    }
    for reaped in reaped {
        if reaped.processes > 0 || !reaped.runs.is_empty() {
            let (runs, processes) = (reaped.runs.len(), reaped.processes);
            tracing::info!(runs, processes, "removed what earlier runs left on this machine");
        }
        for (path, why) in &reaped.stuck {
            tracing::warn!(path = %path.display(), why, "cannot remove what an earlier run left");
        }
    }
}

async fn serve(
    parts: &Parts<'_>,
    started: Started,
    listeners: Listeners,
    new_admin_key: bool,
) -> Result<ExitCode, Failure> {
    let engine = started.engine;
    let mut stops = Stops::listen()?;
    let served = async {
        first_key::ensure(&engine, parts.place, new_admin_key).await?;
        // After our first key, which is only made if there is no key.
        ash::ensure_key(&engine, parts.config, parts.place).await?;
        let no_listener = |error| Failure::new("cannot listen", error);
        let of = tokio::net::TcpListener::from_std;
        let listener = of(listeners.main).map_err(no_listener)?;
        let of_ash = listeners.ash.map(of).transpose().map_err(no_listener)?;
        let of_blaxel = listeners.blaxel.map(of).transpose().map_err(no_listener)?;
        blaxel::warn_if_template_missing(&engine, parts.config);
        let address = listener.local_addr().map_err(no_listener)?;
        address_file::write(parts.place, reachable(address))?;
        banner::show(parts, &engine, address);
        let (stop, stopping) = watch::channel(false);
        let api = Api::new(engine.clone(), api_settings(parts.config));
        let limits = connection_limits(parts.config);
        let serving = tasks::spawn(async move {
            let stop_requested = || {
                let mut stopping = stopping.clone();
                // A dropped sender also means stop.
                async move {
                    let _ = stopping.wait_for(|stop| *stop).await;
                }
            };
            let beside = async |listener, api: Api| match listener {
                Some(listener) => api::serve(listener, &api, limits, stop_requested()).await.cut,
                None => 0,
            };
            let (main, ash, blaxel) = tokio::join!(
                api::serve(listener, &api, limits, stop_requested()),
                beside(of_ash, api.as_ash()),
                beside(of_blaxel, api.as_blaxel()),
            );
            api::Served { cut: main.cut + ash + blaxel }
        });
        Ok((stop, serving, reachable(address)))
    };
    match served.await {
        Ok((stop, serving, address)) => tokio::select! {
            stopped = stop::serve_until_stopped(&engine, parts, &mut stops, stop, serving) => stopped,
            never = address_file::keep(parts.place, address) => match never {},
        },
        Err(failure) => {
            // Leave nothing behind of what was started.
            let _ = engine.shutdown_now().await;
            Err(failure)
        }
    }
}

/// The address for clients on this machine: 0.0.0.0 becomes loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

fn api_settings(config: &Config) -> Settings {
    let server = &config.server;
    let web = WebSettings {
        hosts: server.hosts.clone(),
        cors_origins: server.cors_origins.clone(),
        rate_limit_per_s: (server.rate_limit_per_s > 0).then_some(server.rate_limit_per_s),
        max_requests: server.max_requests,
        json_bytes_max: server.max_body_bytes,
        body_stall: Duration::from_millis(server.body_timeout_ms),
        ..WebSettings::default()
    };
    Settings {
        web,
        ash: ash::settings(config, &HostContext::read()),
        blaxel: blaxel::settings(config),
    }
}

fn connection_limits(config: &Config) -> ConnectionLimits {
    let server = &config.server;
    ConnectionLimits {
        connections: server.max_connections as usize,
        strangers_per_address: server.max_strangers_per_address as usize,
        head: Duration::from_millis(server.header_timeout_ms),
        idle: Duration::from_millis(server.keep_alive_timeout_ms),
        stop_grace: Duration::from_millis(server.shutdown_grace_ms) + CONNECTION_EXTRA_GRACE,
        ..ConnectionLimits::default()
    }
}
