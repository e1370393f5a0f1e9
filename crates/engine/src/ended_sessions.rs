//! What is kept of sessions after their end, for callers who want to see them then: a document each,
//! and of each key the latest. Which those are, and when the others go, is decided here.

use std::sync::Arc;

use model::{Document, KeyId, Refusal, SessionId};

use crate::boxed;
use crate::documents;
use crate::{Caller, Engine};

/// How many of a kind are kept for a key.
const KEPT_MAX: u64 = 1_000;
/// So many more may be there before the oldest go: finding them takes a look at all.
const SURPLUS_MAX: u64 = 64;

impl Engine {
    /// Keeps what is to be seen of a session after its end, and forgets the oldest of its key where
    /// there are too many.
    #[boxed]
    pub async fn keep_past(
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
        // Ids begin with the time at which they were made, so the oldest come first.
        let all = documents::all(&self.core, kind, tenant).await?;
        for document in all.iter().take(all.len().saturating_sub(KEPT_MAX as usize)) {
            documents::remove(&self.core, kind, tenant, &document.name).await?;
        }
        Ok(())
    }

    /// What is kept of a session of a key.
    #[boxed]
    pub async fn past(
        &self,
        kind: &'static str,
        tenant: KeyId,
        session: SessionId,
    ) -> Result<Option<Arc<str>>, Refusal> {
        let found = documents::one(&self.core, kind, tenant, &session.to_string()).await?;
        Ok(found.map(|document| document.body))
    }

    /// What is kept of the sessions of a caller that are over, and of which nothing else is known.
    #[boxed]
    pub async fn all_past(
        &self,
        kind: &'static str,
        caller: Caller,
    ) -> Result<Vec<Arc<str>>, Refusal> {
        let all = documents::all(&self.core, kind, caller.key).await?;
        let is_over = |document: &Document| {
            let id: Option<SessionId> = document.name.parse().ok();
            id.is_some_and(|id| self.session(caller, id).is_err())
        };
        let over = all.into_iter().filter(is_over);
        Ok(over.map(|document| document.body).collect())
    }
}
