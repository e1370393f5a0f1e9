//! A batch that is ready to be written: of each record only its last state, as text. It is prepared
//! before the writer is locked, and owns all it needs, so that another thread can write it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use model::process::ProcessChange;
use model::record::{JournalEntry, SessionRecord};
use model::turn::{TurnChange, TurnEnd, TurnPiece};
use model::{
    Document, DocumentChange, KeyId, ProcessId, SandboxId, SessionId, TemplateName, TurnId, Wall,
    WorkspaceId,
};
use serde::Serialize;

use super::sealed_fields;
use crate::contract::{Batch, DocumentQuery};
use crate::error::{StoreError, StoreErrorCode};
use crate::{processes, turns};
use sealing::{NodeKey, Place};

/// A larger batch is not small.
const SMALL_BYTES: usize = 64 * 1024;

/// The position of a text among all texts of the batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Span {
    from: usize,
    to: usize,
}

/// The last state of each record in the batch: a text, or its removal.
type Last<K> = Vec<(K, Option<Span>)>;

/// A batch, ready to be written.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    text: String,
    /// All envelopes.
    sealed: Vec<u8>,
    pub(super) pools: Last<TemplateName>,
    pub(super) sandboxes: Last<SandboxId>,
    pub(super) sessions: Vec<(SessionId, Option<PutSession>)>,
    pub(super) doomed: Last<WorkspaceId>,
    ends: Span,
    pub(super) ends_count: u64,
    /// In the order of their numbers.
    pub(super) events: Vec<EventLine>,
    events_to: usize,
    pub(super) turns: Vec<PreparedTurn>,
    /// The latest moment in the changes of turns.
    pub(super) turns_at: Wall,
    pub(super) processes: Vec<PreparedProcess>,
    /// The latest moment in the changes of processes.
    pub(super) processes_at: Wall,
    pub(super) documents: Vec<PreparedDocument>,
}

/// A session as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PutSession {
    pub(super) record: Span,
    pub(super) sealed: Option<Span>,
}

/// A change of a document.
#[derive(Debug)]
pub(super) enum PreparedDocument {
    /// A document, with the envelope of its body.
    Put { document: Document, sealed: Span },
    /// The documents that are removed.
    Removed(DocumentQuery),
}

/// A change of a process: its new state, or its removal.
#[derive(Debug)]
pub(super) struct PreparedProcess {
    pub(super) sandbox: SandboxId,
    pub(super) number: i64,
    pub(super) put: Option<PutProcess>,
}

/// A process as it is stored.
#[derive(Debug)]
pub(super) struct PutProcess {
    pub(super) id: ProcessId,
    pub(super) pid: u32,
    pub(super) name: Arc<str>,
    pub(super) tenant: KeyId,
    pub(super) ended_at: Option<i64>,
    pub(super) record: Span,
    pub(super) sealed: Span,
    /// Its size without its output.
    pub(super) bytes: u64,
    pub(super) log: Option<Arc<[u8]>>,
}

/// A change of a turn.
#[derive(Debug)]
pub(super) enum PreparedTurn {
    Put { turn: TurnId, session: SessionId, tenant: KeyId, record: Span, sealed: Span },
    Pieces { turn: TurnId, lines: Vec<PieceLine>, to: usize },
    Started { turn: TurnId, start: Span },
    Ended { turn: TurnId, end: TurnEnd },
    Forked { from: SessionId, to: SessionId },
}

/// A piece, as a line among those of its turn.
#[derive(Debug)]
pub(super) struct PieceLine {
    pub(super) seq: i64,
    pub(super) bytes: u64,
    from: usize,
}

/// An event, as a line among those of the batch.
#[derive(Debug)]
pub(super) struct EventLine {
    pub(super) number: i64,
    pub(super) tenant: KeyId,
    from: usize,
}

