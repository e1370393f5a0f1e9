//! What sandboxes tried to reach: the latest entries of each key, in memory. They do not survive a
//! restart of the server, and one key never displaces the entries of another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use egress::{EgressEvent, Verdict};
use kernel::NetworkView;
use model::{InstanceId, KeyId, SandboxId, SessionId, Wall};

/// The most entries of one key, and how many keys have entries.
const ENTRIES_MAX: usize = 4_096;
const KEYS_MAX: usize = 4_096;

/// One thing that a sandbox did or tried.
#[derive(Debug, Clone)]
pub struct NetworkLogEntry {
    /// Grows with each entry of the node.
    pub seq: u64,
    /// When.
    pub at: Wall,
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// The session that had it.
    pub session: Option<SessionId>,
    /// What.
    pub event: EgressEvent,
}

/// Which entries to read.
#[derive(Debug, Clone, Default)]
pub struct NetworkLogQuery {
    /// Only of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Only refusals.
    pub refused: bool,
    /// Only entries after this one.
    pub after: u64,
    /// The most entries: the latest ones, or the first after `after` if that is given.
    pub limit: usize,
}

/// Some entries, oldest first.
#[derive(Debug, Clone, Default)]
pub struct NetworkLogPage {
    /// The entries.
    pub entries: Vec<NetworkLogEntry>,
    /// Entries of the key that were dropped because there were too many.
    pub dropped: u64,
}

#[derive(Default)]
pub(super) struct NetworkLog {
    keys: Mutex<Keys>,
}

/// The most instances whose owner is remembered after their end.
const OWNERS_MAX: usize = 8_192;

#[derive(Default)]
struct Keys {
    seq: u64,
    of: BTreeMap<KeyId, Entries>,
    /// Whose each instance was when it was last heard of: its last events may arrive after its end.
    owners: BTreeMap<InstanceId, Whose>,
}

#[derive(Debug, Clone, Copy)]
struct Whose {
    key: KeyId,
    sandbox: SandboxId,
    session: Option<SessionId>,
}

#[derive(Default)]
struct Entries {
    latest: VecDeque<NetworkLogEntry>,
    dropped: u64,
}

impl NetworkLog {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what happened; `view` is what the kernel says of the instance, if it still exists.
    pub(super) fn add(&self, view: Option<&NetworkView>, at: Wall, event: EgressEvent) {
        let mut keys = self.keys();
        let now = view.map(|view| Whose {
            key: view.tenant,
            sandbox: view.sandbox,
            session: view.session,
        });
        let Some(whose) = now.or_else(|| keys.owners.get(&event.sandbox).copied()) else { return };
        keys.owners.insert(event.sandbox, whose);
        if keys.owners.len() > OWNERS_MAX {
            // Any of them may go: the kernel says again whose a living one is.
            keys.owners.pop_first();
        }
        keys.seq += 1;
        let seq = keys.seq;
        if keys.of.len() >= KEYS_MAX && !keys.of.contains_key(&whose.key) {
            let oldest =
                keys.of.iter().min_by_key(|(_, one)| one.latest.back().map(|last| last.seq));
            if let Some(key) = oldest.map(|(key, _)| *key) {
                keys.of.remove(&key);
            }
        }
        let entries = keys.of.entry(whose.key).or_default();
        if entries.latest.len() >= ENTRIES_MAX {
            entries.latest.pop_front();
            entries.dropped += 1;
        }
        let Whose { sandbox, session, .. } = whose;
        entries.latest.push_back(NetworkLogEntry { seq, at, sandbox, session, event });
    }

    /// The entries of the keys that a caller sees.
    pub(super) fn page(
        &self,
        sees: impl Fn(KeyId) -> bool,
        query: &NetworkLogQuery,
    ) -> NetworkLogPage {
        let keys = self.keys();
        let mut page = NetworkLogPage::default();
        let seen = keys.of.iter().filter(|(key, _)| sees(**key));
        for (_, entries) in seen {
            page.dropped += entries.dropped;
            page.entries.extend(entries.latest.iter().filter(|entry| query.fits(entry)).cloned());
        }
        page.entries.sort_by_key(|entry| entry.seq);
        let beyond = page.entries.len().saturating_sub(query.limit);
        if query.after == 0 {
            page.entries.drain(..beyond);
        } else {
            page.entries.truncate(query.limit);
        }
        page
    }
}

impl NetworkLogQuery {
    fn fits(&self, entry: &NetworkLogEntry) -> bool {
        entry.seq > self.after
            && self.sandbox.is_none_or(|sandbox| entry.sandbox == sandbox)
            && self.session.is_none_or(|session| entry.session == Some(session))
            && (!self.refused || entry.event.verdict == Verdict::Refused)
    }
}
