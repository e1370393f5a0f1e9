//! Rate limit of a pool's refill: a token bucket that holds at most one second of its rate, so that
//! a pool that lost everything does not launch everything at once.

use model::Mono;

/// What one launch takes from the bucket.
const LAUNCH_MILLI: u64 = 1000;

/// The refill's rate limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    /// Thousandths of launches, as of `at`.
    milli: u64,
    at: Mono,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn full(per_s: u32, now: Mono) -> Self {
        Self { milli: u64::from(per_s) * LAUNCH_MILLI, at: now }
    }

    /// Fills it up to now. Returns how many launches it allows.
    pub(crate) fn fill(&mut self, per_s: u32, now: Mono) -> u32 {
        let rate = u64::from(per_s);
        let gained = now.since(self.at).saturating_mul(rate);
        self.milli = self.milli.saturating_add(gained).min(rate * LAUNCH_MILLI);
        self.at = now;
        (self.milli / LAUNCH_MILLI) as u32
    }

    /// A launch begins.
    pub(crate) const fn take(&mut self) {
        self.milli -= LAUNCH_MILLI;
    }

    /// Whether it allows no launch now.
    pub(crate) const fn is_empty(&self) -> bool {
        self.milli < LAUNCH_MILLI
    }

    /// When it will allow the next launch.
    pub(crate) fn next_at(&self, per_s: u32) -> Mono {
        let missing = LAUNCH_MILLI.saturating_sub(self.milli);
        self.at.plus(missing.div_ceil(u64::from(per_s).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_at_its_rate_and_no_further() {
        let mut bucket = Bucket::full(2, Mono(0));
        assert_eq!(bucket.fill(2, Mono(9_000)), 2);
        bucket.take();
        bucket.take();
        assert!(bucket.is_empty());
        assert_eq!(bucket.next_at(2), Mono(9_500));
        assert_eq!((bucket.fill(2, Mono(9_499)), bucket.fill(2, Mono(9_500))), (0, 1));
    }
}
