//! The share of a key when places are short: max-min. A key that wants less than an equal part gets
//! all it wants; what it leaves is divided equally between the others. Eviction takes first from
//! keys that have more than their share.

use model::KeyId;
use model::why::Shortage;

use crate::Kernel;
use crate::keys::Key;

/// What no key may exceed while another wants more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    shortage: Shortage,
    level: u64,
}

impl Shares {
    /// Shares that no key exceeds. Only a kernel that is broken on purpose uses them.
    pub(crate) const fn unlimited(self) -> Self {
        Self { level: u64::MAX, ..self }
    }

    /// What a key has of the resource that is short.
    const fn held(self, key: &Key) -> u64 {
        match self.shortage {
            Shortage::Entries => key.entries as u64,
            Shortage::Processes | Shortage::KeyLimit => key.live as u64,
            Shortage::Memory => key.memory_mb,
        }
    }
}

impl Kernel {
    /// The shares of all keys that have or want some of a resource.
    pub(crate) fn shares(&self, shortage: Shortage) -> Shares {
        let config = &self.config;
        let capacity = match shortage {
            Shortage::Entries => config.max_sandboxes.into(),
            Shortage::Processes | Shortage::KeyLimit => config.max_live.into(),
            Shortage::Memory => config.memory_budget_mb.unwrap_or(u64::MAX),
        };
        let mut shares = Shares { shortage, level: u64::MAX };
        let wants = |key: &Key| {
            let waiting = match shortage {
                Shortage::Entries | Shortage::Processes | Shortage::KeyLimit => key.waiting.into(),
                Shortage::Memory => key.waiting_memory_mb,
            };
            shares.held(key) + waiting
        };
        let wanted: Vec<u64> = self.keys.iter().map(|(_, key)| wants(key)).collect();
        shares.level = level(capacity, wanted);
        shares
    }

    /// Whether a key has more than its share. What belongs to no key is above every share.
    pub(crate) fn is_above_share(&self, shares: Shares, key: KeyId) -> bool {
        key == KeyId::NIL || shares.held(&self.keys.of(key)) > shares.level
    }
}

/// The most that one gets if `capacity` is divided max-min between those that want these amounts,
/// rounded up. Without a limit if all get what they want.
pub(crate) fn level(mut capacity: u64, mut wanted: Vec<u64>) -> u64 {
    wanted.sort_unstable();
    let mut left = wanted.len() as u64;
    for wants in wanted {
        if wants > capacity / left {
            return capacity.div_ceil(left);
        }
        capacity -= wants;
        left -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_divides_what_small_ones_leave() {
        assert_eq!(level(10, vec![]), u64::MAX);
        assert_eq!(level(10, vec![10]), u64::MAX);
        assert_eq!(level(10, vec![11]), 10);
        assert_eq!(level(10, vec![2, 3, 5]), u64::MAX);
        assert_eq!(level(10, vec![100, 2, 100]), 4);
        assert_eq!(level(10, vec![100, 100, 100]), 4, "rounded up: one of them may have 4");
        assert_eq!(level(10, vec![1, 100, 4]), 5);
        assert_eq!(level(0, vec![0, 3]), 0);
    }
}
