//! Faults that a test injects. Without one, nothing fails.

use std::collections::VecDeque;

use crate::error::StoreErrorCode;

/// Whether commits pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// They do.
    Open,
    /// They wait.
    Hanging,
    /// They never will again.
    Closed,
}

impl Gate {
    /// Changes from one to the other, and returns whether it did.
    pub(super) fn shift(&mut self, from: Self, to: Self) -> bool {
        let shifts = *self == from;
        if shifts {
            *self = to;
        }
        shifts
    }
}

/// Failures still to come, in order.
#[derive(Debug, Default)]
pub(super) struct Faults {
    queue: VecDeque<(u32, StoreErrorCode)>,
    /// Writes that pass before all others wait.
    left: Option<u64>,
}

impl Faults {
    pub(super) fn fail(&mut self, count: u32, code: StoreErrorCode) {
        if count > 0 {
            self.queue.push_back((count, code));
        }
    }

    pub(super) const fn hang_after(&mut self, writes: u64) {
        self.left = Some(writes);
    }

    /// Counts a write; whether it exceeds the allowed number.
    pub(super) const fn is_one_too_many(&mut self) -> bool {
        match self.left {
            Some(0) => {
                self.left = None;
                true
            }
            Some(left) => {
                self.left = Some(left - 1);
                false
            }
            None => false,
        }
    }

    pub(super) fn take(&mut self) -> Option<StoreErrorCode> {
        let (count, code) = self.queue.front_mut()?;
        let code = *code;
        *count -= 1;
        if *count == 0 {
            self.queue.pop_front();
        }
        Some(code)
    }
}
