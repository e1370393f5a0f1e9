//! What sandboxes tried to reach: the latest entries of each key, in memory. They do not survive a
//! restart of the server, and one key never displaces the entries of another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use egress::{EgressEvent, Reported, Verdict};
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
    /// Only of the sandbox or session of this id.
    pub of: Option<u128>,
    /// Only these.
    pub wanted: Wanted,
    /// Only entries after this one.
    pub after: Option<u64>,
    /// The most entries: the latest ones, or the first after `after` if that is given.
    pub limit: usize,
}

/// Entries by how what they report ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All of them.
    #[default]
    All,
    /// What was refused or failed.
    Refused,
    /// That, and what passed with a note.
    Notable,
}

impl Wanted {
    fn has(self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Allowed => self == Self::All,
            Verdict::Refused | Verdict::Failed => true,
            Verdict::Noted => self != Self::Refused,
        }
    }
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
    /// Whose an instance was that has left the way out, by the number of its last event. Events wait for
    /// a moment before they are added here, and the instance may have its next user by then.
    left: BTreeMap<(u64, InstanceId), Whose>,
    /// The number of the last event that was added.
    added: u64,
}

/// Whose an instance is or was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose {
    key: KeyId,
    sandbox: SandboxId,
    session: Option<SessionId>,
}

impl Whose {
    /// Whether it has a user; others wait in their pool.
    pub(super) fn is_user(&self) -> bool {
        self.key != KeyId::NIL
    }

    pub(super) const fn key(&self) -> KeyId {
        self.key
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.key, self.sandbox) == (other.key, other.sandbox)
    }

    pub(super) const fn of(view: &NetworkView) -> Self {
        Self { key: view.tenant, sandbox: view.sandbox, session: view.session }
    }
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

    /// An instance is about to end: its last events are this owner's.
    pub(super) fn ends(&self, instance: InstanceId, whose: Whose) {
        self.keys().remember(instance, whose);
    }

    /// An instance has left the way out: its events up to this number are this owner's.
    pub(super) fn left(&self, instance: InstanceId, last: u64, whose: Whose) {
        let mut keys = self.keys();
        if last > keys.added {
            keys.left.insert((last, instance), whose);
        }
    }

    /// Adds what happened; `now` is whose the instance is by now, if it still exists.
    pub(super) fn add(&self, now: Option<Whose>, at: Wall, reported: Reported) {
        let Reported { number, event } = reported;
        let mut keys = self.keys();
        let keys = &mut *keys;
        keys.added = keys.added.max(number);
        if !keys.left.is_empty() {
            keys.left = keys.left.split_off(&(number, InstanceId::NIL));
        }
        let left = keys.left.iter().find(|((_, instance), _)| *instance == event.sandbox);
        let left = left.map(|(_, whose)| *whose);
        let whose = left.or_else(|| {
            let whose = now.or_else(|| keys.owners.get(&event.sandbox).copied())?;
            keys.remember(event.sandbox, whose);
            Some(whose)
        });
        if let Some(whose) = whose {
            keys.push(whose, at, event);
        }
    }

    /// Adds what the server found out by itself.
    pub(super) fn note(&self, whose: Whose, at: Wall, event: EgressEvent) {
        self.keys().push(whose, at, event);
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
        if query.after.is_none() {
            page.entries.drain(..beyond);
        } else {
            page.entries.truncate(query.limit);
        }
        page
    }
}

impl Keys {
    fn push(&mut self, whose: Whose, at: Wall, event: EgressEvent) {
        self.seq += 1;
        let seq = self.seq;
        if self.of.len() >= KEYS_MAX && !self.of.contains_key(&whose.key) {
            let oldest =
                self.of.iter().min_by_key(|(_, one)| one.latest.back().map(|last| last.seq));
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.of.remove(&key);
            }
        }
        let entries = self.of.entry(whose.key).or_default();
        if entries.latest.len() >= ENTRIES_MAX {
            entries.latest.pop_front();
            entries.dropped += 1;
        }
        let Whose { sandbox, session, .. } = whose;
        entries.latest.push_back(NetworkLogEntry { seq, at, sandbox, session, event });
    }

    fn remember(&mut self, instance: InstanceId, whose: Whose) {
        self.owners.insert(instance, whose);
        if self.owners.len() > OWNERS_MAX {
            // Any of them may go: the kernel says again whose a living one is.
            self.owners.pop_first();
        }
    }
}

