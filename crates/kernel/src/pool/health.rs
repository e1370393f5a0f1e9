//! Failed launches of a pool. After too many in a row the pool is degraded: launches are tried one
//! at a time, with pauses, and never given up.

use std::sync::Arc;

use model::Mono;

/// The health of a pool's launches.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Launches that failed in a row.
    failures: u32,
    /// When the last failure was counted: launches that began before it are the same failure.
    counted_at: Mono,
    /// No launch is tried before this while the pool is degraded.
    retry_at: Mono,
    last_failure: Option<Arc<str>>,
}

impl Health {
    /// A launch failed. Returns the number of failures since the pool is degraded, if it is and if
    /// this failure counts.
    pub(crate) fn failed(
        &mut self,
        began: Mono,
        now: Mono,
        detail: &Arc<str>,
        degraded_after: u32,
    ) -> Option<u32> {
        self.last_failure = Some(Arc::clone(detail));
        if began < self.counted_at {
            return None;
        }
        self.counted_at = now;
        self.failures = self.failures.saturating_add(1);
        self.is_degraded(degraded_after).then(|| self.failures - degraded_after + 1)
    }

    pub(crate) const fn pause_until(&mut self, retry_at: Mono) {
        self.retry_at = retry_at;
    }

    /// A launch worked. Returns whether the pool was degraded until now.
    pub(crate) fn recovered(&mut self, degraded_after: u32) -> bool {
        let degraded = self.is_degraded(degraded_after);
        self.failures = 0;
        self.last_failure = None;
        self.retry_at = Mono(0);
        degraded
    }

    /// Whether the pool is degraded: launches are tried one at a time, with pauses.
    pub(crate) const fn is_degraded(&self, degraded_after: u32) -> bool {
        self.failures >= degraded_after
    }

    pub(crate) const fn retry_at(&self) -> Mono {
        self.retry_at
    }

    pub(crate) fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_fail_together_are_one_failure() {
        let (mut health, detail) = (Health::default(), Arc::from("no room"));
        assert_eq!(health.failed(Mono(1), Mono(10), &detail, 2), None);
        assert_eq!(health.failed(Mono(2), Mono(11), &detail, 2), None, "it began before the first");
        assert!(!health.is_degraded(2));
        assert_eq!(health.failed(Mono(10), Mono(20), &detail, 2), Some(1));
        assert_eq!(health.failed(Mono(20), Mono(30), &detail, 2), Some(2));
        assert!(health.recovered(2) && !health.recovered(2));
        assert_eq!((health.retry_at(), health.last_failure()), (Mono(0), None));
    }
}
