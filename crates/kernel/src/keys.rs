//! What each key has, and what it may have. A key that has nothing and no limit is not remembered.
//! Counts follow the facts: `settle` and the queues keep them in step, and an audit recounts them.

use std::collections::BTreeMap;

use model::{ErrorCode, KeyId, KeyLimit, KeyLimits, KeyUse, Refusal, SandboxId};

use crate::Kernel;
use crate::entry::Derived;

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
    /// Its live sandboxes that are ending. Their end may still be called off.
    pub(crate) dying: u32,
    /// Their memory.
    pub(crate) dying_memory_mb: u64,
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

    /// A sandbox counts for it.
    pub(crate) fn has(&mut self, derived: Derived, memory_mb: u64) {
        let Derived { live_of_key, dying_live, entry_of_key, .. } = derived;
        self.live += u32::from(live_of_key);
        self.memory_mb += u64::from(live_of_key) * memory_mb;
        self.dying += u32::from(dying_live);
        self.dying_memory_mb += u64::from(dying_live) * memory_mb;
        self.entries += u32::from(entry_of_key);
    }

    /// A sandbox no longer counts for it.
    pub(crate) fn has_no_longer(&mut self, derived: Derived, memory_mb: u64) {
        let Derived { live_of_key, dying_live, entry_of_key, .. } = derived;
        self.live -= u32::from(live_of_key);
        self.memory_mb -= u64::from(live_of_key) * memory_mb;
        self.dying -= u32::from(dying_live);
        self.dying_memory_mb -= u64::from(dying_live) * memory_mb;
        self.entries -= u32::from(entry_of_key);
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

    /// The refusal of `more` sandboxes with so much memory, if a limit does not allow them besides
    /// what the key has and waits for.
    fn refuses(&self, more: u32, memory_mb: u64) -> Option<Refusal> {
        let live = self.live + self.waiting;
        let total_mb = self.memory_mb + self.waiting_memory_mb;
        if let Some(most) = self.limits.live_sandboxes
            && live + more > most
        {
            return Some(KeyLimit::LiveSandboxes.exceeded(most.into(), live.into(), more.into()));
        }
        if let Some(most) = self.limits.memory_mb
            && total_mb + memory_mb > most
        {
            return Some(KeyLimit::MemoryMb.exceeded(most, total_mb, memory_mb));
        }
        None
    }

    /// Whether the limits allow all that it waits for and `more`, besides all that still live.
    fn has_room(&self, more: u32, memory_mb: u64) -> bool {
        let within = |limit: Option<u64>, total: u64| limit.is_none_or(|most| total <= most);
        let live = self.live + self.dying + self.waiting + more;
        let total_mb = self.memory_mb + self.dying_memory_mb + self.waiting_memory_mb + memory_mb;
        within(self.limits.live_sandboxes.map(u64::from), live.into())
            && within(self.limits.memory_mb, total_mb)
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

    /// Whether the limits of a key allow now what it waits for, and `more`. A sandbox that is ending
    /// counts: its end may still be called off.
    pub(crate) fn has_room_within_limits(&self, key: KeyId, more: u32, memory_mb: u64) -> bool {
        self.keys.of(key).has_room(more, memory_mb) || self.flaws.ignores_key_limits()
    }

    /// Makes room within the limits of a key for `more` sandboxes: idle sandboxes of its own
    /// sessions give way. Refuses if that is not enough.
    pub(crate) fn make_room_within_limits(
        &mut self,
        key: KeyId,
        more: u32,
        memory_mb: u64,
    ) -> Result<(), Refusal> {
        // Each round ends one sandbox, so the number of sandboxes bounds the rounds.
        for _ in 0..=self.entries.len() {
            match self.keys.of(key).refuses(more, memory_mb) {
                None => return Ok(()),
                Some(_) if self.flaws.ignores_key_limits() => return Ok(()),
                Some(_) if self.evict_own(key) => {}
                Some(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Refuses a checkout that the limits of its key do not allow now. If idle sandboxes of the
    /// key's sessions could give way they do, and a repeated checkout will find room.
    pub(crate) fn refuse_checkout_above_limits(
        &mut self,
        key: KeyId,
        memory_mb: u64,
    ) -> Result<(), Refusal> {
        self.make_room_within_limits(key, 1, memory_mb)?;
        if self.has_room_within_limits(key, 1, memory_mb) {
            return Ok(());
        }
        let cause = "a limit of this key is reached; an idle sandbox of it is being ended";
        Err(Refusal::new(ErrorCode::QuotaExceeded, cause).retry_after(1_000))
    }

    /// The end of a sandbox may have been called off: sessions that wait for its place give way to
    /// it, the latest first, unless another sandbox of the key can.
    pub(crate) fn enforce_limits_on_waiting(&mut self) {
        for key in self.admission.waiting_keys() {
            while let Err(refusal) = self.make_room_within_limits(key, 0, 0) {
                let Some(session) = self.admission.latest_of(key) else { break };
                self.unapply(session);
                self.fail_wants(session, &refusal);
            }
        }
    }

    /// Refuses a new session of a key that has as many sessions, or stores as much, as it may.
    pub(crate) fn refuse_session_above_limits(&self, key: KeyId) -> Result<(), Refusal> {
        let limits = self.keys.of(key).limits;
        let sessions = self.sessions.of_key(key);
        if let Some(most) = limits.sessions
            && sessions >= most
        {
            return Err(KeyLimit::Sessions.exceeded(most.into(), sessions.into(), 1));
        }
        self.refuse_storing_above_limit(key)
    }

    /// Refuses a key that stores as much as it may, as last measured.
    fn refuse_storing_above_limit(&self, key: KeyId) -> Result<(), Refusal> {
        let Some(most) = self.keys.of(key).limits.stored_bytes else { return Ok(()) };
        let stored = self.stored_bytes(key);
        if stored < most {
            return Ok(());
        }
        Err(KeyLimit::StoredBytes.exceeded(most, stored, 1))
    }

    /// Refuses to write a file into a sandbox whose key stores as much as it may.
    pub fn refuse_write_above_limit(&self, sandbox: SandboxId) -> Result<(), Refusal> {
        let Some(entry) = self.entries.by_id(sandbox) else { return Ok(()) };
        self.refuse_storing_above_limit(self.entries[entry].tenant())
    }
}
