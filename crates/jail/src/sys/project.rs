//! Project quotas: directories whose contents count for a project id, and the limit of that
//! project. ext4 and xfs have them, if mounted with `prjquota`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401c_5820;

/// New files in a directory count for the directory's project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x0080_0007;
const Q_SETQUOTA: u32 = 0x0080_0008;
const Q_XGETQSTATV: u32 = 0x5808;

/// Usage of projects is counted, and their limits are enforced.
const PROJECTS_COUNTED: u16 = 1 << 4;
const PROJECTS_LIMITED: u16 = 1 << 5;

const LIMITS_OF_SPACE: u32 = 1;
const LIMITS_OF_FILES: u32 = 4;

#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    unused: [u8; 8],
}

/// The beginning of what the kernel fills in, and room for the rest.
#[repr(C)]
struct State {
    version: i8,
    unused: u8,
    flags: u16,
    rest: [u64; 31],
}

/// The usage of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Whether it has a limit.
    pub limited: bool,
}

/// Whether the file system of a directory enforces limits of projects.
pub fn are_limited(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let mut state = State { version: 1, unused: 0, flags: 0, rest: [0; 31] };
    // SAFETY: the kernel writes at most as much as there is room for.
    unsafe { quotactl(directory, Q_XGETQSTATV, 0, (&raw mut state).cast()) }?;
    let wanted = PROJECTS_COUNTED | PROJECTS_LIMITED;
    Ok(state.flags & wanted == wanted)
}

/// The project id of a directory; 0 is none.
pub fn project_of(directory: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(attributes_of(directory)?.project)
}

/// Makes an empty directory, and its future contents, count for a project.
pub fn set_project(directory: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut attributes = attributes_of(directory)?;
    attributes.project = project;
    attributes.flags |= FS_XFLAG_PROJINHERIT;
    // SAFETY: the kernel reads one structure of this size, which lives until the call returns.
    let answer =
        unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSSETXATTR, &raw const attributes) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn attributes_of(directory: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes one structure of this size.
    let answer =
        unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut attributes) };
    if answer == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

/// Limits a project; 0 is no limit.
pub fn limit_project(
    directory: BorrowedFd<'_>,
    project: u32,
    bytes: u64,
    files: u64,
) -> io::Result<()> {
    // SAFETY: all zeroes is a valid dqblk: it holds numbers only.
    let mut limits: libc::dqblk = unsafe { std::mem::zeroed() };
    // The unit is 1 KiB.
    limits.dqb_bhardlimit = bytes.div_ceil(1024);
    limits.dqb_ihardlimit = files;
    limits.dqb_valid = LIMITS_OF_SPACE | LIMITS_OF_FILES;
    // SAFETY: the kernel reads one dqblk.
    unsafe { quotactl(directory, Q_SETQUOTA, project, (&raw mut limits).cast()) }
}

/// The usage of a project.
pub fn held_by(directory: BorrowedFd<'_>, project: u32) -> io::Result<Held> {
    // SAFETY: all zeroes is a valid dqblk: it holds numbers only.
    let mut found: libc::dqblk = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one dqblk.
    unsafe { quotactl(directory, Q_GETQUOTA, project, (&raw mut found).cast()) }?;
    let limited = found.dqb_bhardlimit != 0 || found.dqb_ihardlimit != 0;
    Ok(Held { bytes: found.dqb_curspace, files: found.dqb_curinodes, limited })
}

/// # Safety
/// What `argument` points to must be what the command reads or writes, and live until it returns.
unsafe fn quotactl(
    directory: BorrowedFd<'_>,
    command: u32,
    project: u32,
    argument: *mut libc::c_void,
) -> io::Result<()> {
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: the caller vouches for the argument.
    let answer = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), command, project, argument)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_structures_of_this_size() {
        assert_eq!(size_of::<Attributes>(), 28);
        // The kernel's own has 160 bytes.
        assert!(size_of::<State>() >= 160);
    }
}