impl Prepared {
    pub(super) fn new(batch: &Batch, key: &NodeKey) -> Result<Self, StoreError> {
        let mut pools = BTreeMap::new();
        let mut sandboxes = BTreeMap::new();
        let mut sessions = BTreeMap::new();
        let mut doomed = BTreeMap::new();
        let mut ends = Vec::new();
        for entry in &batch.entries {
            match entry {
                JournalEntry::SandboxPut(record) => drop(sandboxes.insert(record.id, Some(record))),
                JournalEntry::SandboxRemoved(id) => drop(sandboxes.insert(*id, None)),
                JournalEntry::SessionPut(record) => drop(sessions.insert(record.id, Some(record))),
                JournalEntry::SessionRemoved(id) => drop(sessions.insert(*id, None)),
                JournalEntry::PoolPut(record) => {
                    pools.insert(record.template.name.clone(), Some(record));
                }
                JournalEntry::PoolRemoved(name) => drop(pools.insert(name.clone(), None)),
                JournalEntry::WorkspaceDoomed(id) => drop(doomed.insert(*id, Some(id))),
                JournalEntry::WorkspaceDeleted(id) => drop(doomed.insert(*id, None)),
                JournalEntry::Ended(ended) => ends.push(ended),
            }
        }
        let mut text = Text { clear: Vec::new(), sealed: Vec::new(), key };
        let mut made = Self {
            pools: text.last(pools)?,
            sandboxes: text.last(sandboxes)?,
            sessions: text.sessions(sessions)?,
            doomed: text.last(doomed)?,
            ..Self::default()
        };
        made.ends_count = ends.len() as u64;
        made.ends.from = text.clear.len();
        for ended in ends {
            made.ends.to = text.line(ended)?.to;
        }
        made.events.reserve(batch.events.len());
        for stored in &batch.events {
            let line = text.line(stored)?;
            let (number, tenant) = (stored.number.cast_signed(), stored.tenant);
            made.events.push(EventLine { number, tenant, from: line.from });
            made.events_to = line.to;
        }
        for change in &batch.turns {
            text.turn(change, &mut made.turns)?;
        }
        made.turns_at = turns::latest(&batch.turns);
        for change in &batch.processes {
            made.processes.push(text.process(change)?);
        }
        made.processes_at = processes::latest(&batch.processes);
        for change in &batch.documents {
            made.documents.push(text.document(change)?);
        }
        (made.text, made.sealed) = text.finish()?;
        Ok(made)
    }

    /// The length of all that is written.
    pub(super) fn bytes(&self) -> usize {
        let logs = self.processes.iter().filter_map(|change| change.put.as_ref()?.log.as_ref());
        self.text.len() + self.sealed.len() + logs.map(|log| log.len()).sum::<usize>()
    }

    /// Whether it changes a few records only, such as those of a lease.
    pub(super) fn is_small(&self) -> bool {
        self.turns.is_empty()
            && self.processes.is_empty()
            && self.documents.is_empty()
            && self.bytes() <= SMALL_BYTES
    }

    /// All tombstones, one line each. Only if there are some.
    pub(super) fn ends_lines(&self) -> &str {
        self.text(self.ends)
    }

    /// The events from one of them on, one line each.
    pub(super) fn events_lines(&self, first: &EventLine) -> &str {
        self.text(Span { from: first.from, to: self.events_to })
    }

    /// The pieces from one of them on, one line each, up to the end of the batch's pieces.
    pub(super) fn pieces_lines(&self, first: &PieceLine, to: usize) -> &str {
        self.text(Span { from: first.from, to })
    }

    /// An envelope.
    pub(super) fn sealed(&self, at: Span) -> &[u8] {
        &self.sealed[Range { start: at.from, end: at.to }]
    }

    pub(super) fn text(&self, at: Span) -> &str {
        &self.text[Range { start: at.from, end: at.to }]
    }
}

struct Text<'k> {
    clear: Vec<u8>,
    sealed: Vec<u8>,
    key: &'k NodeKey,
}

