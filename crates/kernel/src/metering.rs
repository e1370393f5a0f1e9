//! Meters for how long each key had live sandboxes, and with how much memory. A meter follows the
//! counts of `keys` to the millisecond, and no decision may depend on one.

use std::collections::BTreeMap;

use model::{InstanceId, KeyId, Mono, Now, WorkspaceId};

use crate::Kernel;
use crate::keys::Key;

/// What a key had since this kernel began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTime {
    /// The key.
    pub key: KeyId,
    /// Milliseconds of its live sandboxes that were not ending, added up.
    pub sandbox_ms: u64,
    /// The same, each multiplied by the memory of its sandbox in MB.
    pub memory_mb_ms: u64,
}

/// Files that a key stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredFiles {
    /// The key.
    pub key: KeyId,
    /// Where they are.
    pub workspace: WorkspaceId,
    /// A sandbox lives on them.
    pub live: bool,
    /// Their size as last measured, if this kernel knows it.
    pub bytes: Option<u64>,
}

/// All keys that ever had a live sandbox in this run.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    of: BTreeMap<KeyId, Meter>,
}

/// One key: its totals until `since`, and what it has had from then on.
#[derive(Debug, Default, Clone, Copy)]
struct Meter {
    since: Mono,
    live: u32,
    memory_mb: u64,
    sandbox_ms: u64,
    memory_mb_ms: u64,
}

impl Meter {
    const fn until(self, now: Mono) -> Self {
        let ms = now.since(self.since);
        let sandbox_ms = (self.live as u64).saturating_mul(ms);
        let memory_mb_ms = self.memory_mb.saturating_mul(ms);
        Self {
            since: if ms > 0 { now } else { self.since },
            sandbox_ms: self.sandbox_ms.saturating_add(sandbox_ms),
            memory_mb_ms: self.memory_mb_ms.saturating_add(memory_mb_ms),
            ..self
        }
    }
}

impl Meters {
    /// A key has so much from now on.
    pub(crate) fn follow(&mut self, key: KeyId, has: Key, now: Mono) {
        if key == KeyId::NIL || (has.live == 0 && !self.of.contains_key(&key)) {
            return;
        }
        let meter = self.of.entry(key).or_insert(Meter { since: now, ..Meter::default() });
        *meter = Meter { live: has.live, memory_mb: has.memory_mb, ..meter.until(now) };
    }
}

impl Kernel {
    /// What each key had of sandboxes until now, since this kernel began; by key.
    pub fn key_times(&self, now: Now) -> Vec<KeyTime> {
        let now = now.mono.max(self.now.mono);
        let until = self.meters.of.iter().map(|(key, meter)| (*key, meter.until(now)));
        let time = |(key, Meter { sandbox_ms, memory_mb_ms, .. })| KeyTime {
            key,
            sandbox_ms,
            memory_mb_ms,
        };
        until.map(time).collect()
    }

    /// The instances that belong to a key now, in a fixed order.
    pub fn owned_instances(&self) -> Vec<(InstanceId, KeyId)> {
        let owned = self.entries.iter().map(|(_, entry)| (entry.instance, entry.tenant()));
        owned.filter(|(id, key)| *id != InstanceId::NIL && *key != KeyId::NIL).collect()
    }

    /// The key that an instance belongs to now.
    pub fn key_of_instance(&self, instance: InstanceId) -> Option<KeyId> {
        let key = self.entries[self.entries.by_instance(instance)?].tenant();
        (key != KeyId::NIL).then_some(key)
    }

    /// All files that belong to a key, in a fixed order.
    pub fn stored_files(&self) -> Vec<StoredFiles> {
        let owned = self.entries.iter().filter(|(_, entry)| entry.tenant() != KeyId::NIL);
        let of_entries = owned.map(|(_, entry)| StoredFiles {
            key: entry.tenant(),
            workspace: entry.workspace,
            live: entry.is_live(),
            bytes: if entry.is_live() { Some(entry.disk.bytes()) } else { entry.cold.bytes() },
        });
        let shelved = self.sessions.iter().filter_map(|(_, known)| {
            let shelved = known.shelved.as_ref()?;
            let (key, workspace) = (known.settings.tenant, shelved.files.workspace);
            Some(StoredFiles { key, workspace, live: false, bytes: shelved.bytes })
        });
        of_entries.chain(shelved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meters_add_up_what_a_key_had_and_for_how_long() {
        let (one, other) = (KeyId::from_u128(1), KeyId::from_u128(2));
        let has = |live, memory_mb| {
            let mut key = Key::default();
            (key.live, key.memory_mb) = (live, memory_mb);
            key
        };
        let mut meters = Meters::default();
        meters.follow(one, has(1, 100), Mono(1_000));
        meters.follow(KeyId::NIL, has(1, 100), Mono(1_000));
        meters.follow(other, has(0, 0), Mono(1_000));
        assert_eq!(meters.of.len(), 1, "keys without sandboxes have no meter");
        meters.follow(one, has(3, 400), Mono(1_500));
        // A change that changes nothing counts nothing twice.
        meters.follow(one, has(3, 400), Mono(1_500));
        meters.follow(one, has(0, 0), Mono(1_600));
        let at = |ms| {
            let Meter { sandbox_ms, memory_mb_ms, .. } = meters.of[&one].until(Mono(ms));
            (sandbox_ms, memory_mb_ms)
        };
        assert_eq!(at(1_600), (500 + 300, 50_000 + 40_000));
        assert_eq!(at(9_999), at(1_600), "nothing is live");
        assert_eq!(at(0), at(1_600), "time never goes back");
    }
}
