//! The ids under which files are used, apart from those under which a process runs.

/// Uses files as this user and group from now on. Needs the capabilities to set ids. The kernel
/// does not report success, so the result is checked.
pub fn use_files_as(uid: u32, gid: u32) -> std::io::Result<()> {
    // SAFETY: setfsgid takes a number and touches no memory.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: setfsuid takes a number and touches no memory.
    unsafe { libc::setfsuid(uid) };
    // SAFETY: as above; an id that cannot be one makes it only tell the current one.
    let uid_now = unsafe { libc::setfsuid(u32::MAX) };
    // SAFETY: as above.
    let gid_now = unsafe { libc::setfsgid(u32::MAX) };
    if uid_now.cast_unsigned() == uid && gid_now.cast_unsigned() == gid {
        Ok(())
    } else {
        Err(std::io::Error::from_raw_os_error(libc::EPERM))
    }
}
