//! A batch made ready to be written: of each record only its last state, as text. This is done
//! before the writer is locked, and it owns all it needs, so that it can be written by another
//! thread.

use std::collections::BTreeMap;
use std::ops::Range;

use model::record::JournalEntry;
use model::{SandboxId, SessionId, TemplateName, WorkspaceId};
use serde::Serialize;

use crate::contract::Batch;
use crate::error::{StoreError, StoreErrorCode};

/// Where a text is among all the texts of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    from: usize,
    to: usize,
}

/// What becomes of each record that the batch is about: a text, or nothing.
type Last<K> = Vec<(K, Option<Span>)>;

/// A batch, ready to be written.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    text: String,
    pub(super) pools: Last<TemplateName>,
    pub(super) sandboxes: Last<SandboxId>,
    pub(super) sessions: Last<SessionId>,
    pub(super) doomed: Last<WorkspaceId>,
    pub(super) ends: Vec<(SandboxId, Span)>,
    pub(super) events: Vec<EventRow>,
}

/// An event as a row.
#[derive(Debug)]
pub(super) struct EventRow {
    pub(super) number: i64,
    pub(super) at_ms: i64,
    pub(super) tenant: Option<[u8; 16]>,
    pub(super) sandbox: Option<[u8; 16]>,
    pub(super) session: Option<[u8; 16]>,
    pub(super) event: Span,
}

impl Prepared {
    pub(super) fn new(batch: &Batch) -> Result<Self, StoreError> {
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
        let mut text = Text::default();
        let mut made = Self {
            pools: text.last(pools)?,
            sandboxes: text.last(sandboxes)?,
            sessions: text.last(sessions)?,
            doomed: text.last(doomed)?,
            ..Self::default()
        };
        for ended in ends {
            made.ends.push((ended.sandbox, text.push(ended)?));
        }
        made.events.reserve(batch.events.len());
        for stored in &batch.events {
            // The server's own events are those of nobody.
            let tenant = Some(stored.tenant.as_u128()).filter(|tenant| *tenant != 0);
            made.events.push(EventRow {
                number: stored.number.cast_signed(),
                at_ms: stored.at.0.cast_signed(),
                tenant: tenant.map(u128::to_be_bytes),
                sandbox: stored.event.sandbox().map(|id| id.as_u128().to_be_bytes()),
                session: stored.event.session().map(|id| id.as_u128().to_be_bytes()),
                event: text.push(&stored.event)?,
            });
        }
        made.text = text.finish()?;
        Ok(made)
    }

    /// The length of all texts.
    pub(super) const fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn text(&self, at: Span) -> &str {
        &self.text[Range { start: at.from, end: at.to }]
    }
}

#[derive(Default)]
struct Text(Vec<u8>);

impl Text {
    fn push(&mut self, value: &impl Serialize) -> Result<Span, StoreError> {
        let from = self.0.len();
        serde_json::to_writer(&mut self.0, value).map_err(|error| unencodable(&error))?;
        Ok(Span { from, to: self.0.len() })
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

    fn finish(self) -> Result<String, StoreError> {
        String::from_utf8(self.0).map_err(|error| unencodable(&error))
    }
}

fn unencodable(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorCode::Io, format!("write a record as text: {error}"))
}
