//! What a store must do, and what is passed to and fro. `store::conformance` says it again, as
//! tests.

use std::collections::BTreeSet;
use std::path::Path;

use async_trait::async_trait;
use model::process::{ProcessChange, ProcessRecord};
use model::record::{Journal, JournalEntry};
use model::turn::{TurnChange, TurnPiece, TurnRecord};
use model::why::Ended;
use model::{
    Document, DocumentChange, KeyId, KeyRecord, ProcessId, SandboxId, SeedId, SessionId,
    StoredEvent, TurnId, WorkspaceId,
};

use crate::error::{StoreError, StoreErrorCode};

/// Keeps what the kernel is rebuilt from, the history, and the keys. Any future may be dropped at
/// any await: what it was to write is then there as a whole or not at all.
#[async_trait]
pub trait Store: Send + Sync {
    /// Everything that a kernel is rebuilt from, and the number of the last event.
    async fn load(&self) -> Result<Loaded, StoreError>;

    /// Writes all of it or nothing. What was written when this returns survives `kill -9`. After a
    /// failure nothing of it is there, and the same batch may be given again; so may one whose
    /// future was dropped, as long as no other was given since: of the history in it nothing is
    /// there twice.
    async fn commit(&self, batch: &Batch) -> Result<(), StoreError>;

    /// Events after a number, oldest first.
    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError>;

    /// All keys, revoked ones too, in the order of their ids.
    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// Writes a key down, in place of the one with the same id if there is one.
    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError>;

    /// Documents, in the order of their kinds, keys and names.
    async fn documents(&self, query: &DocumentQuery) -> Result<Vec<Document>, StoreError>;

    /// How many documents a query asks for, and how much they are, without reading them.
    async fn documents_size(&self, query: &DocumentQuery) -> Result<DocumentsSize, StoreError>;

    /// The files that documents name.
    async fn document_seeds(&self) -> Result<BTreeSet<SeedId>, StoreError>;

    /// Writes a document down, in place of the one of its kind, key and name if there is one.
    async fn put_document(&self, document: &Document) -> Result<(), StoreError>;

    /// Forgets the documents that a query asks for; how many there were.
    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError>;

    /// How a sandbox ended the last time, also where the kernel remembers it no more.
    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError>;

    /// A turn, as long as it is kept.
    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError>;

    /// Turns of a session, oldest first, with their numbers. Fewer than asked for do not mean that
    /// there are no more: a page that has become large ends there. An empty one means it.
    async fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError>;

    /// What a turn gave after a number, in order and without its end. Pages end as those of turns
    /// do. Nothing if the turn is not known.
    async fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError>;

    /// A process, as long as it is kept; the latest of those that are meant.
    async fn process(&self, key: &ProcessKey) -> Result<Option<ProcessRecord>, StoreError>;

    /// Processes of a sandbox, the latest first. Pages end as those of turns do.
    async fn processes(&self, query: &ProcessesQuery) -> Result<Vec<ProcessRecord>, StoreError>;

    /// What a process wrote, if that was given with it.
    async fn process_log(
        &self,
        sandbox: SandboxId,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Processes that are not over, in no particular order.
    async fn unfinished_processes(&self, limit: u32) -> Result<Vec<ProcessRecord>, StoreError>;

    /// Copies everything, as of one moment and while it is in use, into a new file that a store can
    /// be opened from later with the same key. Says which records are in the copy.
    async fn backup(&self, to: &Path) -> Result<Journal, StoreError> {
        let _ = to;
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// Forgets sessions in such a copy: they were deleted after it was made, and their files with
    /// them.
    async fn forget_in_backup(
        &self,
        copy: &Path,
        sessions: &BTreeSet<SessionId>,
    ) -> Result<(), StoreError> {
        let _ = (copy, sessions);
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// Notes in such a copy that the files of these workspaces are saved: they are beside it.
    async fn saved_in_backup(
        &self,
        copy: &Path,
        workspaces: &BTreeSet<WorkspaceId>,
    ) -> Result<(), StoreError> {
        let _ = (copy, workspaces);
        Err(StoreError::new(StoreErrorCode::Io, "a store in memory has no file to copy"))
    }

    /// How it is, besides what is in it. At once, and without the disk.
    fn condition(&self) -> Condition {
        Condition::default()
    }

    /// Brings everything to rest and closes. Later calls fail, except this one.
    async fn close(&self) -> Result<(), StoreError>;
}

/// How a store is, besides what is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Condition {
    /// Bytes of the database on the disk; 0 where there is none.
    pub database_bytes: u64,
    /// Bytes of it that are in use. The rest is written over before it grows.
    pub used_bytes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// What history may make it grow to.
    pub bound_bytes: u64,
    /// Commits that were missing when it was opened.
    pub lost_commits: u64,
    /// It can be read only, until there is space on the disk.
    pub waits_for_space: bool,
}

/// What a start begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The records.
    pub journal: Journal,
    /// The number of the last event; 0 if there never was one.
    pub last_event: u64,
}

/// What is written in one transaction: the changes and events of one decision or of many, in their
/// order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Changes of records.
    pub entries: Vec<JournalEntry>,
    /// Events, with numbers that grow, above all that were written before.
    pub events: Vec<StoredEvent>,
    /// Changes of turns. What speaks of a turn that is not there, or gives what it has already, is
    /// passed over. A fork copies the latest that are over, at most [`crate::FORKED_TURNS_MAX`] and
    /// at most [`crate::FORKED_BYTES_MAX`] of them.
    pub turns: Vec<TurnChange>,
    /// Changes of processes. That one is forgotten that is not there is passed over.
    pub processes: Vec<ProcessChange>,
    /// Changes of documents, in order. That one is removed that is not there is passed over.
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
    /// And what it is known by.
    pub by: ProcessBy,
}

/// What a process is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessBy {
    /// Its id.
    Id(ProcessId),
    /// Its process id inside.
    Pid(u32),
    /// Its name.
    Name(String),
}

impl ProcessKey {
    /// Whether a process is one of those.
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

/// What documents take together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DocumentsSize {
    /// How many there are.
    pub count: u64,
    /// Bytes of all they say.
    pub bytes: u64,
}

/// Which documents: all, or only those that are so.
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
    /// Whether a document is one of those.
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

    /// Whether an event is one of those.
    pub fn takes(&self, stored: &StoredEvent) -> bool {
        stored.number > self.after
            && self.sandbox.is_none_or(|sandbox| stored.event.sandbox() == Some(sandbox))
            && self.session.is_none_or(|session| stored.event.session() == Some(session))
            && self.tenant.is_none_or(|tenant| stored.tenant == tenant)
    }
}

/// Some events, and what there is besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// Those that were asked for, oldest first.
    pub events: Vec<StoredEvent>,
    /// The number of the oldest event that is still kept, whoever's it is; one more than `last` if
    /// none is.
    pub oldest: u64,
    /// The number of the last event, whoever's it is; 0 if there never was one.
    pub last: u64,
}

impl EventPage {
    /// Whether events after `after` were forgotten, so that whoever read up to there missed some.
    pub const fn forgot_since(&self, after: u64) -> bool {
        after.saturating_add(1) < self.oldest
    }
}
