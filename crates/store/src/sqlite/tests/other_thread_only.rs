//! The whole suite once more, with every commit on another thread.

use super::*;

struct Slow(Directory);
struct SlowStore(SqliteStore);

impl Subject for Slow {
    fn open(&self, retention: Retention) -> Arc<dyn Store> {
        Arc::new(SlowStore(SqliteStore::open(&self.0.0, retention).expect("opened")))
    }
}

#[async_trait]
impl Store for SlowStore {
    async fn load(&self) -> Result<Loaded, StoreError> {
        self.0.load().await
    }

    async fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        self.0.shared.disk_speed.took(Duration::from_secs(1));
        assert!(self.0.shared.commit_here(&Prepared::new(batch, &self.0.shared.key)?).is_none());
        self.0.commit(batch).await
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.0.events(query).await
    }

    async fn limit_events(&self, key: KeyId, most: Option<u64>) -> Result<(), StoreError> {
        self.0.limit_events(key, most).await
    }

    async fn event_counts(&self) -> Result<BTreeMap<KeyId, u64>, StoreError> {
        self.0.event_counts().await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.0.keys().await
    }

    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        self.0.put_key(key).await
    }

    async fn usage(&self) -> Result<Vec<UsageRecord>, StoreError> {
        self.0.usage().await
    }

    async fn put_usage(&self, totals: &[UsageRecord]) -> Result<(), StoreError> {
        self.0.put_usage(totals).await
    }

    async fn documents(&self, query: &DocumentQuery) -> Result<Vec<Document>, StoreError> {
        self.0.documents(query).await
    }

    async fn documents_size(&self, query: &DocumentQuery) -> Result<DocumentsSize, StoreError> {
        self.0.documents_size(query).await
    }

    async fn document_seeds(&self) -> Result<BTreeSet<SeedId>, StoreError> {
        self.0.document_seeds().await
    }

    async fn put_document(&self, document: &Document) -> Result<(), StoreError> {
        self.0.put_document(document).await
    }

    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError> {
        self.0.remove_documents(query).await
    }

    async fn secrets(&self, owner: SecretOwner) -> Result<Vec<SecretInfo>, StoreError> {
        self.0.secrets(owner).await
    }

    async fn secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<Option<SecretRecord>, StoreError> {
        self.0.secret(owner, name).await
    }

    async fn put_secret(&self, secret: &SecretRecord) -> Result<(), StoreError> {
        self.0.put_secret(secret).await
    }

    async fn remove_secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<bool, StoreError> {
        self.0.remove_secret(owner, name).await
    }

    async fn secret_counts(&self) -> Result<SecretCounts, StoreError> {
        self.0.secret_counts().await
    }

    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError> {
        self.0.ended(sandbox).await
    }

    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError> {
        self.0.turn(turn).await
    }

    async fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError> {
        self.0.turns(query).await
    }

    async fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError> {
        self.0.pieces(turn, after, limit).await
    }

    async fn process(&self, key: &ProcessKey) -> Result<Option<ProcessRecord>, StoreError> {
        self.0.process(key).await
    }

    async fn processes(&self, query: &ProcessesQuery) -> Result<Vec<ProcessRecord>, StoreError> {
        self.0.processes(query).await
    }

    async fn process_log(
        &self,
        sandbox: SandboxId,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.process_log(sandbox, number).await
    }

    async fn unfinished_processes(&self, limit: u32) -> Result<Vec<ProcessRecord>, StoreError> {
        self.0.unfinished_processes(limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.close().await
    }
}

crate::conformance_tests! { Slow(Directory::new()) }
