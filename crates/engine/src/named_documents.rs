//! What is kept under names: a document per kind, key and name, bounded per key. One change of a
//! key is made at a time; a change that began to be written is written to its end, also if its
//! caller goes away. What is read often is remembered here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use model::{Document, DocumentChange, ErrorCode, KeyId, Refusal, SeedId};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::boxed;
use crate::core::Core;
use crate::documents;
use crate::named_sessions::NamedSession;
use crate::session_names::NameKey;
use crate::{Caller, Engine};

/// How many of a kind a key may have.
pub const NAMED_MAX: u64 = 1_000;
/// How many bytes they may say together.
pub const NAMED_BYTES_MAX: u64 = 32 << 20;
/// How long one waits for others who change what the same key has.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is remembered: how many, and how much they may say.
const REMEMBERED_MAX: usize = 10_000;
const REMEMBERED_BYTES_MAX: usize = 64 << 20;

/// Why something was not put under a name. What that is called is up to the dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedError {
    /// Others are changing what this key has, and take long.
    Busy,
    /// The key has as many of the kind as it may have.
    TooMany(u64),
    /// All of the kind that the key has would say more than so many bytes.
    TooLarge(u64),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for NamedError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Locks of a kind and a key as a whole, or of one name. Each is there for as long as a task has it
/// or waits for it.
type Locks = BTreeMap<(String, KeyId, Option<String>), Weak<tokio::sync::Mutex<()>>>;

/// A document as it was read, and the session that it names, once that was asked for.
pub(crate) struct Kept {
    pub(crate) document: Document,
    pub(crate) session: OnceLock<Arc<NamedSession>>,
}

/// What is remembered of the store.
#[derive(Default)]
struct Remembered {
    known: BTreeMap<NameKey, Arc<Kept>>,
    bytes: usize,
    /// Grows when something is forgotten: who read before that has something old.
    forgotten: u64,
}

/// Locks and what is remembered.
#[derive(Default)]
pub(crate) struct Named {
    locks: Mutex<Locks>,
    remembered: Mutex<Remembered>,
}

/// The right to change what a key has of a kind.
pub struct NamedChange {
    core: Arc<Core>,
    kind: &'static str,
    tenant: KeyId,
    alone: OwnedMutexGuard<()>,
}

impl Named {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to change what a key has of a kind, or to be alone with one name.
    pub(crate) async fn lock(
        &self,
        kind: &str,
        tenant: KeyId,
        name: Option<&str>,
    ) -> Result<OwnedMutexGuard<()>, NamedError> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let key = (kind.to_owned(), tenant, name.map(str::to_owned));
            let entry = locks.entry(key).or_default();
            let lock = entry.upgrade().unwrap_or_default();
            *entry = Arc::downgrade(&lock);
            lock
        };
        timeout(PATIENCE, lock.lock_owned()).await.map_err(|_| NamedError::Busy)
    }

    /// These were written: what is remembered of them is old.
    pub(crate) fn changed(&self, changes: &[DocumentChange]) {
        for change in changes {
            match change {
                DocumentChange::Put(document) => self.forget(&NameKey::of(document)),
                DocumentChange::Removed { kind, tenant, name } => {
                    let (kind, tenant, name) = (kind.clone(), *tenant, name.clone());
                    self.forget(&NameKey { kind, tenant, name });
                }
            }
        }
    }

    fn forget(&self, key: &NameKey) {
        let mut remembered = self.remembered();
        remembered.forgotten += 1;
        if let Some(kept) = remembered.known.remove(key) {
            remembered.bytes -= kept.document.body.len();
        }
    }

    /// Forgets everything.
    pub(crate) fn forget_all(&self) {
        let mut remembered = self.remembered();
        remembered.forgotten += 1;
        remembered.known.clear();
        remembered.bytes = 0;
    }

    fn remember(&self, key: NameKey, kept: &Arc<Kept>, read_at: u64) {
        let mut remembered = self.remembered();
        let bytes = kept.document.body.len();
        if remembered.forgotten != read_at || bytes > REMEMBERED_BYTES_MAX {
            return;
        }
        if remembered.known.len() >= REMEMBERED_MAX
            || remembered.bytes + bytes > REMEMBERED_BYTES_MAX
        {
            remembered.known.clear();
            remembered.bytes = 0;
        }
        remembered.bytes += bytes;
        if let Some(before) = remembered.known.insert(key, Arc::clone(kept)) {
            remembered.bytes -= before.document.body.len();
        }
    }
}

