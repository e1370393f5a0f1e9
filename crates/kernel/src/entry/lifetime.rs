//! When a sandbox expires: at the end of its lease or of its time in the pool, and never later than
//! its template allows.

use model::Wall;

/// When a sandbox expires.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lifetime {
    expires_at: Option<Wall>,
    /// The latest time at which it may expire.
    hard: Option<Wall>,
}

impl Lifetime {
    /// A lifetime that begins now, as long as allowed.
    pub(crate) fn began(now: Wall, max_ms: Option<u64>) -> Self {
        let hard = max_ms.map(|ms| now.plus(ms));
        Self { expires_at: hard, hard }
    }

    /// It ends at `at`, or at its hard limit.
    pub(crate) fn limit_to(&mut self, at: Wall) -> Wall {
        let at = self.hard.map_or(at, |hard| hard.min(at));
        self.expires_at = Some(at);
        at
    }

    /// It lasts until its hard limit.
    pub(crate) const fn unlimited(&mut self) {
        self.expires_at = self.hard;
    }

    /// It lasts until `at`, within its hard limit. A renewal never shortens it.
    pub(crate) fn renew(&mut self, at: Wall) -> Wall {
        self.limit_to(self.expires_at.map_or(at, |current| current.max(at)))
    }

    pub(crate) const fn expires_at(&self) -> Option<Wall> {
        self.expires_at
    }

    /// Whether its hard limit has passed.
    pub(crate) fn has_ended(&self, now: Wall) -> bool {
        self.hard.is_some_and(|hard| hard <= now)
    }

    /// Whether more than `margin_ms` of it is left.
    pub(crate) fn outlives(&self, now: Wall, margin_ms: u64) -> bool {
        self.expires_at.is_none_or(|end| end > now.plus(margin_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_never_exceeds_its_hard_limit() {
        let mut life = Lifetime::began(Wall(100), Some(50));
        assert_eq!(life.limit_to(Wall(120)), Wall(120));
        assert_eq!(life.renew(Wall(110)), Wall(120), "a renewal takes no time");
        assert_eq!(life.renew(Wall(999)), Wall(150));
        assert!(!life.has_ended(Wall(149)) && life.has_ended(Wall(150)));
        assert!(life.outlives(Wall(140), 9) && !life.outlives(Wall(140), 10));
    }

    #[test]
    fn lifetime_without_a_limit_never_ends() {
        let life = Lifetime::began(Wall(100), None);
        assert!(life.outlives(Wall(u64::MAX), 0) && !life.has_ended(Wall(u64::MAX)));
        assert_eq!(life.expires_at(), None);
    }
}
