//! Isolates the launcher from the host: a mount namespace that contains only `/proc` and the
//! prepared root filesystems, and a network namespace that has only loopback. The launcher opens
//! what it needs of the host before it leaves, and keeps the descriptors. A sandbox starts as a
//! copy of the launcher, so it copies little and sees nothing of the host.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use guest_protocol::launcher::LauncherConfig;
use guest_protocol::network::NetworkFeature;
use jail::image::Devices;
use jail::plan::{USER, Users};
use jail::root::{self, Builder};
use jail::sys::loopback;
use jail::sys::namespaces::{self, Namespace};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, UnmountFlags,
    fsconfig_create, fsmount, fsopen, mount_change, unmount,
};
use rustix::process::{fchdir, pivot_root};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::roots::Roots;
use super::{network, workspace_mount};

/// An empty directory.
pub(super) const EMPTY: &str = "/empty";

/// The directory for workspaces that were lent to this run.
const LENT: &str = "/lent";

/// What the launcher can still reach of the host.
pub(super) struct HostAccess {
    /// Root filesystems.
    pub roots: Roots,
    /// Which users sandboxes have on the host.
    pub users: Users,
    /// The directory of disk workspaces.
    pub workspaces: Option<OwnedFd>,
    /// Directories of the host that sandboxes may see, by number.
    pub mounts: Vec<Option<OwnedFd>>,
    /// Mounts workspaces that are disk images; `None` if the host has no loop devices.
    pub devices: Option<Devices>,
    /// Our own mount namespace, to come back to.
    pub home: OwnedFd,
    /// Our own network namespace, to come back to.
    pub home_network: OwnedFd,
    /// How sandboxes with a policy reach the network.
    pub network: NetworkFeature,
    /// A mount namespace that contains only an empty directory. Preforks enter it, so that they
    /// copy as few mounts as possible.
    pub void: OwnedFd,
}

/// A step that failed, in words.
pub(super) struct Failed {
    pub step: String,
    pub source: io::Error,
}

pub(super) fn step<T>(
    name: impl Into<String>,
    result: Result<T, impl Into<io::Error>>,
) -> Result<T, Failed> {
    result.map_err(|source| Failed { step: name.into(), source: source.into() })
}

/// Leaves the host's namespaces.
pub(super) fn enter(config: &LauncherConfig, users: Users) -> Result<HostAccess, Failed> {
    step("make a mount namespace", namespaces::make(&[Namespace::Mount]))?;
    let network = network::try_out(config);
    step("make a network namespace", namespaces::make(&[Namespace::Network]))?;
    step("bring loopback up", loopback::bring_up())?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("make mounts private", mount_change("/", private))?;
    // Modes are used exactly as given.
    rustix::process::umask(Mode::empty());

    let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open =
        |path: &str| step(format!("open {path}"), openat(CWD, path, directory, Mode::empty()));
    let host = open("/")?;
    let workspaces = config.workspaces.as_deref().map(open).transpose()?;
    if let Some(directory) = &workspaces {
        step(
            "check that the directory of workspaces is not accessible to other users",
            is_closed(directory),
        )?;
    }
    let lent: Vec<_> = config
        .lent
        .iter()
        .map(|(id, path)| {
            let opened = open(path)?;
            step(format!("check the owner of {path}"), is_of_programs(&opened, users))?;
            Ok((workspace_mount::name_of(id), opened))
        })
        .collect::<Result<_, _>>()?;
    let devices = match users {
        Users::Ranges => workspaces.as_ref().and_then(|_| Devices::open().ok()),
        // Only root may mount from a device.
        Users::Subordinate | Users::Alone => None,
    };
    let directories: Vec<_> =
        config.directories.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    let images = config.images.as_deref().map(open).transpose()?;
    // A directory that is gone matters only to sandboxes that ask for it.
    let shown: Vec<_> = config.mounts.iter().map(|path| open(path).ok()).collect();
    step("pivot", pivot_into_memory(&host, users))?;
    let bind = |opened: &OwnedFd, name: String| {
        step(format!("bind {name}"), bind(opened, &format!("/{name}")))
    };
    let workspaces = workspaces.map(|opened| bind(&opened, "workspaces".to_owned())).transpose()?;
    let workspaces = match workspaces {
        None if !lent.is_empty() => Some(step("bind lent workspaces", bind_lent(&lent))?),
        other => other,
    };
    let images = images.map(|opened| bind(&opened, "images".to_owned())).transpose()?;
    let mut bound = Vec::with_capacity(directories.len());
    for (number, opened) in directories.iter().enumerate() {
        bound.push(bind(opened, format!("directories-{number}"))?);
    }
    let mut mounts = Vec::with_capacity(shown.len());
    for (number, opened) in shown.iter().enumerate() {
        let opened = opened.as_ref();
        mounts.push(opened.map(|opened| bind(opened, format!("shown-{number}"))).transpose()?);
    }
    let builder = match users {
        Users::Ranges => Builder::Root,
        Users::Subordinate | Users::Alone => Builder::Rootless,
    };
    let roots = Roots::begin(host.as_fd(), bound, images, builder);
    let roots = step("build the root of the host's programs", roots)?;
    // The old root lies on top of ours and goes away together with what is mounted there.
    step("detach the host", unmount("/", UnmountFlags::DETACH))?;
    step("go to /", rustix::process::chdir("/"))?;
    let home = step("open own mount namespace", own_namespace("mnt"))?;
    let home_network = step("open own network namespace", own_namespace("net"))?;
    let void = step("make the empty mount namespace", make_void(&home))?;
    Ok(HostAccess { roots, users, workspaces, mounts, devices, home, home_network, network, void })
}

