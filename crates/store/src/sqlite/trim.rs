//! How the past is forgotten: some rows at a time, in the transaction of a commit that added some,
//! and never more than a commit can bear.

use crate::retention::{MOST_AT_ONCE, slack};

/// Counts the rows of a table that only grows at its end, and says when to cut its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trim {
    kept: u64,
    limit: u64,
}

impl Trim {
    pub(super) const fn new(kept: u64, limit: u64) -> Self {
        Self { kept, limit }
    }

    /// How many of the oldest rows to delete after `added` came.
    pub(super) fn due(self, added: u64) -> u64 {
        let excess = (self.kept + added).saturating_sub(self.limit);
        if excess <= slack(self.limit) {
            return 0;
        }
        excess.min(MOST_AT_ONCE + 2 * added)
    }

    /// What is counted once that was committed.
    pub(super) const fn after(self, added: u64, deleted: u64) -> Self {
        Self { kept: (self.kept + added).saturating_sub(deleted), limit: self.limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_in_chunks() {
        for (kept, limit, added, due) in [
            (0, 1_000, 1, 0),
            (1_000, 1_000, 15, 0),
            (1_000, 1_000, 16, 16),
            (100_000, 100_000, 128, 0),
            (100_000, 100_000, 129, 129),
            (100_000, 1_000, 1, 130),
            (5, 5, 1, 0),
            (6, 5, 1, 2),
            (0, 5, 1_000, 995),
            (0, 0, 1, 0),
        ] {
            let trim = Trim::new(kept, limit);
            assert_eq!(trim.due(added), due, "{kept} of {limit}, {added} more");
        }
    }

    #[test]
    fn any_growth_is_kept_up_with() {
        for added in [1, 7, 300] {
            let mut trim = Trim::new(50_000, 1_000);
            for _ in 0..2_000 {
                let due = trim.due(added);
                assert!(due <= MOST_AT_ONCE + 2 * added);
                trim = trim.after(added, due);
            }
            assert!(trim.kept <= 1_000 + slack(1_000), "{added}: {trim:?}");
        }
    }
}
