//! The native runtime for a single command: its run directory, its settings, and opening it.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jail::plan::USER;
use model::{InstanceId, Limits, WorkspaceId};
use runtime::leftovers::Leftovers;
use runtime::native::{Native, NativeConfig, NetworkMode};
use runtime::{LaunchSpec, Reaped, Root, Runtime, WorkspaceSource};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// How long a sandbox may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Run directory of root. `shoal clean` finds there what a killed run left.
const RUN_DIRECTORY: &str = "/run/shoal";

/// The run directory: `/run/shoal` for root. For another user `$XDG_RUNTIME_DIR/shoal`, or else a
/// private directory among the temporary files.
pub fn run_directory() -> Result<PathBuf, Failure> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(PathBuf::from(RUN_DIRECTORY));
    }
    if let Some(given) = std::env::var_os("XDG_RUNTIME_DIR").filter(|given| !given.is_empty()) {
        return Ok(Path::new(&given).join("shoal"));
    }
    let path = std::env::temp_dir().join(format!("shoal-{}", user.as_raw()));
    own_directory(&path, user.as_raw()).map_err(|error| {
        Failure::new(format!("cannot use {}", path.display()), error)
            .remedy("set XDG_RUNTIME_DIR to a directory that is yours alone")
    })?;
    Ok(path)
}

/// Makes a directory that is private to this user. A directory that another user made is refused.
fn own_directory(path: &Path, user: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let about = fs::symlink_metadata(path)?;
    if about.is_dir() && about.uid() == user && about.mode() & 0o777 == 0o700 {
        Ok(())
    } else {
        Err(io::Error::other("it is not a directory that only you can use (mode 0700)"))
    }
}

/// Settings of the native runtime for one command.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many sandboxes at once.
    pub slots: u32,
    /// How many preforks are kept ready.
    pub spares: u32,
    /// How sandboxes get their network.
    pub network: NetworkMode,
    /// Whether limits are enforced: off only to measure what they cost.
    pub limits: bool,
    /// A directory of the host that is the workspace.
    pub workspace: Option<HostWorkspace>,
    /// The directory below which root filesystems are found.
    pub directory: Option<PathBuf>,
    /// The image store.
    pub images: Option<PathBuf>,
    /// The user that the launcher becomes, and a run directory that it can write to.
    pub user: Option<(u32, PathBuf)>,
}

impl Settings {
    /// For a single sandbox.
    pub fn for_one(workspace: Option<&HostWorkspace>) -> Self {
        Self {
            slots: 2,
            spares: 1,
            network: NetworkMode::Fresh,
            limits: true,
            workspace: workspace.cloned(),
            directory: None,
            images: None,
            user: None,
        }
    }
}

/// A directory of the host that a sandbox uses as its workspace.
#[derive(Debug, Clone)]
pub struct HostWorkspace {
    directory: PathBuf,
    id: WorkspaceId,
}

impl HostWorkspace {
    /// Checks that programs in a sandbox can use the directory.
    pub fn check(directory: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot use {} as workspace", directory.display());
        let failed = |error: io::Error| Failure::new(what(), error);
        let directory = directory.canonicalize().map_err(failed)?;
        let about = fs::metadata(&directory).map_err(failed)?;
        if !about.is_dir() {
            return Err(Failure::new(what(), "it is not a directory"));
        }
        // Root runs programs as user 1000. An ordinary user runs them as that user.
        let us = rustix::process::geteuid();
        let user = if us.is_root() { USER } else { us.as_raw() };
        if about.uid() != user {
            let why = format!(
                "it belongs to user {}, but programs in it run as user {user}",
                about.uid()
            );
            let remedy = format!("make one that fits: install -d -o {user} -g {user} DIR");
            return Err(Failure::new(what(), why).remedy(remedy));
        }
        Ok(Self { directory, id: WorkspaceId::from_u128(random()?) })
    }

    /// The workspace, as a launch names it.
    pub fn source(&self) -> WorkspaceSource {
        WorkspaceSource::Disk(self.id)
    }
}

/// Raises the limit of open files to the hard limit, for this process and the launcher: each
/// sandbox needs descriptors in both, and the usual soft limit is too low.
pub fn raise_descriptor_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // If that fails, the old limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
}

/// The name of a limit for people.
pub fn limit_in_words(name: &str) -> &str {
    match name {
        "memory_mb" => "memory",
        "cpu_milli" => "processor time",
        "pids" => "processes",
        other => other,
    }
}

/// Runs a future to its end. It is boxed, so that it is compiled once and not once for each kind of
/// scheduler that tokio has.
pub fn block_on<T>(tokio: &tokio::runtime::Runtime, doing: impl Future<Output = T>) -> T {
    let doing: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(doing);
    tokio.block_on(doing)
}

/// A tokio runtime with two threads.
pub fn tokio() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start threads", error))
}

/// A tokio runtime with one thread, for commands that do one thing at a time.
pub fn tokio_of_one_thread() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start", error))
}

/// 128 random bits for an id.
pub fn random() -> Result<u128, Failure> {
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::new("cannot make an id", error))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().as_u128())
}

/// The spec of a sandbox with its workspace in memory.
pub fn spec(limits: Limits) -> Result<LaunchSpec, Failure> {
    Ok(LaunchSpec {
        instance: InstanceId::from_u128(random()?),
        root: Root::Host,
        limits,
        workspace: WorkspaceSource::Memory,
        aliases: Vec::new(),
        mounts: Vec::new(),
        settings: None,
        ready_timeout: READY_TIMEOUT,
    })
}

/// Opens the native runtime.
pub async fn open(settings: Settings) -> Result<Arc<dyn Runtime>, Failure> {
    let (user, run_directory) = match settings.user {
        Some((user, directory)) => (Some(user), directory),
        None => (None, run_directory()?),
    };
    raise_descriptor_limit();
    let mut config = NativeConfig::new(run_directory);
    config.user = user;
    config.slots = settings.slots;
    config.spares = settings.spares;
    config.network = settings.network;
    config.limits = settings.limits;
    config.lent.extend(settings.workspace.map(|workspace| (workspace.id, workspace.directory)));
    config.directories.extend(settings.directory);
    config.images = settings.images;
    match Native::start(config).await {
        Ok(native) => Ok(Arc::new(native)),
        Err(error) => Err(Failure::of_runtime("cannot start the launcher", &error)
            .remedy("`shoal doctor` says what this machine lacks, and what to do about it")),
    }
}

/// Removes what ended runs left behind. Blocks.
pub fn clean() -> Result<Reaped, Failure> {
    Leftovers::on_this_machine(run_directory()?)
        .and_then(|leftovers| leftovers.remove_all())
        .map_err(|error| Failure::new("cannot clean", error))
}