impl NetworkLogQuery {
    fn fits(&self, entry: &NetworkLogEntry) -> bool {
        entry.seq > self.after.unwrap_or(0)
            && self.is_of(entry.sandbox, entry.session)
            && self.wanted.has(entry.event.verdict)
    }

    /// Whether entries of this one can be among what is asked for.
    pub(super) fn is_about(&self, whose: &Whose) -> bool {
        self.is_of(whose.sandbox, whose.session)
    }

    fn is_of(&self, sandbox: SandboxId, session: Option<SessionId>) -> bool {
        let is =
            |id: u128| sandbox.as_u128() == id || session.is_some_and(|one| one.as_u128() == id);
        self.of.is_none_or(is)
            && self.sandbox.is_none_or(|wanted| sandbox == wanted)
            && self.session.is_none_or(|wanted| session == Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use egress::EventKind;

    use super::*;

    const A: KeyId = KeyId::from_u128(0xa);
    const B: KeyId = KeyId::from_u128(0xb);
    const INSTANCE: InstanceId = InstanceId::from_u128(1);

    fn whose(key: KeyId) -> Whose {
        let sandbox = SandboxId::from_u128(key.as_u128());
        Whose { key, sandbox, session: None }
    }

    fn reported(number: u64) -> Reported {
        let event = EgressEvent {
            sandbox: INSTANCE,
            kind: EventKind::Name,
            name: None,
            address: None,
            port: u16::try_from(number).unwrap(),
            sent: 0,
            received: 0,
            verdict: Verdict::Refused,
            rule: None,
            reason: None,
        };
        Reported { number, event }
    }

    fn seen_by(log: &NetworkLog, key: KeyId) -> Vec<u16> {
        let query = NetworkLogQuery { limit: 100, ..NetworkLogQuery::default() };
        let page = log.page(|one| one == key, &query);
        page.entries.iter().map(|entry| entry.event.port).collect()
    }

    #[test]
    fn late_entries_are_those_of_the_user_of_their_time() {
        let log = NetworkLog::default();
        log.add(Some(whose(A)), Wall(1), reported(1));
        // A returned it after the third event, and B has it before these were added.
        log.left(INSTANCE, 3, whose(A));
        for number in 2..=4 {
            log.add(Some(whose(B)), Wall(2), reported(number));
        }
        assert_eq!((seen_by(&log, A), seen_by(&log, B)), (vec![1, 2, 3], vec![4]));
        // B returned it, and another has it, before the next were added.
        log.left(INSTANCE, 6, whose(B));
        log.left(INSTANCE, 8, whose(A));
        for number in 5..=9 {
            log.add(Some(whose(B)), Wall(3), reported(number));
        }
        assert_eq!(seen_by(&log, A), [1, 2, 3, 7, 8]);
        assert_eq!(seen_by(&log, B), [4, 5, 6, 9]);
        assert!(log.keys().left.is_empty(), "what has passed is forgotten");
        log.left(INSTANCE, 9, whose(A));
        assert!(log.keys().left.is_empty(), "all its events have passed");
    }

    #[test]
    fn pages_begin_at_the_oldest_entry_if_that_is_asked_for() {
        let log = NetworkLog::default();
        let session = SessionId::from_u128(0x5);
        for number in 1..=5 {
            let session = (number == 3).then_some(session);
            log.add(Some(Whose { session, ..whose(A) }), Wall(1), reported(number));
        }
        let page = |after, of| {
            let query = NetworkLogQuery { after, of, limit: 2, ..NetworkLogQuery::default() };
            let page = log.page(|_| true, &query);
            page.entries.iter().map(|entry| entry.seq).collect::<Vec<_>>()
        };
        assert_eq!(page(None, None), [4, 5], "the latest");
        assert_eq!((page(Some(0), None), page(Some(4), None)), (vec![1, 2], vec![5]));
        assert_eq!(page(None, Some(0xa)), [4, 5]);
        assert_eq!(page(None, Some(0x5)), [3]);
        assert!(page(None, Some(0)).is_empty());
    }

    #[test]
    fn the_last_entries_of_an_instance_that_has_ended_are_its_users() {
        let log = NetworkLog::default();
        log.add(None, Wall(1), reported(1));
        log.ends(INSTANCE, whose(A));
        log.add(None, Wall(1), reported(2));
        assert_eq!(seen_by(&log, A), [2]);
    }
}
