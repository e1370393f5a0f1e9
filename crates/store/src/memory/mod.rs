//! A store without a disk: for tests, and for servers whose data may be lost. Tests can make it
//! fail, hang and crash, since every user of a store must survive one that does.

mod faults;
mod processes;
mod state;
pub(crate) mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use model::process::ProcessRecord;
use model::turn::{TurnPiece, TurnRecord};
use model::why::Ended;
use model::{
    Document, DocumentChange, KeyId, KeyRecord, SandboxId, SecretCounts, SecretInfo, SecretName,
    SecretOwner, SecretRecord, SeedId, TurnId, UsageRecord,
};
use tokio::sync::watch;

use self::faults::{Faults, Gate};
use self::state::StoredState;
use crate::contract::{
    Batch, DocumentQuery, DocumentsSize, EventPage, EventQuery, Loaded, ProcessKey, ProcessesQuery,
    Store, TurnQuery,
};
use crate::error::{StoreError, StoreErrorCode};
use crate::retention::Retention;

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    /// What would be on the disk: survives a crash.
    state: Arc<Mutex<StoredState>>,
    faults: Mutex<Faults>,
    gate: watch::Sender<Gate>,
}

impl MemoryStore {
    /// An empty one.
    pub fn new(retention: Retention) -> Self {
        Self::with_state(Arc::new(Mutex::new(StoredState::new(retention))))
    }

    fn with_state(state: Arc<Mutex<StoredState>>) -> Self {
        Self { state, faults: Mutex::default(), gate: watch::Sender::new(Gate::Open) }
    }

    /// The next `count` commits fail with this code, and nothing of them is stored.
    pub fn fail_commits(&self, count: u32, code: StoreErrorCode) {
        self.faults().fail(count, code);
    }

    /// From now on commits wait until they are released.
    pub fn hang_commits(&self) {
        self.gate.send_if_modified(|gate| gate.shift(Gate::Open, Gate::Hanging));
    }

    /// So many more writes (commits, and changes of documents and secrets) pass, and all later ones wait until
    /// they are released. It simulates a server that is killed between two steps.
    pub fn hang_after(&self, writes: u64) {
        self.faults().hang_after(writes);
    }

    /// Commits continue, waiting and later ones.
    pub fn release_commits(&self) {
        self.gate.send_if_modified(|gate| gate.shift(Gate::Hanging, Gate::Open));
    }

    /// Simulates a crash of the server and a new start: this store no longer works, waiting commits
    /// are not stored, and the returned store has everything that was committed.
    #[must_use]
    pub fn crash(&self) -> Self {
        // A holder of the lock is in the middle of a commit, which was thereby in time.
        let state = self.state();
        self.gate.send_replace(Gate::Closed);
        drop(state);
        Self::with_state(Arc::clone(&self.state))
    }

    /// How many batches were stored since it was new, over all crashes.
    pub fn commits(&self) -> u64 {
        self.state().commits
    }

