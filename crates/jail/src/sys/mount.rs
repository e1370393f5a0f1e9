//! Changes the properties of mounts.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Properties to give to a mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Properties<'a> {
    /// Nothing can be written through it.
    pub read_only: bool,
    /// Device files do not work.
    pub no_devices: bool,
    /// Programs cannot be run from it.
    pub no_programs: bool,
    /// Ids are shown as the given user namespace maps them.
    pub ids_of: Option<BorrowedFd<'a>>,
    /// The mounts beneath it too.
    pub recursive: bool,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets properties of a mount. Set-user-id programs never work on a mount of ours, and none of ours
/// is shared.
pub fn set_properties(mount: BorrowedFd<'_>, properties: Properties<'_>) -> io::Result<()> {
    let mut set = MOUNT_ATTR_NOSUID;
    if properties.read_only {
        set |= MOUNT_ATTR_RDONLY;
    }
    if properties.no_devices {
        set |= MOUNT_ATTR_NODEV;
    }
    if properties.no_programs {
        set |= MOUNT_ATTR_NOEXEC;
    }
    if properties.ids_of.is_some() {
        set |= MOUNT_ATTR_IDMAP;
    }
    let attributes = MountAttributes {
        set,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        user_namespace: properties
            .ids_of
            .map_or(0, |namespace| u64::from(namespace.as_raw_fd().cast_unsigned())),
    };
    let recursive = if properties.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty string that lives for ever, and the kernel reads the attributes,
    // which live until the call returns, by the size that is given.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
