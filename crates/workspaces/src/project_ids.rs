//! Project ids, by which the file system counts workspaces: which are ours, and which are free. An
//! id that has usage or a limit is in use: by a workspace of an earlier run, by a tree in the
//! trash, or by another server on the same disk.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use jail::sys::project::{self, Held};
use rustix::io::Errno;

use crate::hard_limits::PROBE_PROJECT;

/// How many ids are ours, after that of the probe.
const ID_COUNT: u32 = 0xff_ffff;

/// How many ids are checked to find a free one.
const IDS_TRIED: u32 = 10_000;

/// Allocates project ids.
#[derive(Debug)]
pub(crate) struct ProjectIds {
    next: AtomicU32,
}

impl ProjectIds {
    /// Starts anywhere: two servers on one disk then hardly ever check the same id at once.
    pub(crate) fn starting_at(anywhere: u128) -> Self {
        // Any value does, as long as servers differ.
        let next = u32::try_from(anywhere % u128::from(ID_COUNT)).unwrap_or_default();
        Self { next: AtomicU32::new(next) }
    }

    /// A free id.
    pub(crate) fn take(&self, directory: BorrowedFd<'_>) -> io::Result<u32> {
        self.take_where(|id| match project::held_by(directory, id) {
            // Some file systems have no record of an id that was never used.
            Err(error) if is_unknown(&error) => Ok(true),
            held => held.map(is_free),
        })
    }

    fn take_where(&self, is_free: impl Fn(u32) -> io::Result<bool>) -> io::Result<u32> {
        for _ in 0..IDS_TRIED {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % ID_COUNT;
            let id = PROBE_PROJECT + 1 + next;
            if is_free(id)? {
                return Ok(id);
            }
        }
        Err(io::Error::other("no project id is free"))
    }
}

/// Whether an id is one of the range for workspaces.
pub(crate) const fn is_ours(id: u32) -> bool {
    id > PROBE_PROJECT && id <= PROBE_PROJECT + ID_COUNT
}

/// Removes the limit of an id, unless it still has usage.
pub(crate) fn give_back(directory: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    if project::held_by(directory, id)?.files > 0 {
        return Ok(());
    }
    project::limit_project(directory, id, 0, 0)
}

const fn is_free(held: Held) -> bool {
    held.files == 0 && held.bytes == 0 && !held.limited
}

fn is_unknown(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::SRCH].iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_ids_in_use_are_never_taken() {
        let last = PROBE_PROJECT + ID_COUNT;
        let ids = ProjectIds::starting_at(u128::from(ID_COUNT) * 7 + u128::from(ID_COUNT) - 1);
        let taken = [PROBE_PROJECT + 1, PROBE_PROJECT + 2];
        let take = || ids.take_where(|id| Ok(!taken.contains(&id))).expect("free");
        assert_eq!([take(), take()], [last, PROBE_PROJECT + 3]);
        for (id, ours) in [(last, true), (last + 1, false), (PROBE_PROJECT, false), (0, false)] {
            assert_eq!(is_ours(id), ours, "{id}");
        }
        assert!(ids.take_where(|_| Ok(false)).is_err(), "it does not look for ever");
        let nothing = Held { bytes: 0, files: 0, limited: false };
        assert!(is_free(nothing));
        assert!(!is_free(Held { files: 1, ..nothing }), "a tree in the trash");
        assert!(!is_free(Held { limited: true, ..nothing }), "being made or removed");
    }
}
