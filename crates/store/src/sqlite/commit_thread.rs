//! On which thread commits run. They run on the calling thread, since another thread costs more
//! than the commit itself; but a slow disk would hold up everything else on that thread, so commits
//! move to another one until the disk is fast again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A commit that takes longer than this is slow.
const SLOW: Duration = Duration::from_millis(20);

/// So many must be fast in a row before the disk is trusted again.
const FAST_IN_A_ROW: u32 = 64;

/// How fast the disk is.
#[derive(Debug, Default)]
pub(super) struct DiskSpeed {
    distrust: AtomicU32,
}

impl DiskSpeed {
    /// Whether the next commit may run on the calling thread.
    pub(super) fn trusted(&self) -> bool {
        self.distrust.load(Ordering::Relaxed) == 0
    }

    /// A commit took so long.
    pub(super) fn took(&self, time: Duration) {
        if time > SLOW {
            self.distrust.store(FAST_IN_A_ROW, Ordering::Relaxed);
        } else if !self.trusted() {
            // Of two commits that end at once one may go uncounted, which does no harm.
            let less = self.distrust.load(Ordering::Relaxed).saturating_sub(1);
            self.distrust.store(less, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_thread_returns_to_the_caller_after_many_fast_commits() {
        let disk_speed = DiskSpeed::default();
        let fast = Duration::from_micros(40);
        disk_speed.took(SLOW);
        assert!(disk_speed.trusted());
        disk_speed.took(SLOW + fast);
        for _ in 0..FAST_IN_A_ROW {
            assert!(!disk_speed.trusted());
            disk_speed.took(fast);
        }
        assert!(disk_speed.trusted());
    }
}
