//! Prepares root filesystems: directories that a program's mount namespace gets as layers. Our own
//! layer lies on top and is filled once per root; the layers of an image are those of the image
//! store, locked while they are used. Nothing may be mounted here, and no path of a template may
//! lead out of the configured directories.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jail::machine::parse::mounts;
use jail::root::LAYERS_AT_MOST;
use model::ImageId;
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags, flock, openat2};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::command::{self, Streams};
use super::host_guest::HostGuest;
use super::run_directory::RunDirectory;
use super::{OciConfig, blocking};
use crate::container::{GUEST_PATH, writable_mounts};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{LaunchSpec, Root};

const STEP: &str = "prepare the root";
/// How long filling our own layer may take.
const FILL_PATIENCE: Duration = Duration::from_secs(20);
/// How long the disk may take to find a root.
const FIND_PATIENCE: Duration = Duration::from_secs(10);
/// How many host directories and mounts are shown; top-level directories come first.
const PARTS_AT_MOST: usize = 24;
/// Names at the top of the host that are shown, where they are directories.
const SHOWN: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// A line of the list of layers: the digest of one, in hexadecimal digits.
const DIGEST_LETTERS: usize = 64;

/// A root that is ready for use.
#[derive(Debug)]
pub(super) struct PreparedRoot {
    /// The topmost first.
    pub(super) layers: Vec<PathBuf>,
    /// What is seen in it besides: where, from its top, and what.
    pub(super) parts: Vec<(String, PathBuf)>,
    /// Our own layer. Removed when this is dropped.
    own: PathBuf,
    /// Device and inode, to notice another directory of the same name.
    identity: Option<(u64, u64)>,
    /// For an image: the lock that keeps it in the store.
    _lock: Option<OwnedFd>,
}

impl Drop for PreparedRoot {
    fn drop(&mut self) {
        // What is left is removed with the run.
        let _ = fs::remove_dir_all(&self.own);
    }
}

/// The key of a prepared root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Host,
    Directory(String),
    Image(ImageId),
}

/// The layers of a root before our own layer is filled.
#[derive(Debug, Default)]
struct RootSource {
    /// The lowest first.
    layers: Vec<PathBuf>,
    identity: Option<(u64, u64)>,
    lock: Option<OwnedFd>,
}

/// Roots of a run.
pub(super) struct Roots {
    directories: Vec<PathBuf>,
    images: Option<PathBuf>,
    own: PathBuf,
    guest: PathBuf,
    host_guest: Arc<HostGuest>,
    kept: Mutex<RootCache>,
}

#[derive(Default)]
struct RootCache {
    by_key: BTreeMap<Key, Weak<PreparedRoot>>,
    /// The host's, which is made once.
    host: Option<Arc<PreparedRoot>>,
    last_number: u32,
}

impl Roots {
    pub(super) fn new(
        config: &OciConfig,
        run_directory: &RunDirectory,
        host_guest: Arc<HostGuest>,
    ) -> Self {
        Self {
            directories: config.directories.clone(),
            images: config.images.clone(),
            own: run_directory.layers(),
            guest: run_directory.guest(),
            host_guest,
            kept: Mutex::default(),
        }
    }

    /// A root, prepared if needed. One at a time: a second caller for the same root finds it
    /// prepared.
    pub(super) async fn prepared(&self, wanted: &Root) -> Result<Arc<PreparedRoot>, RuntimeError> {
        let key = key_of(wanted)?;
        // Not under the lock: a disk that hangs must not hold up roots on other disks.
        let found = timeout(FIND_PATIENCE, self.find(&key)).await;
        let found = found.unwrap_or_else(|_| Err(RuntimeError::deadline(STEP)))?;
        let mut kept = self.kept.lock().await;
        if let Some(known) = kept.by_key.get(&key).and_then(Weak::upgrade)
            && known.identity == found.identity
        {
            return Ok(known);
        }
        kept.last_number += 1;
        let own = self.own.join(kept.last_number.to_string());
        let prepared = Arc::new(self.fill(&key, found, own).await?);
        kept.by_key.retain(|_, known| known.strong_count() > 0);
        if key == Key::Host {
            kept.host = Some(Arc::clone(&prepared));
        }
        kept.by_key.insert(key, Arc::downgrade(&prepared));
        Ok(prepared)
    }

