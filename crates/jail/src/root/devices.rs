//! The device files of sandboxes: the harmless ones that every program expects. Root makes them; an
//! ordinary user cannot make device files and binds those of the host.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::{copy_of, memory, mount_on};
use crate::etc;
use crate::sys::mount::{Properties, set_properties};

/// Their directory in the launcher's own root.
pub const DEVICES: &str = "/devices";

/// The privileges of the process that builds roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builder {
    /// Root.
    Root,
    /// Root only in a user namespace of its own.
    Rootless,
}

/// Builds the directory. `host` is the host's root directory.
pub fn build_devices(host: BorrowedFd<'_>, builder: Builder) -> io::Result<()> {
    let mount = memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&mount, CWD, DEVICES)?;
    let directory = openat(CWD, DEVICES, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for name in etc::DEVICE_DIRECTORIES {
        mkdirat(&directory, *name, Mode::from_raw_mode(0o755))?;
    }
    for (name, target) in etc::DEVICE_LINKS {
        symlinkat(*target, &directory, *name)?;
    }
    for (name, major, minor) in etc::DEVICES {
        let mode = Mode::from_raw_mode(0o666);
        match builder {
            Builder::Root => {
                let device: Dev = makedev(*major, *minor);
                mknodat(&directory, *name, FileType::CharacterDevice, mode, device)?;
            }
            Builder::Rootless => {
                super::copy::write_file(directory.as_fd(), name, b"", 0o666)?;
                let copy = copy_of(host, format!("dev/{name}"), false)?;
                // Read-only: nothing about the file itself can be changed through it, but writes
                // still reach the device.
                let read_only = Properties { read_only: true, ..Properties::default() };
                set_properties(copy.as_fd(), read_only)?;
                mount_on(copy, &directory, *name)?;
            }
        }
    }
    let properties = Properties { read_only: true, ..Properties::default() };
    set_properties(directory.as_fd(), properties)
}
