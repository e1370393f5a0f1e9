//! Numbers of projects: which are ours, and which may be given to a workspace. One that anything on
//! the file system counts for, or that has a limit, is somebody's: a workspace of an earlier run, a
//! tree in the trash, or one of another server on the same disk.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use jail::sys::project::{self, Held};
use rustix::io::Errno;

use crate::hard_limits::PROBE_PROJECT;

/// How many numbers are ours, after that of the probe.
const OURS: u32 = 0xff_ffff;

/// Numbers that are looked at for one that is free.
const TRIED: u32 = 10_000;

/// Hands out numbers.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: AtomicU32,
}

impl Numbers {
    /// Begins anywhere: two servers on one disk hardly ever look at the same number at once.
    pub(crate) fn beginning_at(anywhere: u128) -> Self {
        // What matters is that it differs.
        let next = u32::try_from(anywhere % u128::from(OURS)).unwrap_or_default();
        Self { next: AtomicU32::new(next) }
    }

    /// A number that nothing counts for.
    pub(crate) fn take(&self, directory: BorrowedFd<'_>) -> io::Result<u32> {
        self.take_where(|number| match project::held_by(directory, number) {
            // Where nothing ever counted for it, some file systems have no record of it.
            Err(error) if is_unknown(&error) => Ok(true),
            held => held.map(is_free),
        })
    }

    fn take_where(&self, is_free: impl Fn(u32) -> io::Result<bool>) -> io::Result<u32> {
        for _ in 0..TRIED {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % OURS;
            let number = PROBE_PROJECT + 1 + next;
            if is_free(number)? {
                return Ok(number);
            }
        }
        Err(io::Error::other("no number of a project is free"))
    }
}

/// Whether a number is one that workspaces get.
pub(crate) const fn is_ours(number: u32) -> bool {
    number > PROBE_PROJECT && number <= PROBE_PROJECT + OURS
}

/// Takes the limit from a number, unless something still counts for it.
pub(crate) fn give_back(directory: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    if project::held_by(directory, number)?.files > 0 {
        return Ok(());
    }
    project::limit_project(directory, number, 0, 0)
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
    fn only_numbers_that_nobody_has_are_taken() {
        let last = PROBE_PROJECT + OURS;
        let numbers = Numbers::beginning_at(u128::from(OURS) * 7 + u128::from(OURS) - 1);
        let taken = [PROBE_PROJECT + 1, PROBE_PROJECT + 2];
        let take = || numbers.take_where(|number| Ok(!taken.contains(&number))).expect("free");
        assert_eq!([take(), take()], [last, PROBE_PROJECT + 3]);
        for (number, ours) in [(last, true), (last + 1, false), (PROBE_PROJECT, false), (0, false)]
        {
            assert_eq!(is_ours(number), ours, "{number}");
        }
        assert!(numbers.take_where(|_| Ok(false)).is_err(), "it does not look for ever");
        let nothing = Held { bytes: 0, files: 0, limited: false };
        assert!(is_free(nothing));
        assert!(!is_free(Held { files: 1, ..nothing }), "a tree in the trash");
        assert!(!is_free(Held { limited: true, ..nothing }), "being made or removed");
    }
}
