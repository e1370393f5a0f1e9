//! Documents found by kind, key and name, bounded per key. One change per key at a time; a change
//! that has begun is committed even if its caller goes away. Documents that are read often are
//! cached.

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
/// How many bytes they may have together.
pub const NAMED_BYTES_MAX: u64 = 32 << 20;
/// How long a caller waits for other changes of the same key.
const PATIENCE: Duration = Duration::from_mins(1);
/// The size of the cache: entries, and bytes.
const CACHED_MAX: usize = 10_000;
const CACHED_BYTES_MAX: usize = 64 << 20;

/// Why a document was not stored. The dialect chooses the words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedError {
    /// Other changes of this key take too long.
    Busy,
    /// The key has as many of the kind as it may have.
    TooMany(u64),
    /// All of the kind that the key has would exceed so many bytes.
    TooLarge(u64),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for NamedError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Locks of a kind and key as a whole, or of one name. Each exists while a task has it or waits for
/// it.
type Locks = BTreeMap<(String, KeyId, Option<String>), Weak<tokio::sync::Mutex<()>>>;

/// A document as it was read, and the session that it names, once that was decoded.
pub(crate) struct CachedDocument {
    pub(crate) document: Document,
    pub(crate) session: OnceLock<Arc<NamedSession>>,
}

/// Cached documents.
#[derive(Default)]
struct Cache {
    known: BTreeMap<NameKey, Arc<CachedDocument>>,
    bytes: usize,
    /// Grows when an entry is dropped: a read that began before that may be out of date.
    dropped: u64,
}

/// Locks and the cache.
#[derive(Default)]
pub(crate) struct NamedDocuments {
    locks: Mutex<Locks>,
    cache: Mutex<Cache>,
}

/// The right to change what a key has of a kind.
pub struct NamedDocumentsLock {
    core: Arc<Core>,
    kind: &'static str,
    tenant: KeyId,
    alone: OwnedMutexGuard<()>,
}

impl NamedDocuments {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to change what a key has of a kind, or one name of it.
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

    /// These documents were written: drops them from the cache.
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
        let mut cache = self.cache();
        cache.dropped += 1;
        if let Some(kept) = cache.known.remove(key) {
            cache.bytes -= kept.document.body.len();
        }
    }

    /// Empties the cache.
    pub(crate) fn forget_all(&self) {
        let mut cache = self.cache();
        cache.dropped += 1;
        cache.known.clear();
        cache.bytes = 0;
    }

    fn cache_document(&self, key: NameKey, kept: &Arc<CachedDocument>, read_at: u64) {
        let mut cache = self.cache();
        let bytes = kept.document.body.len();
        if cache.dropped != read_at || bytes > CACHED_BYTES_MAX {
            return;
        }
        if cache.known.len() >= CACHED_MAX || cache.bytes + bytes > CACHED_BYTES_MAX {
            cache.known.clear();
            cache.bytes = 0;
        }
        cache.bytes += bytes;
        if let Some(before) = cache.known.insert(key, Arc::clone(kept)) {
            cache.bytes -= before.document.body.len();
        }
    }
}

/// The document of a name, as it is stored.
pub(crate) async fn find(
    core: &Core,
    key: &NameKey,
) -> Result<Option<Arc<CachedDocument>>, Refusal> {
    let read_at = {
        let cache = core.named_documents.cache();
        if let Some(kept) = cache.known.get(key) {
            return Ok(Some(Arc::clone(kept)));
        }
        cache.dropped
    };
    let Some(document) = documents::one(core, &key.kind, key.tenant, &key.name).await? else {
        return Ok(None);
    };
    let kept = Arc::new(CachedDocument { document, session: OnceLock::new() });
    core.named_documents.cache_document(key.clone(), &kept, read_at);
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
    /// The document of a key by name.
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

    /// All documents of a kind that a key has, by name.
    #[boxed]
    pub async fn named_documents(
        &self,
        kind: &'static str,
        tenant: KeyId,
    ) -> Result<Vec<Document>, Refusal> {
        documents::all(&self.core, kind, tenant).await
    }

    /// The right to change what a caller has of a kind; no other task has it until this is dropped.
    #[boxed]
    pub async fn lock_named_documents(
        &self,
        kind: &'static str,
        caller: Caller,
    ) -> Result<NamedDocumentsLock, NamedError> {
        let (core, tenant) = (Arc::clone(&self.core), caller.key);
        let alone = core.named_documents.lock(kind, tenant, None).await?;
        Ok(NamedDocumentsLock { core, kind, tenant, alone })
    }
}

impl NamedDocumentsLock {
    /// Stores a document under a name, in place of the one there. The seed archive that it names
    /// stays for as long as the document.
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
        run_to_completion(async move {
            let written = self.core.store.put_document(&document).await;
            self.core.named_documents.forget(&NameKey::of(&document));
            drop(self.alone);
            written.map_err(|error| documents::refused(&error).into())
        })
        .await
    }

    /// Removes the document of a name; whether there was one.
    #[boxed]
    pub async fn remove(self, name: &str) -> Result<bool, Refusal> {
        let key = NameKey { kind: self.kind.to_owned(), tenant: self.tenant, name: name.into() };
        run_to_completion(async move {
            let removed = documents::remove(&self.core, &key.kind, key.tenant, &key.name).await;
            self.core.named_documents.forget(&key);
            drop(self.alone);
            removed
        })
        .await
    }
}

/// Runs work to its end, also if its caller goes away.
pub(crate) async fn run_to_completion<T: Send + 'static, E: From<Refusal> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    tasks::spawn(work).await.unwrap_or_else(|error| {
        let cause = format!("internal error: {error}");
        Err(Refusal::new(ErrorCode::Internal, cause).into())
    })
}