    fn state(&self) -> MutexGuard<'_, StoredState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, unless the store is closed.
    fn open(&self) -> Result<MutexGuard<'_, StoredState>, StoreError> {
        let state = self.state();
        match *self.gate.borrow() {
            Gate::Open | Gate::Hanging => Ok(state),
            Gate::Closed => Err(StoreError::closed()),
        }
    }

    async fn pass_gate(&self) {
        if self.faults().is_one_too_many() {
            self.hang_commits();
        }
        if *self.gate.borrow() == Gate::Hanging {
            // The sender is in `self`, so it cannot be gone.
            let _ = self.gate.subscribe().wait_for(|gate| *gate != Gate::Hanging).await;
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn load(&self) -> Result<Loaded, StoreError> {
        Ok(self.open()?.load())
    }

    async fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        self.pass_gate().await;
        let mut state = self.open()?;
        if let Some(code) = self.faults().take() {
            return Err(StoreError::new(code, "a test asked for this failure"));
        }
        state.write(batch);
        Ok(())
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        Ok(self.open()?.events(query))
    }

    async fn limit_events(&self, key: KeyId, most: Option<u64>) -> Result<(), StoreError> {
        self.open()?.event_shares.limit(key, most);
        Ok(())
    }

    async fn event_counts(&self) -> Result<BTreeMap<KeyId, u64>, StoreError> {
        Ok(self.open()?.event_shares.counts())
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        Ok(self.open()?.keys.values().cloned().collect())
    }

    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let mut state = self.open()?;
        if key.revoked_at.is_some() {
            let owner = SecretOwner::Key(key.id);
            state.secrets.retain(|(other, _), _| *other != owner);
        }
        state.keys.insert(key.id, key.clone());
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<UsageRecord>, StoreError> {
        Ok(self.open()?.usage.values().copied().collect())
    }

    async fn put_usage(&self, totals: &[UsageRecord]) -> Result<(), StoreError> {
        self.open()?.usage.extend(totals.iter().map(|one| (one.key, *one)));
        Ok(())
    }

    async fn documents(&self, query: &DocumentQuery) -> Result<Vec<Document>, StoreError> {
        let state = self.open()?;
        Ok(state.documents.values().filter(|document| query.takes(document)).cloned().collect())
    }

    async fn documents_size(&self, query: &DocumentQuery) -> Result<DocumentsSize, StoreError> {
        let state = self.open()?;
        let found = state.documents.values().filter(|document| query.takes(document));
        Ok(found.fold(DocumentsSize::default(), |size, document| DocumentsSize {
            count: size.count + 1,
            bytes: size.bytes + document.body.len() as u64,
        }))
    }

    async fn document_seeds(&self) -> Result<BTreeSet<SeedId>, StoreError> {
        Ok(self.open()?.documents.values().filter_map(|document| document.seed).collect())
    }

    async fn put_document(&self, document: &Document) -> Result<(), StoreError> {
        self.pass_gate().await;
        self.open()?.write_document(DocumentChange::Put(document.clone()));
        Ok(())
    }

    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError> {
        self.pass_gate().await;
        let mut state = self.open()?;
        let before = state.documents.len();
        state.documents.retain(|_, document| !query.takes(document));
        Ok((before - state.documents.len()) as u64)
    }

    async fn secrets(&self, owner: SecretOwner) -> Result<Vec<SecretInfo>, StoreError> {
        let state = self.open()?;
        let all = state.secrets.values().map(|secret| &secret.info);
        Ok(all.filter(|info| info.owner == owner).cloned().collect())
    }

    async fn secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<Option<SecretRecord>, StoreError> {
        Ok(self.open()?.secrets.get(&(owner, name.clone())).cloned())
    }

    async fn put_secret(&self, secret: &SecretRecord) -> Result<(), StoreError> {
        self.pass_gate().await;
        let place = (secret.info.owner, secret.info.name.clone());
        self.open()?.secrets.insert(place, secret.clone());
        Ok(())
    }

    async fn remove_secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<bool, StoreError> {
        self.pass_gate().await;
        Ok(self.open()?.secrets.remove(&(owner, name.clone())).is_some())
    }

    async fn secret_counts(&self) -> Result<SecretCounts, StoreError> {
        let state = self.open()?;
        let of_node = |owner: &SecretOwner| *owner == SecretOwner::Node;
        let node = state.secrets.keys().filter(|(owner, _)| of_node(owner)).count() as u64;
        Ok(SecretCounts { node, keys: state.secrets.len() as u64 - node })
    }

    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError> {
        let state = self.open()?;
        Ok(state.records.ended.iter().rev().find(|ended| ended.sandbox == sandbox).cloned())
    }

    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError> {
        Ok(self.open()?.turns.turn(turn))
    }

    async fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError> {
        Ok(self.open()?.turns.turns(query))
    }

    async fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError> {
        Ok(self.open()?.turns.pieces(turn, after, limit))
    }

    async fn process(&self, key: &ProcessKey) -> Result<Option<ProcessRecord>, StoreError> {
        Ok(self.open()?.processes.process(key))
    }

    async fn processes(&self, query: &ProcessesQuery) -> Result<Vec<ProcessRecord>, StoreError> {
        Ok(self.open()?.processes.processes(query))
    }

    async fn process_log(
        &self,
        sandbox: SandboxId,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.open()?.processes.log(sandbox, number))
    }

    async fn unfinished_processes(&self, limit: u32) -> Result<Vec<ProcessRecord>, StoreError> {
        Ok(self.open()?.processes.unfinished(limit))
    }

    async fn close(&self) -> Result<(), StoreError> {
        let state = self.state();
        self.gate.send_replace(Gate::Closed);
        drop(state);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
