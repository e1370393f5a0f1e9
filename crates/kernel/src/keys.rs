//! What each key has, and what it may have. A key that has nothing and no limit is not remembered.
//! Counts follow the facts: `settle` and the queues keep them in step, and an audit recounts them.

use std::collections::BTreeMap;

use model::{KeyId, KeyLimit, KeyLimits, KeyUse, Refusal};

use crate::Kernel;

/// All keys that have something, wait for something or have a limit.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    known: BTreeMap<KeyId, Key>,
}

/// One key.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    limits: KeyLimits,
    /// Its live sandboxes that are not ending.
    pub(crate) live: u32,
    /// Their memory.
    pub(crate) memory_mb: u64,
    /// Its sandboxes, live and cold, whose entries are not ending.
    pub(crate) entries: u32,
    /// Its checkouts and sessions that wait for a sandbox or a place.
    pub(crate) waiting: u32,
    /// The memory that these will take.
    pub(crate) waiting_memory_mb: u64,
}

impl Key {
    /// Its counts alone, for audits.
    pub(crate) fn without_limits(mut self) -> Self {
        self.limits = KeyLimits::default();
        self
    }

    /// One of its requests waits for a sandbox with so much memory.
    pub(crate) const fn waits(&mut self, memory_mb: u64) {
        self.waiting += 1;
        self.waiting_memory_mb += memory_mb;
    }

    /// It got its sandbox, or no longer wants one.
    pub(crate) const fn waits_no_longer(&mut self, memory_mb: u64) {
        self.waiting -= 1;
        self.waiting_memory_mb -= memory_mb;
    }

    /// The limit that one more live sandbox would exceed.
    fn exceeds(&self, memory_mb: u64) -> Option<Refusal> {
        let live = self.live + self.waiting;
        let total_mb = self.memory_mb + self.waiting_memory_mb;
        if let Some(most) = self.limits.live_sandboxes
            && live >= most
        {
            return Some(KeyLimit::LiveSandboxes.exceeded(most.into(), live.into()));
        }
        if let Some(most) = self.limits.memory_mb
            && total_mb + memory_mb > most
        {
            return Some(KeyLimit::MemoryMb.exceeded(most, total_mb));
        }
        None
    }
}

impl Keys {
    pub(crate) fn of(&self, key: KeyId) -> Key {
        self.known.get(&key).copied().unwrap_or_default()
    }

    /// How many live sandboxes a key has.
    pub(crate) fn live(&self, key: KeyId) -> u32 {
        self.known.get(&key).map_or(0, |known| known.live)
    }

    /// All known keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyId, &Key)> {
        self.known.iter().map(|(key, known)| (*key, known))
    }

    /// Changes the counts of a key. Sandboxes and requests without a key are not counted.
    pub(crate) fn count(&mut self, key: KeyId, change: impl FnOnce(&mut Key)) {
        if key == KeyId::NIL {
            return;
        }
        let known = self.known.entry(key).or_default();
        change(known);
        if *known == Key::default() {
            self.known.remove(&key);
        }
    }
}

impl Kernel {
    pub(crate) fn key_limits_set(&mut self, key: KeyId, limits: KeyLimits) {
        self.keys.count(key, |known| known.limits = limits);
    }

    /// What a key uses of the limits on sandboxes and sessions.
    pub fn key_use(&self, key: KeyId) -> KeyUse {
        let known = self.keys.of(key);
        KeyUse {
            live_sandboxes: known.live,
            sessions: self.sessions.of_key(key),
            memory_mb: known.memory_mb,
            stored_bytes: self.stored_bytes(key),
        }
    }

    /// Whether the limits of a key allow one more live sandbox now.
    pub(crate) fn is_within_limits(&self, key: KeyId, memory_mb: u64) -> bool {
        self.keys.of(key).exceeds(memory_mb).is_none() || self.flaws.ignores_key_limits()
    }

    /// Makes room within the limits of a key for one more live sandbox: idle sandboxes of its own
    /// sessions give way. Refuses it if that is not enough.
    pub(crate) fn make_room_within_limits(
        &mut self,
        key: KeyId,
        memory_mb: u64,
    ) -> Result<(), Refusal> {
        // Each round ends one sandbox, so the number of sandboxes bounds the rounds.
        for _ in 0..=self.entries.len() {
            match self.keys.of(key).exceeds(memory_mb) {
                None => return Ok(()),
                Some(_) if self.flaws.ignores_key_limits() => return Ok(()),
                Some(_) if self.evict_own(key) => {}
                Some(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Refuses a new session of a key that has as many sessions, or stores as much, as it may.
    pub(crate) fn refuse_session_above_limits(&self, key: KeyId) -> Result<(), Refusal> {
        let limits = self.keys.of(key).limits;
        let sessions = self.sessions.of_key(key);
        if let Some(most) = limits.sessions
            && sessions >= most
        {
            return Err(KeyLimit::Sessions.exceeded(most.into(), sessions.into()));
        }
        if let Some(most) = limits.stored_bytes {
            let stored = self.stored_bytes(key);
            if stored >= most {
                return Err(KeyLimit::StoredBytes.exceeded(most, stored));
            }
        }
        Ok(())
    }
}
