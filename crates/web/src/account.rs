//! For which key a request works, known to everything that the request does: what it makes the
//! server hold counts for that key, in every dialect. Work outside of a request counts for none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::output_room;
use model::KeyId;

use crate::answer_memory::AnswerRoom;
use crate::body_memory::BodyMemory;

tokio::task_local! {
    /// The account of the request that this task works on.
    static ACCOUNT: Account;
}

/// A key, and how much memory is counted for one of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Payer {
    pub(crate) key: KeyId,
    /// The limit `body_bytes` of the key.
    pub(crate) most: Option<u64>,
    held: Arc<AtomicU64>,
}

impl Payer {
    pub(crate) fn new(key: KeyId, most: Option<u64>) -> Self {
        Self { key, most, held: Arc::default() }
    }

    pub(crate) fn holds(&self, more: u64) {
        self.held.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn lets_go(&self, less: u64) {
        self.held.fetch_sub(less, Ordering::Relaxed);
    }

    /// The bytes that are counted for the request.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// Who pays for what this task holds.
pub(crate) fn payer() -> Payer {
    let known = ACCOUNT.try_with(|account| account.payer.clone());
    known.unwrap_or_else(|_| Payer::new(KeyId::NIL, None))
}

/// What one request holds. Cheap to clone.
#[derive(Clone)]
pub struct Account {
    pub(crate) payer: Payer,
    pub(crate) room: Arc<AnswerRoom>,
}

impl Account {
    /// Of a request of a key.
    pub(crate) fn new(payer: Payer, memory: &BodyMemory) -> Self {
        Self { payer, room: Arc::new(AnswerRoom::new(memory.clone())) }
    }

    /// The account of the request that this task works on, for a task that takes over a part of it.
    pub fn current() -> Option<Self> {
        ACCOUNT.try_with(Clone::clone).ok()
    }

    /// The answer has its texts so many times.
    pub fn answers_times(&self, copies: u64) {
        self.room.set_copies(copies);
    }

    /// Does something whose costs count for this account.
    pub async fn scope<T>(self, doing: impl Future<Output = T>) -> T {
        let room = Arc::clone(&self.room);
        ACCOUNT.scope(self, output_room::scope(room, doing)).await
    }

    #[cfg(test)]
    pub(crate) fn sync_scope<T>(self, doing: impl FnOnce() -> T) -> T {
        ACCOUNT.sync_scope(self, doing)
    }
}
