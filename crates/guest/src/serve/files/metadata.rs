//! File metadata: permissions and modification time. They are changed as the owner would, and never
//! through a link.

use guest_protocol::message::{EntryKind, Fault, FaultCode};
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_OMIT, chmodat, statat, utimensat};

use super::super::fault::{fault, refused};
use super::{SETTABLE, kind_of, open_directory_of};

/// Files made in such a directory get its group.
const SET_GROUP: u32 = 0o2000;

/// Changes the values that are given.
pub(in super::super) fn set(
    path: &str,
    mode: Option<u32>,
    modified_ms: Option<i64>,
) -> Result<(), Fault> {
    let explain = |errno| refused(errno, path);
    let (directory, name) = open_directory_of(path)?;
    let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(explain)?;
    let settable = match kind_of(&found) {
        EntryKind::Directory => SETTABLE | SET_GROUP,
        EntryKind::File | EntryKind::Other => SETTABLE,
        EntryKind::Link => 0,
    };
    if mode.is_some_and(|mode| mode & !settable != 0) {
        return Err(fault(FaultCode::Invalid, format!("{path}: these permissions cannot be set")));
    }
    if let Some(mode) = mode.filter(|_| kind_of(&found) != EntryKind::Link) {
        chmodat(&directory, name, Mode::from(mode), AtFlags::empty()).map_err(explain)?;
    }
    if let Some(modified_ms) = modified_ms {
        let modified = Timespec {
            tv_sec: modified_ms.div_euclid(1000),
            tv_nsec: modified_ms.rem_euclid(1000) * 1_000_000,
        };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access, last_modification: modified };
        utimensat(&directory, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(explain)?;
    }
    Ok(())
}
