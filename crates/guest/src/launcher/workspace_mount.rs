//! Disk workspaces: a directory of the host, or the file system in an image, becomes the
//! `/workspace` of a sandbox, and its files appear as owned by the sandbox's own users. The
//! workspace is found beneath the configured directory by its id alone, and no link is followed on
//! the way.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use guest_protocol::launcher::WorkspaceBytes;
use jail::plan::{Users, WORKSPACE};
use jail::root::mount_on;
use jail::sys::clone::exit_now;
use jail::sys::mount::{Properties, set_properties};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::isolation::HostAccess;

/// The name of a workspace's directory: its id as text.
pub(super) fn name_of(workspace: &WorkspaceBytes) -> String {
    let mut name = String::with_capacity(36);
    for (index, byte) in workspace.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            name.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// A mount of the workspace for the sandbox of this process. It is not attached anywhere yet.
pub(super) fn mount_for(
    host_access: &HostAccess,
    workspace: &WorkspaceBytes,
    pid: Pid,
) -> io::Result<OwnedFd> {
    let workspaces = host_access.workspaces.as_ref().ok_or(io::ErrorKind::NotFound)?;
    let name = name_of(workspace);
    let mount = match open_beneath(workspaces, &name, OFlags::DIRECTORY | OFlags::PATH) {
        Ok(directory) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH;
            open_tree(&directory, "", flags)?
        }
        Err(Errno::NOENT) => {
            // Non-blocking, in case it is a pipe; not our controlling terminal, in case it is a
            // terminal.
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
            let image = open_beneath(workspaces, &format!("{name}.img"), flags)?;
            let devices = host_access.devices.as_ref().ok_or(Errno::NODEV)?;
            devices.mount(image)?
        }
        Err(error) => return Err(error.into()),
    };
    let users = match host_access.users {
        Users::Ranges => Some(namespace_of(pid, "user")?),
        // The programs' user owns the files anyway, and only root may show them as owned by another
        // user.
        Users::Subordinate | Users::Alone => None,
    };
    let ids_of = users.as_ref().map(OwnedFd::as_fd);
    let properties = Properties { no_devices: true, ids_of, ..Properties::default() };
    set_properties(mount.as_fd(), properties)?;
    Ok(mount)
}

fn open_beneath(directory: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(directory, name, flags | OFlags::CLOEXEC, Mode::empty(), no_links())
}

/// No path may lead out of the directory.
pub(super) fn no_links() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// Mounts it in a sandbox that already runs, over whatever is there.
pub(super) fn attach(host_access: &HostAccess, mount: OwnedFd, pid: Pid) -> io::Result<()> {
    let mounts = namespace_of(pid, "mnt")?;
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    let mounted = mount_on(mount, CWD, WORKSPACE);
    let back = move_into_link_name_space(host_access.home.as_fd(), Some(LinkNameSpaceType::Mount));
    if back.is_err() {
        // If we cannot come back, nothing is safe any more: end, which ends every sandbox.
        exit_now(1);
    }
    mounted
}

pub(super) fn namespace_of(pid: Pid, kind: &str) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/ns/{kind}", pid.as_raw_nonzero());
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_named_like_their_ids() {
        let bytes = std::array::from_fn(|index| index as u8);
        assert_eq!(name_of(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
