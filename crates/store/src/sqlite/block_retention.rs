//! Retention of blocks: some blocks at a time, in the transaction of a commit that added one, and
//! never more than a commit can afford. Never deletes below the promised count.

use crate::retention::{MOST_AT_ONCE, slack};

/// Counts what is in the blocks of a table that only grows at its end, and says when to cut its
/// beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRetention {
    kept: u64,
    limit: u64,
}

/// What to delete now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    excess: u64,
    enough: u64,
    taken: u64,
}

impl BlockRetention {
    pub(super) const fn new(kept: u64, limit: u64) -> Self {
        Self { kept, limit }
    }

    /// How much of the oldest to delete after `added` came.
    pub(super) fn due(self, added: u64) -> Due {
        let excess = (self.kept + added).saturating_sub(self.limit);
        let excess = if excess <= slack(self.limit) { 0 } else { excess };
        Due { excess, enough: excess.min(MOST_AT_ONCE + 2 * added), taken: 0 }
    }

    /// The count after the commit.
    pub(super) const fn after(self, added: u64, forgotten: u64) -> Self {
        Self { kept: (self.kept + added).saturating_sub(forgotten), limit: self.limit }
    }
}

impl Due {
    /// Whether to look at another block.
    pub(super) const fn more(&self) -> bool {
        self.taken < self.enough
    }

    /// How much goes now.
    pub(super) const fn enough(&self) -> u64 {
        self.enough
    }

    /// Whether the next block goes: only if enough is left without it.
    pub(super) const fn take(&mut self, count: u64) -> bool {
        let goes = self.taken + count <= self.excess;
        if goes {
            self.taken += count;
        }
        goes
    }

    /// How much was in the deleted blocks.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// How much goes of such blocks.
    fn cut(trim: BlockRetention, added: u64, blocks: impl IntoIterator<Item = u64>) -> u64 {
        let mut due = trim.due(added);
        let mut blocks = blocks.into_iter();
        while due.more() && blocks.next().is_some_and(|count| due.take(count)) {}
        due.taken()
    }

    #[test]
    fn block_retention_deletes_some_at_a_time() {
        for (kept, limit, added, of, goes) in [
            (0, 1_000, 1, 1, 0),
            (1_000, 1_000, 15, 1, 0),
            (1_000, 1_000, 16, 1, 16),
            (1_000, 1_000, 16, 5, 15),
            (1_000, 1_000, 16, 17, 0),
            (100_000, 100_000, 128, 1, 0),
            (100_000, 100_000, 129, 1, 129),
            (100_000, 1_000, 1, 1, 130),
            (100_000, 1_000, 1, 50, 150),
            (100_000, 1_000, 1, 5_000, 5_000),
            (5, 5, 1, 1, 0),
            (6, 5, 1, 1, 2),
            (0, 0, 1, 1, 0),
        ] {
            let goes_now = cut(BlockRetention::new(kept, limit), added, std::iter::repeat(of));
            assert_eq!(goes_now, goes, "{kept} of {limit}, {added} more, in blocks of {of}");
        }
    }

    #[test]
    fn block_retention_keeps_up_with_any_growth() {
        for added in [1, 7, 300, 3_000] {
            let mut blocks: VecDeque<u64> = std::iter::repeat_n(10, 5_000).collect();
            let mut trim = BlockRetention::new(50_000, 1_000);
            for _ in 0..2_000 {
                blocks.push_back(added);
                let goes = cut(trim, added, blocks.iter().copied());
                trim = trim.after(added, goes);
                let mut gone = 0;
                while gone < goes {
                    gone += blocks.pop_front().unwrap();
                }
                assert!(goes <= MOST_AT_ONCE + 2 * added + added.max(10));
                assert_eq!((gone, trim.kept), (goes, blocks.iter().sum()));
                assert!(trim.kept >= 1_000);
            }
            assert!(trim.kept <= 1_000 + slack(1_000).max(added), "{added}: {trim:?}");
        }
    }
}