    async fn find(&self, key: &Key) -> Result<RootSource, RuntimeError> {
        let found = match key {
            Key::Host => return Ok(RootSource::default()),
            Key::Directory(name) => {
                let (above, name) = (self.directories.clone(), name.clone());
                blocking(STEP, move || directory(&above, &name)).await
            }
            Key::Image(image) => {
                let (store, image) = (self.images.clone(), *image);
                blocking(STEP, move || layers_of(store.as_deref(), image)).await
            }
        };
        found.map_err(|error| {
            if error.errno == Some(rustix::io::Errno::NOENT.raw_os_error()) {
                let cause = "the image or directory does not exist";
                return RuntimeError::new(RuntimeErrorCode::RootUnknown, STEP, cause);
            }
            error
        })
    }

    async fn fill(
        &self,
        key: &Key,
        found: RootSource,
        own: PathBuf,
    ) -> Result<PreparedRoot, RuntimeError> {
        let RootSource { layers, identity, lock } = found;
        // From here on it is removed if anything fails.
        let mut prepared =
            PreparedRoot { layers: Vec::new(), parts: Vec::new(), own, identity, _lock: lock };
        let (own, guest) = (prepared.own.clone(), self.guest.clone());
        blocking(STEP, move || add_guest(&own, &guest)).await?;
        let mut command = self.host_guest.command();
        command.args(["bundle", "fill"]).arg(&prepared.own).args(&layers);
        let output = prepared.own.with_extension("said");
        let streams = Streams { input: None, output: Some(&output) };
        let filled = command::run(command, streams, STEP, FILL_PATIENCE).await;
        let _ = fs::remove_file(&output);
        filled?;
        if *key == Key::Host {
            let own = prepared.own.clone();
            prepared.parts = blocking(STEP, move || parts_of_host(&own)).await?;
        }
        prepared.layers.push(prepared.own.clone());
        prepared.layers.extend(layers.into_iter().rev());
        Ok(prepared)
    }
}

fn key_of(wanted: &Root) -> Result<Key, RuntimeError> {
    match wanted {
        Root::Host => Ok(Key::Host),
        Root::Directory(name) => Ok(Key::Directory(name.clone())),
        Root::Image(image) | Root::Named { stored: Some(image), .. } => Ok(Key::Image(*image)),
        Root::Named { name, stored: None } => {
            let cause = format!("the image store has no {name}, and this runtime pulls none");
            Err(RuntimeError::new(RuntimeErrorCode::RootUnknown, STEP, cause))
        }
    }
}

/// Refuses what can never be prepared.
pub(super) fn check(wanted: &Root) -> Result<(), RuntimeError> {
    key_of(wanted).map(drop)
}

fn no_links() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// A directory beneath one of those that are configured, by a path without links.
fn directory(above: &[PathBuf], name: &str) -> io::Result<RootSource> {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    if !name.split('/').all(plain) {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error()));
    }
    for above in above {
        let Ok(above) = above.canonicalize() else { continue };
        let opened = File::open(&above)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(found) = openat2(&opened, name, flags, Mode::empty(), no_links()) else { continue };
        let about = rustix::fs::fstat(&found)?;
        let identity = Some((about.st_dev, about.st_ino));
        return Ok(RootSource { layers: vec![text(above.join(name))?], identity, lock: None });
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error()))
}

