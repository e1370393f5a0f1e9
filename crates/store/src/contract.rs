//! The contract of a store, and the types of its calls. `store::conformance` has the same contract
//! as tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use async_trait::async_trait;
use model::process::{ProcessChange, ProcessRecord};
use model::record::{Journal, JournalEntry};
use model::turn::{TurnChange, TurnPiece, TurnRecord};
use model::why::Ended;
use model::{
    Document, DocumentChange, KeyId, KeyRecord, ProcessId, SandboxId, SecretCounts, SecretInfo,
    SecretName, SecretOwner, SecretRecord, SeedId, SessionId, StoredEvent, TurnId, UsageRecord,
    WorkspaceId,
};

use crate::error::{StoreError, StoreErrorCode};

/// Stores what the kernel is restored from, the history, and the keys. Any future may be dropped at
/// any await: what it was writing is then stored completely or not at all.
#[async_trait]
pub trait Store: Send + Sync {
    /// Everything that a kernel is restored from, and the number of the last event.
    async fn load(&self) -> Result<Loaded, StoreError>;

    /// Writes all of it or nothing. What was written when this returns survives `kill -9`. After a
    /// failure nothing of it is stored, and the same batch may be committed again; so may one whose
    /// future was dropped, as long as no other was committed since: no event of it is stored twice.
    async fn commit(&self, batch: &Batch) -> Result<(), StoreError>;

    /// Events after a number, oldest first.
    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError>;

    /// All keys, revoked ones too, in the order of their ids.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Stores at most so many events of a key from its next event on, until it is closed; the same
    /// as of others if none.
    async fn limit_events(&self, key: KeyId, most: Option<u64>) -> Result<(), StoreError>;

    /// How many events of each key are stored.
    async fn event_counts(&self) -> Result<BTreeMap<KeyId, u64>, StoreError>;

    /// Stores a key, in place of the one with the same id if there is one. With a revoked key its
    /// secrets are removed: both are written, or neither.
    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError>;

    /// What keys have used, in the order of their ids. A revoked key keeps its own.
    async fn usage(&self) -> Result<Vec<UsageRecord>, StoreError>;

    /// Stores the totals of keys, in place of those before: all of them or none. A repeated call
    /// changes nothing.
    async fn put_usage(&self, totals: &[UsageRecord]) -> Result<(), StoreError>;

    /// Documents, in the order of their kinds, keys and names.
    async fn documents(&self, query: &DocumentQuery) -> Result<Vec<Document>, StoreError>;

    /// How many documents a query selects, and their bytes, without reading them.
    async fn documents_size(&self, query: &DocumentQuery) -> Result<DocumentsSize, StoreError>;

    /// The seed archives that documents name.
    async fn document_seeds(&self) -> Result<BTreeSet<SeedId>, StoreError>;

    /// Stores a document, in place of the one of its kind, key and name if there is one.
    async fn put_document(&self, document: &Document) -> Result<(), StoreError>;

    /// Removes the documents that a query selects; how many there were.
    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError>;

    /// The secrets of an owner without their values, in the order of their names.
    async fn secrets(&self, owner: SecretOwner) -> Result<Vec<SecretInfo>, StoreError>;

    /// A secret with its value.
    async fn secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<Option<SecretRecord>, StoreError>;

    /// Stores a secret, in place of the one of its owner and name if there is one.
    async fn put_secret(&self, secret: &SecretRecord) -> Result<(), StoreError>;

    /// Removes a secret; whether there was one.
    async fn remove_secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<bool, StoreError>;

    /// How many secrets there are.
    async fn secret_counts(&self) -> Result<SecretCounts, StoreError>;

    /// The tombstone of a sandbox, also where the kernel no longer has it.
    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError>;

    /// A turn, as long as it is stored.
    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError>;

    /// Turns of a session, oldest first, with their numbers. A page with fewer than the limit does
    /// not mean that there are no others: a page that has become large ends early. An empty page
    /// means it.
    async fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError>;

    /// The pieces of a turn after a number, in order and without its end. Pages end as those of
    /// turns do. None if the turn is not known.
    async fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError>;

    /// A process, as long as it is stored; the latest that matches.
    async fn process(&self, key: &ProcessKey) -> Result<Option<ProcessRecord>, StoreError>;

    /// Processes of a sandbox, latest first. Pages end as those of turns do.
    async fn processes(&self, query: &ProcessesQuery) -> Result<Vec<ProcessRecord>, StoreError>;

