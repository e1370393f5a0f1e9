//! The files and directories of the host that sandboxes see, beneath the configured directories. A
//! spec names them by a number and a path, and no link is followed. A sandbox sees them as mounts
//! of its own: no device and no set-user-id program works there, and the only user with a known
//! owner is the user of programs, so nothing inside ever appears to come from the host's root.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::launcher::{Mount, Point, Root};
use jail::plan::{USER, Users};
use jail::root::copy_of;
use jail::sys::clone::{self, Side};
use jail::sys::mount::{Properties, set_properties};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::isolation::HostAccess;
use super::plan_input;
use super::workspace_mount::{namespace_of, no_links};

/// How many mounts a sandbox may have.
const AT_MOST: usize = 32;

/// How long the helper process that only lends its user namespace lives if it is not ended: far
/// longer than needed.
const HELPER_LIFETIME: Duration = Duration::from_secs(10);

/// A file or directory that was found where the spec says.
pub(super) struct Opened {
    file: OwnedFd,
    is_directory: bool,
    mount: Mount,
}

impl Opened {
    /// The entry of the spec.
    pub(super) fn mount(&self) -> Mount {
        self.mount.clone()
    }
}

/// Why a file or directory cannot be mounted.
pub(super) struct MountRefusal {
    pub step: String,
    pub errno: i32,
}

/// Opens all mounts of a spec.
pub(super) fn open(
    host_access: &HostAccess,
    mounts: &[Mount],
) -> Result<Vec<Opened>, MountRefusal> {
    if mounts.len() > AT_MOST {
        return Err(MountRefusal { step: "count mounts".to_owned(), errno: 0 });
    }
    let mut opened: Vec<Opened> = mounts
        .iter()
        .map(|mount| {
            open_one(host_access, mount).map_err(|error| MountRefusal {
                step: format!("find the host path for the mount at /{}", mount.at),
                errno: error.raw_os_error().unwrap_or(0),
            })
        })
        .collect::<Result<_, _>>()?;
    // An outer mount comes before the mounts inside it.
    opened.sort_by(|one, other| one.mount.at.cmp(&other.mount.at));
    Ok(opened)
}

fn open_one(host_access: &HostAccess, mount: &Mount) -> io::Result<Opened> {
    if !plan_input::is_beneath(&mount.at)
        || !(mount.path.is_empty() || plan_input::is_beneath(&mount.path))
    {
        return Err(Errno::INVAL.into());
    }
    let directory = host_access.mounts.get(mount.directory as usize);
    let directory = directory.and_then(Option::as_ref).ok_or(Errno::NOENT)?;
    let path = if mount.path.is_empty() { "." } else { mount.path.as_str() };
    let file = openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), no_links())?;
    let is_directory = match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        // A socket or a pipe would give access to the process at its other end.
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(Errno::NOTSUP.into()),
    };
    Ok(Opened { file, is_directory, mount: mount.clone() })
}

/// The same root with mount points for them.
pub(super) fn root_for(root: Root, opened: &[Opened]) -> Root {
    if opened.is_empty() {
        return root;
    }
    let point = |one: &Opened| Point { at: one.mount.at.clone(), is_directory: one.is_directory };
    Root::Pointed { root: Box::new(root), points: opened.iter().map(point).collect() }
}

/// Mounts for the sandbox of a slot, in their order. They are not attached anywhere yet.
pub(super) fn mounts_for(
    host_access: &HostAccess,
    opened: &[Opened],
    first_uid: u32,
) -> io::Result<Vec<OwnedFd>> {
    let users = match host_access.users {
        Users::Ranges if !opened.is_empty() => Some(only_user(first_uid)?),
        // The programs' user owns these files anyway, and only root may change the owners that are
        // shown.
        Users::Ranges | Users::Subordinate | Users::Alone => None,
    };
    opened.iter().map(|one| mount_of(one, users.as_ref())).collect()
}

fn mount_of(opened: &Opened, users: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let read_only = opened.mount.read_only;
    let mount = copy_of(&opened.file, "", true)?;
    let properties =
        Properties { read_only, no_devices: true, recursive: true, ..Properties::default() };
    let ids_of = users.map(OwnedFd::as_fd);
    match set_properties(mount.as_fd(), Properties { ids_of, ..properties }) {
        // Not every file system can show other owners. A read-only mount works without that: all
        // its files then belong to a user that the sandbox does not know.
        Err(error) if read_only && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            set_properties(mount.as_fd(), properties)?;
        }
        done => done?,
    }
    Ok(mount)
}

/// A user namespace that maps only the user of programs, as the users of the slot have it. A user
/// that is not mapped cannot own anything that is created there.
fn only_user(first_uid: u32) -> io::Result<OwnedFd> {
    let pid = match clone::copy_in_new_user_namespace()? {
        Side::Child => {
            std::thread::sleep(HELPER_LIFETIME);
            clone::exit_now(0);
        }
        Side::Parent(pid) => pid,
    };
    let namespace = map_only_user(pid, first_uid);
    let _ = kill_process(pid, Signal::KILL);
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    namespace
}

fn map_only_user(pid: Pid, first_uid: u32) -> io::Result<OwnedFd> {
    let map = format!("{USER} {} 1", first_uid + USER);
    for kind in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{kind}", pid.as_raw_nonzero());
        let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, map.as_bytes())?;
    }
    namespace_of(pid, "user")
}
