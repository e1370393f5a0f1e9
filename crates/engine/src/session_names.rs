//! Names that follow the life of a session. The kernel decides when a session begins and ends; this
//! module decides, behind the same lock, what that means for its name, and the result is committed
//! in the same transaction. A name without a fate stays when its session ends.

use std::collections::BTreeMap;

use model::record::JournalEntry;
use model::{Document, DocumentChange, KeyId, SessionId, SessionStatus};
use serde::{Deserialize, Serialize};

/// The kind of the documents that note which sessions are being ended by their names, so that a
/// start after a crash continues.
pub(crate) const ENDING: &str = "engine.ending";

/// The key of a named document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameKey {
    pub(crate) kind: String,
    pub(crate) tenant: KeyId,
    pub(crate) name: String,
}

/// What happens to the name of a session when the session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// The session is being created under it. If it ends before its caller has it, the previous
    /// document is restored.
    Making { before: Option<Document> },
    /// The session is being ended by it, and the name goes with the session.
    Ending,
}

/// A change of a name together with an event, if the kernel accepts the event.
#[derive(Debug)]
pub(crate) enum NameChange {
    /// A session is created under a name.
    Making { session: SessionId, document: Document, before: Option<Document> },
    /// A session is ended by its name.
    Ending { session: SessionId, key: NameKey },
}

/// What callers see under a name: a session that is being created is not visible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Itself,
    /// The previous document.
    Before(Document),
    Nothing,
}

/// The note about a session that is being ended by its name.
#[derive(Serialize, Deserialize)]
struct Note {
    kind: String,
    name: String,
}

/// The names that change when their session does.
#[derive(Debug, Default)]
pub(crate) struct Names {
    fates: BTreeMap<SessionId, (NameKey, Fate)>,
    followed: u64,
}

impl NameKey {
    pub(crate) fn of(document: &Document) -> Self {
        let Document { kind, tenant, name, .. } = document.clone();
        Self { kind, tenant, name }
    }

    pub(crate) fn removed(&self) -> DocumentChange {
        let Self { kind, tenant, name } = self.clone();
        DocumentChange::Removed { kind, tenant, name }
    }

    fn note(&self, session: SessionId) -> DocumentChange {
        let note = Note { kind: self.kind.clone(), name: self.name.clone() };
        DocumentChange::Put(Document {
            kind: ENDING.to_owned(),
            tenant: self.tenant,
            name: session.to_string(),
            seed: None,
            // Two strings always encode.
            body: serde_json::to_string(&note).unwrap_or_default().into(),
        })
    }
}

fn note_removed(tenant: KeyId, session: SessionId) -> DocumentChange {
    let (kind, name) = (ENDING.to_owned(), session.to_string());
    DocumentChange::Removed { kind, tenant, name }
}

/// What a note of an earlier run says; none if it cannot be read.
pub(crate) fn noted(note: &Document) -> Option<(SessionId, NameKey)> {
    let Note { kind, name } = serde_json::from_str(&note.body).ok()?;
    Some((note.name.parse().ok()?, NameKey { kind, tenant: note.tenant, name }))
}

impl Names {
    /// The names of sessions that an earlier run was ending.
    pub(crate) fn left_over(ending: impl IntoIterator<Item = (SessionId, NameKey)>) -> Self {
        let fates = ending.into_iter().map(|(session, key)| (session, (key, Fate::Ending)));
        Self { fates: fates.collect(), followed: 0 }
    }

    /// The kernel accepted an event: adds what is committed with it.
    pub(crate) fn begin(&mut self, change: NameChange, written: &mut Vec<DocumentChange>) {
        match change {
            NameChange::Making { session, document, before } => {
                let key = NameKey::of(&document);
                self.give_up(&key, written);
                written.push(DocumentChange::Put(document));
                self.fates.insert(session, (key, Fate::Making { before }));
            }
            NameChange::Ending { session, key } => {
                written.push(key.note(session));
                self.fates.insert(session, (key, Fate::Ending));
            }
        }
    }

    /// A name belongs to another session from now on, so it no longer follows its earlier ones.
    fn give_up(&mut self, key: &NameKey, written: &mut Vec<DocumentChange>) {
        self.fates.retain(|session, (of, fate)| {
            let stays = of != key;
            if !stays && *fate == Fate::Ending {
                written.push(note_removed(of.tenant, *session));
            }
            stays
        });
    }

    /// Finds the sessions that a decision ends, and adds what that means for their names.
    pub(crate) fn follow(&mut self, journal: &[JournalEntry], written: &mut Vec<DocumentChange>) {
        if self.fates.is_empty() {
            return;
        }
        for session in journal.iter().filter_map(ended) {
            let Some((key, fate)) = self.fates.remove(&session) else { continue };
            self.followed += 1;
            match fate {
                Fate::Making { before: Some(before) } => {
                    written.push(DocumentChange::Put(before));
                }
                Fate::Making { before: None } => written.push(key.removed()),
                Fate::Ending => {
                    written.push(key.removed());
                    written.push(note_removed(key.tenant, session));
                }
            }
        }
    }

    /// The caller has the created session: from now on its name stays.
    pub(crate) fn made(&mut self, session: SessionId) {
        if self.is_making(session) {
            self.fates.remove(&session);
        }
    }

