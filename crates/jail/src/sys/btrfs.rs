//! Subvolumes of btrfs, and their limits.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

const BTRFS_IOC_SUBVOL_CREATE: libc::Ioctl = 0x5000_940e;
const BTRFS_IOC_SNAP_DESTROY: libc::Ioctl = 0x5000_940f;
const BTRFS_IOC_QGROUP_LIMIT: libc::Ioctl = 0x8030_942b;

/// The magic number of btrfs.
pub const MAGIC: i64 = 0x9123_683e;

/// The inode of the top directory of every subvolume.
pub const SUBVOLUME_INODE: u64 = 256;

/// Counts everything that a subvolume refers to, shared or not.
const LIMIT_REFERENCED: u64 = 1;

const NAME_BYTES: usize = 4088;

#[repr(C)]
struct VolumeArguments {
    fd: i64,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct LimitArguments {
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

/// Makes an empty subvolume in a directory.
pub fn create_subvolume(directory: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    on_volume(directory, BTRFS_IOC_SUBVOL_CREATE, name)
}

/// Removes a subvolume with everything in it. Its space is freed in the background.
pub fn destroy_subvolume(directory: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    on_volume(directory, BTRFS_IOC_SNAP_DESTROY, name)
}

fn on_volume(directory: BorrowedFd<'_>, request: libc::Ioctl, name: &str) -> io::Result<()> {
    let mut arguments = Box::new(VolumeArguments { fd: 0, name: [0; NAME_BYTES] });
    // The last byte stays zero: it ends the name.
    if name.len() >= NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    arguments.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads one structure of this size, which lives until the call returns.
    let answer = unsafe { libc::ioctl(directory.as_raw_fd(), request, &raw const *arguments) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Limits what a subvolume may hold. `ENOTCONN` where quotas are not switched on.
pub fn limit_subvolume(subvolume: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let arguments = LimitArguments {
        // 0 is the group of the subvolume itself.
        group: 0,
        flags: LIMIT_REFERENCED,
        max_referenced: bytes,
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    // SAFETY: the kernel reads one structure of this size, which lives until the call returns.
    let answer =
        unsafe { libc::ioctl(subvolume.as_raw_fd(), BTRFS_IOC_QGROUP_LIMIT, &raw const arguments) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_structures_of_this_size() {
        assert_eq!(size_of::<VolumeArguments>(), 4096);
        assert_eq!(size_of::<LimitArguments>(), 48);
    }
}