/// The layers of an image. It is locked, so that the store does not collect it.
fn layers_of(store: Option<&Path>, image: ImageId) -> io::Result<RootSource> {
    let missing = || io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error());
    let store = store.ok_or_else(missing)?.canonicalize()?;
    let opened = File::open(&store)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let list = format!("images/{image}/layers");
    let lock = openat2(&opened, list.as_str(), flags, Mode::empty(), no_links())?;
    flock(&lock, FlockOperation::NonBlockingLockShared)?;
    // It may have been removed before it was locked.
    if rustix::fs::fstat(&lock)?.st_nlink == 0 {
        return Err(missing());
    }
    let mut list = String::new();
    let most = (DIGEST_LETTERS as u64 + 1) * LAYERS_AT_MOST as u64;
    // One byte more than there may be: half an image is none.
    File::from(lock.try_clone()?).take(most + 1).read_to_string(&mut list)?;
    let is_digest = |line: &&str| {
        line.len() == DIGEST_LETTERS && line.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if !list.lines().all(|line| is_digest(&line))
        || !(1..=LAYERS_AT_MOST).contains(&list.lines().count())
    {
        let cause = "the image's list of layers is damaged";
        return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
    }
    let layers = list.lines().map(|digest| text(store.join("layers").join(digest)));
    Ok(RootSource { layers: layers.collect::<io::Result<_>>()?, identity: None, lock: Some(lock) })
}

/// Paths go through command lines, as text.
fn text(path: PathBuf) -> io::Result<PathBuf> {
    if path.to_str().is_some() {
        return Ok(path);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not valid UTF-8"))
}

/// Makes the directory of our own layer, with the guest in it. Readable for all, whatever the
/// umask.
fn add_guest(own: &Path, guest: &Path) -> io::Result<()> {
    let at = own.join(GUEST_PATH.trim_start_matches('/'));
    let within = at.parent().unwrap_or(own);
    for directory in [own, within] {
        fs::create_dir(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    fs::hard_link(guest, at)
}

/// Directories of the host that belong into our own layer, and what is mounted in them.
fn parts_of_host(own: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let is_place =
        |name: &&str| fs::symlink_metadata(own.join(name)).is_ok_and(|about| about.is_dir());
    let tops: Vec<&str> = SHOWN.into_iter().filter(is_place).collect();
    let mounted = mounts(&fs::read_to_string("/proc/self/mountinfo")?);
    let mut within: Vec<String> = mounted
        .iter()
        .filter_map(|mount| mount.point.to_str()?.strip_prefix('/'))
        .filter(|point| {
            let top = point.split('/').next().unwrap_or_default();
            top.len() < point.len() && tops.contains(&top) && !point.contains([':', ',', '\\'])
        })
        .map(str::to_owned)
        .collect();
    within.sort();
    within.dedup();
    let all = tops.into_iter().map(str::to_owned).chain(within).take(PARTS_AT_MOST);
    Ok(all.map(|name| (name.clone(), Path::new("/").join(name))).collect())
}

/// Makes the mount points of a container, as a layer on top of its root. They hide whatever the
/// root has there, links included. They have the permissions of the mount, because some programs
/// copy the mount point's permissions to the mount.
pub(super) fn add_mount_points(top: &Path, spec: &LaunchSpec) -> io::Result<()> {
    fs::set_permissions(top, Permissions::from_mode(0o755))?;
    // Those in `/dev` are in what is mounted there.
    for place in writable_mounts(spec).iter().filter(|place| !place.path.starts_with("/dev/")) {
        let at = add_directories(top, place.path)?;
        fs::set_permissions(at, Permissions::from_mode(place.mode))?;
    }
    for mount in &spec.mounts {
        if fs::metadata(&mount.host_path)?.is_dir() {
            add_directories(top, &mount.path)?;
        } else if let Some((above, name)) = mount.path.rsplit_once('/') {
            File::create_new(add_directories(top, above)?.join(name))?;
        }
    }
    Ok(())
}

/// Makes the missing directories of a path beneath another. Readable for all, whatever the umask.
fn add_directories(top: &Path, path: &str) -> io::Result<PathBuf> {
    let mut at = top.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at.push(part);
        match fs::create_dir(&at) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made?;
                fs::set_permissions(&at, Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
