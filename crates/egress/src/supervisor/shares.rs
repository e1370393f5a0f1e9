//! In which processes each key has sandboxes: the limits of a key are divided among these processes.
//! A number that is sent to a process is read when it is sent, so the last one sent is true.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::KeyId;

#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The sandboxes of each key, by process.
    of: Mutex<BTreeMap<KeyId, BTreeMap<u64, usize>>>,
}

impl Shares {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<KeyId, BTreeMap<u64, usize>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has one more sandbox of a key. These other processes have a smaller share now.
    pub(super) fn join(&self, key: KeyId, process: u64) -> Vec<u64> {
        let mut of = self.lock();
        let processes = of.entry(key).or_default();
        let sandboxes = processes.entry(process).or_default();
        *sandboxes += 1;
        if *sandboxes > 1 {
            return Vec::new();
        }
        processes.keys().copied().filter(|other| *other != process).collect()
    }

    /// A process has one sandbox of a key less. These other processes have a larger share now.
    pub(super) fn leave(&self, key: KeyId, process: u64) -> Vec<u64> {
        let mut of = self.lock();
        let Some(processes) = of.get_mut(&key) else { return Vec::new() };
        let Some(sandboxes) = processes.get_mut(&process) else { return Vec::new() };
        *sandboxes -= 1;
        if *sandboxes > 0 {
            return Vec::new();
        }
        processes.remove(&process);
        let others = processes.keys().copied().collect();
        if processes.is_empty() {
            of.remove(&key);
        }
        others
    }

    /// Among how many processes the limits of a key are divided.
    pub(super) fn parts(&self, key: Option<KeyId>) -> u32 {
        let parts = key.and_then(|key| self.lock().get(&key).map(BTreeMap::len)).unwrap_or(1);
        u32::try_from(parts).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_sandbox_of_a_process_change_shares() {
        let shares = Shares::default();
        let (one, two) = (KeyId::from_u128(1), KeyId::from_u128(2));
        assert_eq!(shares.join(one, 1), [] as [u64; 0]);
        assert_eq!(shares.join(two, 1), [] as [u64; 0]);
        assert_eq!(shares.join(one, 2), [1]);
        assert_eq!(shares.join(one, 2), [] as [u64; 0]);
        assert_eq!((shares.parts(Some(one)), shares.parts(Some(two))), (2, 1));
        assert_eq!(shares.leave(one, 2), [] as [u64; 0]);
        assert_eq!(shares.leave(one, 2), [1]);
        assert_eq!((shares.parts(Some(one)), shares.parts(None)), (1, 1));
        assert_eq!(shares.leave(one, 1), [] as [u64; 0]);
        assert_eq!(shares.leave(one, 1), [] as [u64; 0], "it has none there");
    }
}
