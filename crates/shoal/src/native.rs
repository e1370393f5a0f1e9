//! How the commands get at sandboxes: where the native runtime keeps its things on this machine,
//! and how one is opened for a single command.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jail::plan::USER;
use jail::sys::namespaces::{self, Namespace};
use model::{InstanceId, Limits, WorkspaceId};
use runtime::leftovers::Leftovers;
use runtime::native::{Native, NativeConfig, NetworkMode};
use runtime::{LaunchSpec, Reaped, Root, Runtime, WorkspaceSource};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use uuid::Uuid;

use crate::failure::Failure;

/// How long a sandbox may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Where runs leave their marks, so that `clean` finds what is left of them.
pub(crate) const RUN_DIRECTORY: &str = "/run/shoal";

/// What is opened.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How many sandboxes at once.
    pub(crate) slots: u32,
    /// How many are kept ready.
    pub(crate) spares: u32,
    pub(crate) network: NetworkMode,
    /// Whether limits are enforced: off only to measure what they cost.
    pub(crate) limits: bool,
    /// Where workspaces on disk are.
    pub(crate) workspaces: Option<PathBuf>,
    /// Beneath which directory root filesystems are found.
    pub(crate) directory: Option<PathBuf>,
}

impl Settings {
    /// For one sandbox, which nothing can be prepared for.
    pub(crate) fn for_one(workspace: Option<&Lent>) -> Self {
        Self {
            slots: 2,
            spares: 1,
            network: NetworkMode::Fresh,
            limits: true,
            workspaces: workspace.map(|lent| lent.above.clone()),
            directory: None,
        }
    }
}

/// A directory that somebody lends to a sandbox.
#[derive(Debug)]
pub(crate) struct Lent {
    above: PathBuf,
    id: WorkspaceId,
}

impl Lent {
    pub(crate) fn source(&self) -> WorkspaceSource {
        WorkspaceSource::Disk(self.id)
    }
}

/// Puts a directory where the launcher finds it by an id. It is mounted there, in a mount namespace
/// of our own: nobody else sees it, and it is gone with us. No other thread may exist yet.
pub(crate) fn lend_workspace(directory: &Path) -> Result<Lent, Failure> {
    let what = || format!("cannot use {} as workspace", directory.display());
    let failed = |error: io::Error| Failure::new(what(), error);
    let directory = directory.canonicalize().map_err(failed)?;
    let about = fs::metadata(&directory).map_err(failed)?;
    if !about.is_dir() {
        return Err(Failure::new(what(), "it is not a directory"));
    }
    if about.uid() != USER {
        let why =
            format!("it belongs to user {}, and programs in a sandbox are {USER}", about.uid());
        let remedy = format!("make one that does: install -d -o {USER} -g {USER} DIR");
        return Err(Failure::new(what(), why).remedy(remedy));
    }
    let id = Uuid::from_u128(random()?);
    let above = Path::new(RUN_DIRECTORY).join("workspaces");
    fs::create_dir_all(&above).map_err(failed)?;
    let lend = || -> io::Result<()> {
        namespaces::make(&[Namespace::Mount])?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("shoal", &above, "tmpfs", flags, Some(c"mode=700,size=64k"))?;
        let place = above.join(id.to_string());
        fs::create_dir(&place)?;
        mount_bind(&directory, &place)?;
        Ok(())
    };
    lend().map_err(|error| failed(error).remedy("run it with sudo"))?;
    Ok(Lent { above, id: WorkspaceId::from_uuid(id) })
}

/// What futures run on.
pub(crate) fn tokio() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start threads", error))
}

/// What futures run on where only one thing happens at a time: nobody has to wake anybody else.
pub(crate) fn tokio_of_one_thread() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start", error))
}

/// 128 bits for an id.
pub(crate) fn random() -> Result<u128, Failure> {
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::new("cannot make an id", error))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().as_u128())
}

/// A sandbox with its workspace in memory.
pub(crate) fn spec(limits: Limits) -> Result<LaunchSpec, Failure> {
    Ok(LaunchSpec {
        instance: InstanceId::from_u128(random()?),
        root: Root::Host,
        limits,
        workspace: WorkspaceSource::Memory,
        settings: None,
        ready_timeout: READY_TIMEOUT,
    })
}

/// Opens the native runtime.
pub(crate) async fn open(settings: Settings) -> Result<Arc<dyn Runtime>, Failure> {
    let mut config = NativeConfig::new(RUN_DIRECTORY);
    config.slots = settings.slots;
    config.spares = settings.spares;
    config.network = settings.network;
    config.limits = settings.limits;
    config.workspaces = settings.workspaces;
    config.directories.extend(settings.directory);
    match Native::start(config).await {
        Ok(native) => Ok(Arc::new(native)),
        Err(error) => Err(Failure::of_runtime("cannot start the launcher", &error)
            .remedy("`shoal doctor` says what this machine can do, and what to do about it")),
    }
}

/// Removes what runs that are over left behind. Blocks.
pub(crate) fn clean() -> Result<Reaped, Failure> {
    Leftovers::on_this_machine(RUN_DIRECTORY)
        .and_then(|leftovers| leftovers.remove_all())
        .map_err(|error| Failure::new("cannot clean", error).remedy("run it with sudo"))
}