    /// The output of a process, if it was stored with it.
    async fn process_log(
        &self,
        sandbox: SandboxId,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Processes that have not ended, in no particular order.
    async fn unfinished_processes(&self, limit: u32) -> Result<Vec<ProcessRecord>, StoreError>;

    /// Copies everything, as of one moment and while it is in use, into a new file that a store can
    /// be opened from later with the same key. Returns the records in the copy.
    async fn backup(&self, to: &Path) -> Result<Journal, StoreError> {
        let _ = to;
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// Removes sessions from such a copy: they were deleted after it was made, and their files with
    /// them.
    async fn remove_from_backup(
        &self,
        copy: &Path,
        sessions: &BTreeSet<SessionId>,
    ) -> Result<(), StoreError> {
        let _ = (copy, sessions);
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// Notes in such a copy that the files of these workspaces are saved: they are beside it.
    async fn mark_saved_in_backup(
        &self,
        copy: &Path,
        workspaces: &BTreeSet<WorkspaceId>,
    ) -> Result<(), StoreError> {
        let _ = (copy, workspaces);
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// Its condition, apart from its contents. At once, and without reading the disk.
    fn condition(&self) -> Condition {
        Condition::default()
    }

    /// Finishes everything and closes. Later calls fail, except this one.
    async fn close(&self) -> Result<(), StoreError>;
}

/// The condition of a store, apart from its contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Condition {
    /// Bytes of the database on the disk; 0 where there is none.
    pub database_bytes: u64,
    /// Bytes of it that are in use. The rest is reused before the file grows.
    pub used_bytes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// The size to which the history may make it grow.
    pub bound_bytes: u64,
    /// Commits that were missing when it was opened.
    pub lost_commits: u64,
    /// It can only be read, until there is space on the disk.
    pub waits_for_space: bool,
}

/// What a start loads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The records.
    pub journal: Journal,
    /// The number of the last event; 0 if there never was one.
    pub last_event: u64,
}

/// What is written in one transaction: the changes and events of one or many decisions, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Changes of records.
    pub entries: Vec<JournalEntry>,
    /// Events, with growing numbers, above all that were written before.
    pub events: Vec<StoredEvent>,
    /// Changes of turns. A change of an unknown turn, or of what is stored already, is skipped. A
    /// fork copies the latest ended turns, at most [`crate::FORKED_TURNS_MAX`] and at most
    /// [`crate::FORKED_BYTES_MAX`] of them.
    pub turns: Vec<TurnChange>,
    /// Changes of processes. Removing an unknown one is skipped.
    pub processes: Vec<ProcessChange>,
    /// Changes of documents, in order. Removing an unknown one is skipped.
    pub documents: Vec<DocumentChange>,
}

impl Batch {
    /// Whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.events.is_empty()
            && self.turns.is_empty()
            && self.processes.is_empty()
            && self.documents.is_empty()
    }
}

/// Which turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnQuery {
    /// Those of this session.
    pub session: SessionId,
    /// Only those with a higher number.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
}

/// Which process of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessKey {
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// How it is identified.
    pub by: ProcessBy,
}

/// How a process is identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessBy {
    /// Its id.
    Id(ProcessId),
    /// Its process id in the sandbox.
    Pid(u32),
    /// Its name.
    Name(String),
}

impl ProcessKey {
    /// Whether a process matches.
    pub fn takes(&self, record: &ProcessRecord) -> bool {
        record.sandbox == self.sandbox
            && match &self.by {
                ProcessBy::Id(id) => record.id == *id,
                ProcessBy::Pid(pid) => record.pid == *pid,
                ProcessBy::Name(name) => *record.name == **name,
            }
    }
}

/// Which processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessesQuery {
    /// Those of this sandbox.
    pub sandbox: SandboxId,
    /// Only those with a lower number.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// The size of documents together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentsSize {
    /// How many there are.
    pub count: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// Which documents: all, or only those that match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentQuery {
    /// Of this kind.
    pub kind: Option<String>,
    /// Of this key.
    pub tenant: Option<KeyId>,
    /// Of this name.
    pub name: Option<String>,
}

impl DocumentQuery {
    /// Whether a document matches.
    pub fn takes(&self, document: &Document) -> bool {
        self.kind.as_ref().is_none_or(|kind| *kind == document.kind)
            && self.tenant.is_none_or(|tenant| tenant == document.tenant)
            && self.name.as_ref().is_none_or(|name| *name == document.name)
    }
}

/// Which events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventQuery {
    /// Only those with a higher number.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only those of this session.
    pub session: Option<SessionId>,
    /// Only those of this key.
    pub tenant: Option<KeyId>,
}

impl EventQuery {
    /// All events after a number.
    pub const fn after(after: u64, limit: u32) -> Self {
        Self { after, limit, sandbox: None, session: None, tenant: None }
    }

    /// Whether an event matches.
    pub fn takes(&self, stored: &StoredEvent) -> bool {
        stored.number > self.after
            && self.sandbox.is_none_or(|sandbox| stored.event.sandbox() == Some(sandbox))
            && self.session.is_none_or(|session| stored.event.session() == Some(session))
            && self.tenant.is_none_or(|tenant| stored.tenant == tenant)
    }
}

/// A page of events, and the extent of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// The selected events, oldest first.
    pub events: Vec<StoredEvent>,
    /// Nothing that the query could select is stored before this number.
    pub oldest: u64,
    /// The number of the last deleted event that the query could have selected; 0 if none was. The
    /// key with the most events loses some first, so that older ones of other keys may be stored.
    pub deleted: u64,
    /// The number of the last event, of any key; 0 if there never was one.
    pub last: u64,
}

impl EventPage {
    /// Whether retention deleted events after `after`, so that a reader that got so far missed
    /// some. After a restart it may say so of other keys' events, if this key has none before them.
    pub const fn missed_events_since(&self, after: u64) -> bool {
        after < self.deleted
    }
}
