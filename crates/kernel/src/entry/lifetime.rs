//! How long a sandbox lives: until its lease or its time in the pool is over, and never longer
//! than its template allows.

use model::Wall;

/// How long a sandbox lives.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lifetime {
    expires_at: Option<Wall>,
    /// When it expires at the latest.
    hard: Option<Wall>,
}

impl Lifetime {
    /// A life that begins now, as long as it may be.
    pub(crate) fn began(now: Wall, max_ms: Option<u64>) -> Self {
        let hard = max_ms.map(|ms| now.plus(ms));
        Self { expires_at: hard, hard }
    }

    /// It ends at `at`, or when it must.
    pub(crate) fn limit_to(&mut self, at: Wall) -> Wall {
        let at = self.hard.map_or(at, |hard| hard.min(at));
        self.expires_at = Some(at);
        at
    }

    /// It is as long as it may be.
    pub(crate) const fn unlimited(&mut self) {
        self.expires_at = self.hard;
    }

    /// It goes on until `at`, if it may. A renewal gives time and never takes any, and none gives
    /// more than a whole life.
    pub(crate) fn renew(&mut self, at: Wall) -> Wall {
        self.limit_to(self.expires_at.map_or(at, |current| current.max(at)))
    }

    pub(crate) const fn expires_at(&self) -> Option<Wall> {
        self.expires_at
    }

    /// Whether the longest life that it may have is over.
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
    fn nothing_lives_longer_than_it_may() {
        let mut life = Lifetime::began(Wall(100), Some(50));
        assert_eq!(life.limit_to(Wall(120)), Wall(120));
        assert_eq!(life.renew(Wall(110)), Wall(120), "a renewal takes no time");
        assert_eq!(life.renew(Wall(999)), Wall(150));
        assert!(!life.has_ended(Wall(149)) && life.has_ended(Wall(150)));
        assert!(life.outlives(Wall(140), 9) && !life.outlives(Wall(140), 10));
    }

    #[test]
    fn what_has_no_limit_lives_on() {
        let life = Lifetime::began(Wall(100), None);
        assert!(life.outlives(Wall(u64::MAX), 0) && !life.has_ended(Wall(u64::MAX)));
        assert_eq!(life.expires_at(), None);
    }
}