/// What is under a name, as it is written.
pub(crate) async fn find(core: &Core, key: &NameKey) -> Result<Option<Arc<Kept>>, Refusal> {
    let read_at = {
        let remembered = core.named.remembered();
        if let Some(kept) = remembered.known.get(key) {
            return Ok(Some(Arc::clone(kept)));
        }
        remembered.forgotten
    };
    let Some(document) = documents::one(core, &key.kind, key.tenant, &key.name).await? else {
        return Ok(None);
    };
    let kept = Arc::new(Kept { document, session: OnceLock::new() });
    core.named.remember(key.clone(), &kept, read_at);
    Ok(Some(kept))
}

/// Whether a key may have a document, beside those that it has.
pub(crate) async fn refuse_too_much(core: &Core, document: &Document) -> Result<(), NamedError> {
    documents::check(document)?;
    let Document { kind, tenant, name, body, .. } = document;
    let all = documents::size(core, kind, *tenant, None).await?;
    let before = documents::size(core, kind, *tenant, Some(name)).await?;
    if all.count.saturating_sub(before.count) >= NAMED_MAX {
        return Err(NamedError::TooMany(NAMED_MAX));
    }
    if all.bytes.saturating_sub(before.bytes) + body.len() as u64 > NAMED_BYTES_MAX {
        return Err(NamedError::TooLarge(NAMED_BYTES_MAX));
    }
    Ok(())
}

impl Engine {
    /// What a key has under a name.
    #[boxed]
    pub async fn named(
        &self,
        kind: &'static str,
        tenant: KeyId,
        name: &str,
    ) -> Result<Option<Document>, Refusal> {
        let key = NameKey { kind: kind.to_owned(), tenant, name: name.to_owned() };
        Ok(find(&self.core, &key).await?.map(|kept| kept.document.clone()))
    }

    /// All of a kind that a key has, by name.
    #[boxed]
    pub async fn all_named(
        &self,
        kind: &'static str,
        tenant: KeyId,
    ) -> Result<Vec<Document>, Refusal> {
        documents::all(&self.core, kind, tenant).await
    }

    /// The right to change what a caller has of a kind: until it is dropped, no other task does.
    #[boxed]
    pub async fn change_named(
        &self,
        kind: &'static str,
        caller: Caller,
    ) -> Result<NamedChange, NamedError> {
        let (core, tenant) = (Arc::clone(&self.core), caller.key);
        let alone = core.named.lock(kind, tenant, None).await?;
        Ok(NamedChange { core, kind, tenant, alone })
    }
}

impl NamedChange {
    /// Puts something under a name, in place of what is there. The files that it names stay for as
    /// long as it is there.
    #[boxed]
    pub async fn put(
        self,
        name: &str,
        seed: Option<SeedId>,
        body: String,
    ) -> Result<(), NamedError> {
        let (kind, tenant, name) = (self.kind.to_owned(), self.tenant, name.to_owned());
        let document = Document { kind, tenant, name, seed, body: body.into() };
        refuse_too_much(&self.core, &document).await?;
        to_the_end(async move {
            let written = self.core.store.put_document(&document).await;
            self.core.named.forget(&NameKey::of(&document));
            drop(self.alone);
            written.map_err(|error| documents::refused(&error).into())
        })
        .await
    }

    /// Forgets what is under a name; whether there was something.
    #[boxed]
    pub async fn remove(self, name: &str) -> Result<bool, Refusal> {
        let key = NameKey { kind: self.kind.to_owned(), tenant: self.tenant, name: name.into() };
        to_the_end(async move {
            let removed = documents::remove(&self.core, &key.kind, key.tenant, &key.name).await;
            self.core.named.forget(&key);
            drop(self.alone);
            removed
        })
        .await
    }
}

/// Runs work to its end, also if its caller goes away.
pub(crate) async fn to_the_end<T: Send + 'static, E: From<Refusal> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    tasks::spawn(work).await.unwrap_or_else(|error| {
        let cause = format!("what was begun was given up: {error}");
        Err(Refusal::new(ErrorCode::Internal, cause).into())
    })
}