    fn is_making(&self, session: SessionId) -> bool {
        matches!(self.fates.get(&session), Some((_, Fate::Making { .. })))
    }

    /// What callers see under the name of a session.
    pub(crate) fn seen(&self, session: SessionId) -> Seen {
        match self.fates.get(&session) {
            Some((_, Fate::Making { before: Some(before) })) => Seen::Before(before.clone()),
            Some((_, Fate::Making { before: None })) => Seen::Nothing,
            Some((_, Fate::Ending)) | None => Seen::Itself,
        }
    }

    /// How many names have changed with their session. A task that reads a name and writes it again
    /// compares this.
    pub(crate) const fn followed(&self) -> u64 {
        self.followed
    }

    /// The sessions that are being ended by their names.
    pub(crate) fn ending(&self) -> Vec<(SessionId, NameKey)> {
        let ending = self.fates.iter().filter(|(_, (_, fate))| *fate == Fate::Ending);
        ending.map(|(session, (key, _))| (*session, key.clone())).collect()
    }

    /// A session that was to be ended is unknown: returns what to remove of its name.
    pub(crate) fn gone(&mut self, session: SessionId) -> Vec<DocumentChange> {
        let mut written = Vec::new();
        self.follow(&[JournalEntry::SessionRemoved(session)], &mut written);
        written
    }
}

/// The session that a journal entry ends.
fn ended(entry: &JournalEntry) -> Option<SessionId> {
    match entry {
        JournalEntry::SessionRemoved(session) => Some(*session),
        JournalEntry::SessionPut(record) if record.status == SessionStatus::Ended => {
            Some(record.id)
        }
        JournalEntry::SessionPut(_)
        | JournalEntry::SandboxPut(_)
        | JournalEntry::SandboxRemoved(_)
        | JournalEntry::PoolPut(_)
        | JournalEntry::PoolRemoved(_)
        | JournalEntry::Ended(_)
        | JournalEntry::WorkspaceDoomed(_)
        | JournalEntry::WorkspaceDeleted(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, body: &str) -> Document {
        let (kind, tenant, name) = ("k".to_owned(), KeyId::from_u128(1), name.to_owned());
        Document { kind, tenant, name, seed: None, body: body.into() }
    }

    fn session(n: u128) -> SessionId {
        SessionId::from_u128(n)
    }

    fn making(n: u128, before: Option<Document>) -> NameChange {
        NameChange::Making { session: session(n), document: document("a", "new"), before }
    }

    fn followed(names: &mut Names, n: u128) -> Vec<DocumentChange> {
        let mut written = Vec::new();
        names.follow(&[JournalEntry::SessionRemoved(session(n))], &mut written);
        written
    }

    #[test]
    fn session_that_ends_during_its_creation_restores_the_previous_name() {
        for before in [None, Some(document("a", "old"))] {
            let (mut names, mut written) = (Names::default(), Vec::new());
            names.begin(making(1, before.clone()), &mut written);
            assert_eq!(written, [DocumentChange::Put(document("a", "new"))]);
            let seen = before.clone().map_or(Seen::Nothing, Seen::Before);
            assert_eq!(names.seen(session(1)), seen);
            let key = NameKey::of(&document("a", ""));
            let expected = before.map_or_else(|| key.removed(), DocumentChange::Put);
            assert_eq!(followed(&mut names, 1), [expected]);
            assert_eq!(followed(&mut names, 1), [], "once");
        }
    }

    #[test]
    fn session_name_stays_after_the_creation() {
        let mut names = Names::default();
        names.begin(making(1, None), &mut Vec::new());
        names.made(session(1));
        assert_eq!(names.seen(session(1)), Seen::Itself);
        assert_eq!((followed(&mut names, 1), names.followed()), (Vec::new(), 0));
    }

    #[test]
    fn session_ended_by_its_name_removes_it_and_a_note_survives_a_crash() {
        let (mut names, mut written) = (Names::default(), Vec::new());
        let key = NameKey::of(&document("a", ""));
        names.begin(NameChange::Ending { session: session(1), key: key.clone() }, &mut written);
        let [DocumentChange::Put(note)] = &written[..] else { panic!("{written:?}") };
        assert_eq!(noted(note), Some((session(1), key.clone())));
        let mut names = Names::left_over(noted(note));
        assert_eq!(names.ending(), [(session(1), key.clone())]);
        names.made(session(1));
        let gone = [key.removed(), note_removed(key.tenant, session(1))];
        assert_eq!(followed(&mut names, 1), gone);
    }

    #[test]
    fn session_name_of_another_session_stays_when_the_first_one_ends() {
        let (mut names, mut written) = (Names::default(), Vec::new());
        let key = NameKey::of(&document("a", ""));
        names.begin(NameChange::Ending { session: session(1), key: key.clone() }, &mut written);
        written.clear();
        names.begin(making(2, None), &mut written);
        let note = note_removed(key.tenant, session(1));
        assert_eq!(written, [note, DocumentChange::Put(document("a", "new"))]);
        assert_eq!(followed(&mut names, 1), []);
        assert_eq!(followed(&mut names, 2), [key.removed()]);
    }
}