/// Programs write into workspaces as an ordinary user of the host and choose the permissions, so
/// only root may reach a workspace by its path.
fn is_closed(directory: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::fstat(directory)?;
    let for_others = Mode::from_raw_mode(found.st_mode).intersects(Mode::RWXG | Mode::RWXO);
    let closed = !for_others && found.st_uid == rustix::process::geteuid().as_raw();
    if closed { Ok(()) } else { Err(rustix::io::Errno::PERM.into()) }
}

/// A lent directory must belong to the user of programs. The lender has checked that, but the path
/// may name another directory by now.
fn is_of_programs(directory: &OwnedFd, users: Users) -> io::Result<()> {
    let owner = rustix::fs::fstat(directory)?.st_uid;
    let wanted = match users {
        Users::Ranges => USER,
        // The user of the launcher, as seen in its own namespace.
        Users::Subordinate | Users::Alone => rustix::process::geteuid().as_raw(),
    };
    if owner == wanted { Ok(()) } else { Err(rustix::io::Errno::PERM.into()) }
}

/// Only what is mounted in our own namespace can be mounted elsewhere later.
fn bind(opened: &OwnedFd, at: &str) -> io::Result<OwnedFd> {
    mkdirat(CWD, at, Mode::from_raw_mode(0o755))?;
    root::mount_on(root::copy_of(opened, ".", true)?, CWD, at)?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, at, flags, Mode::empty())?)
}

/// A directory in which every lent workspace is mounted.
fn bind_lent(lent: &[(String, OwnedFd)]) -> io::Result<OwnedFd> {
    mkdirat(CWD, LENT, Mode::from_raw_mode(0o700))?;
    for (name, opened) in lent {
        bind(opened, &format!("{LENT}/{name}"))?;
    }
    Ok(openat(CWD, LENT, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn own_namespace(kind: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(CWD, format!("/proc/self/ns/{kind}"), flags, Mode::empty())?)
}

fn make_void(home: &OwnedFd) -> io::Result<OwnedFd> {
    namespaces::make(&[Namespace::Mount])?;
    let void = own_namespace("mnt")?;
    let options = [("size", "4k"), ("nr_inodes", "1"), ("mode", "555")];
    let empty = root::memory(&options, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    root::mount_on(&empty, CWD, "/")?;
    fchdir(&empty)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(void)
}

fn pivot_into_memory(host: &OwnedFd, users: Users) -> io::Result<()> {
    let root = root::memory(&[("size", "1m"), ("mode", "755")], MountAttrFlags::empty())?;
    for name in ["proc", "roots", "devices", "empty"] {
        mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
    }
    let proc = open_proc(host, users)?;
    root::mount_on(&root, CWD, "/")?;
    root::mount_on(proc, &root, "proc")?;
    fchdir(&root)?;
    Ok(pivot_root(".", ".")?)
}

fn open_proc(host: &OwnedFd, users: Users) -> io::Result<OwnedFd> {
    match users {
        Users::Ranges => {
            let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
        }
        // This `/proc` shows processes of root's namespace, so only root can make one.
        Users::Subordinate | Users::Alone => root::copy_of(host, "proc", true),
    }
}
