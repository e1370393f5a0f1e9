//! What callers can still see of ended sessions: one document each, and the latest of each key. A
//! document may be stored before its session ends. This module decides which stay and when the
//! others go; it never removes that of a session that has not ended.

use std::sync::Arc;

use model::{Document, KeyId, Refusal, SessionId};

use crate::boxed;
use crate::documents;
use crate::{Caller, Engine};

/// How many of a kind are stored for a key.
const KEPT_MAX: u64 = 1_000;
/// So many more are allowed before the oldest go, because finding them reads all.
const SURPLUS_MAX: u64 = 64;

impl Engine {
    /// Stores what callers will see of a session after its end, and removes the oldest of its key
    /// where there are too many.
    #[boxed]
    pub async fn store_ended_session(
        &self,
        kind: &'static str,
        tenant: KeyId,
        session: SessionId,
        body: String,
    ) -> Result<(), Refusal> {
        let (kind, name) = (kind.to_owned(), session.to_string());
        let document = Document { kind, tenant, name, seed: None, body: body.into() };
        documents::check(&document)?;
        let written = self.core.store.put_document(&document).await;
        written.map_err(|error| documents::refused(&error))?;
        self.forget_oldest(&document.kind, tenant).await
    }

    async fn forget_oldest(&self, kind: &str, tenant: KeyId) -> Result<(), Refusal> {
        let there = documents::size(&self.core, kind, tenant, None).await?;
        if there.count <= KEPT_MAX + SURPLUS_MAX {
            return Ok(());
        }
        let live = u64::from(self.key_use(tenant).sessions);
        if there.count <= KEPT_MAX + SURPLUS_MAX + live {
            return Ok(());
        }
        // Ids begin with the time at which they were made, so the oldest come first.
        let mut all = documents::all(&self.core, kind, tenant).await?;
        all.retain(|document| !self.is_of_known_session(document));
        for document in all.iter().take(all.len().saturating_sub(KEPT_MAX as usize)) {
            documents::remove(&self.core, kind, tenant, &document.name).await?;
        }
        Ok(())
    }

    /// What is stored of an ended session of a key.
    #[boxed]
    pub async fn ended_session(
        &self,
        kind: &'static str,
        tenant: KeyId,
        session: SessionId,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let found = documents::one(&self.core, kind, tenant, &session.to_string()).await?;
        Ok(found.map(|document| document.body))
    }

    /// What is stored of those ended sessions of a caller that the kernel no longer knows.
    #[boxed]
    pub async fn ended_sessions(
        &self,
        kind: &'static str,
        caller: Caller,
    ) -> Result<Vec<Arc<str>>, Refusal> {
        let all = documents::all(&self.core, kind, caller.key).await?;
        let ended = all.into_iter().filter(|document| !self.is_of_known_session(document));
        Ok(ended.map(|document| document.body).collect())
    }

    fn is_of_known_session(&self, document: &Document) -> bool {
        let id: Option<SessionId> = document.name.parse().ok();
        id.is_some_and(|id| self.core.read(|kernel| kernel.session(id)).is_some())
    }
}