impl Text<'_> {
    fn push(&mut self, value: &impl Serialize) -> Result<Span, StoreError> {
        let from = self.clear.len();
        serde_json::to_writer(&mut self.clear, value).map_err(|error| unencodable(&error))?;
        Ok(Span { from, to: self.clear.len() })
    }

    /// Seals a value as text.
    fn seal(&mut self, place: &Place, value: &impl Serialize) -> Result<Span, StoreError> {
        let clear = serde_json::to_vec(value).map_err(|error| unencodable(&error))?;
        self.seal_bytes(place, &clear)
    }

    fn seal_bytes(&mut self, place: &Place, clear: &[u8]) -> Result<Span, StoreError> {
        let envelope = self.key.seal(place, clear).map_err(sealed_fields::unsealed)?;
        let from = self.sealed.len();
        self.sealed.extend_from_slice(&envelope);
        Ok(Span { from, to: self.sealed.len() })
    }

    /// JSON has no line breaks of its own: those in a text are escaped.
    fn line(&mut self, value: &impl Serialize) -> Result<Span, StoreError> {
        let span = self.push(value)?;
        self.clear.push(b'\n');
        Ok(span)
    }

    fn last<K, R: Serialize>(
        &mut self,
        last: BTreeMap<K, Option<&R>>,
    ) -> Result<Last<K>, StoreError> {
        let encode = |(id, record): (K, Option<&R>)| {
            Ok((id, record.map(|record| self.push(record)).transpose()?))
        };
        last.into_iter().map(encode).collect()
    }

    fn sessions(
        &mut self,
        last: BTreeMap<SessionId, Option<&SessionRecord>>,
    ) -> Result<Vec<(SessionId, Option<PutSession>)>, StoreError> {
        let mut put = |record: &SessionRecord| {
            let claim = record.claim.as_ref();
            let sealed = claim.map(|claim| self.seal(&sealed_fields::of_session(record.id), claim));
            let sealed = sealed.transpose()?;
            Ok(PutSession { record: self.push(&sealed_fields::bare_session(record))?, sealed })
        };
        last.into_iter().map(|(id, record)| Ok((id, record.map(&mut put).transpose()?))).collect()
    }

    fn turn(
        &mut self,
        change: &TurnChange,
        turns: &mut Vec<PreparedTurn>,
    ) -> Result<(), StoreError> {
        match change {
            TurnChange::Put(record) => {
                let (turn, session, tenant) = (record.id, record.session, record.tenant);
                let sealed = self.seal(&sealed_fields::of_turn(turn), &record.input)?;
                let put = self.push(&sealed_fields::bare_turn(record))?;
                turns.push(PreparedTurn::Put { turn, session, tenant, record: put, sealed });
                if let Some(start) = record.started {
                    turns.push(PreparedTurn::Started { turn, start: self.push(&start)? });
                }
                if let Some(end) = record.end.clone() {
                    turns.push(PreparedTurn::Ended { turn, end });
                }
            }
            TurnChange::Pieces { turn, pieces } => {
                let lines =
                    pieces.iter().map(|piece| self.piece(piece)).collect::<Result<_, _>>()?;
                turns.push(PreparedTurn::Pieces { turn: *turn, lines, to: self.clear.len() });
            }
            TurnChange::Started { turn, start } => {
                turns.push(PreparedTurn::Started { turn: *turn, start: self.push(start)? });
            }
            TurnChange::Ended { turn, end } => {
                turns.push(PreparedTurn::Ended { turn: *turn, end: end.clone() });
            }
            TurnChange::Forked { from, to } => {
                turns.push(PreparedTurn::Forked { from: *from, to: *to });
            }
        }
        Ok(())
    }

    fn process(&mut self, change: &ProcessChange) -> Result<PreparedProcess, StoreError> {
        Ok(match change {
            ProcessChange::Put { record, log } => {
                let number = record.number.cast_signed();
                let (bare, hidden) = sealed_fields::split_process(record);
                let place = sealed_fields::of_process(record.sandbox, number);
                let put = PutProcess {
                    id: record.id,
                    pid: record.pid,
                    name: Arc::clone(&record.name),
                    tenant: record.tenant,
                    ended_at: record.end.as_ref().map(|end| end.at.0.cast_signed()),
                    record: self.push(&bare)?,
                    sealed: self.seal(&place, &hidden)?,
                    bytes: turns::text_bytes(&**record),
                    log: log.clone(),
                };
                PreparedProcess { sandbox: record.sandbox, number, put: Some(put) }
            }
            ProcessChange::Removed { sandbox, number } => {
                PreparedProcess { sandbox: *sandbox, number: number.cast_signed(), put: None }
            }
        })
    }

    fn document(&mut self, change: &DocumentChange) -> Result<PreparedDocument, StoreError> {
        Ok(match change {
            DocumentChange::Put(document) => {
                let place =
                    sealed_fields::of_document(&document.kind, document.tenant, &document.name);
                let sealed = self.seal_bytes(&place, document.body.as_bytes())?;
                let document = Document { body: Arc::from(""), ..document.clone() };
                PreparedDocument::Put { document, sealed }
            }
            DocumentChange::Removed { kind, tenant, name } => {
                PreparedDocument::Removed(DocumentQuery {
                    kind: Some(kind.clone()),
                    tenant: Some(*tenant),
                    name: Some(name.clone()),
                })
            }
        })
    }

    fn piece(&mut self, piece: &TurnPiece) -> Result<PieceLine, StoreError> {
        let from = self.line(piece)?.from;
        let bytes = (self.clear.len() - from) as u64;
        Ok(PieceLine { seq: piece.seq.cast_signed(), bytes, from })
    }

    fn finish(self) -> Result<(String, Vec<u8>), StoreError> {
        let text = String::from_utf8(self.clear).map_err(|error| unencodable(&error))?;
        Ok((text, self.sealed))
    }
}

fn unencodable(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorCode::Io, format!("write a record as text: {error}"))
}
