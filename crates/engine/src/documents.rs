//! Documents: what dialects write down beside the journal. The engine bounds them and knows whose
//! they are; what they say is not its affair.

use model::{Document, ErrorCode, KeyId, Refusal};
use store::{DocumentQuery, DocumentsSize, StoreError};

use crate::Engine;
use crate::boxed;
use crate::core::{Core, unavailable};

const NAME_BYTES_MAX: usize = 1_024;
const BODY_BYTES_MAX: usize = 4 << 20;

impl Engine {
    /// A document.
    #[boxed]
    pub async fn document(
        &self,
        kind: &str,
        tenant: KeyId,
        name: &str,
    ) -> Result<Option<Document>, Refusal> {
        let query = DocumentQuery { name: Some(name.to_owned()), ..of(kind, tenant) };
        let found = self.core.store.documents(&query).await.map_err(|error| refused(&error))?;
        Ok(found.into_iter().next())
    }

    /// All documents of a kind that belong to a key, by name.
    #[boxed]
    pub async fn documents(&self, kind: &str, tenant: KeyId) -> Result<Vec<Document>, Refusal> {
        let found = self.core.store.documents(&of(kind, tenant)).await;
        found.map_err(|error| refused(&error))
    }

    /// How many documents of a kind belong to a key, and how much they are; or those of a name.
    #[boxed]
    pub async fn documents_size(
        &self,
        kind: &str,
        tenant: KeyId,
        name: Option<&str>,
    ) -> Result<DocumentsSize, Refusal> {
        let query = DocumentQuery { name: name.map(str::to_owned), ..of(kind, tenant) };
        self.core.store.documents_size(&query).await.map_err(|error| refused(&error))
    }

    /// Writes a document down, in place of the one of its kind, key and name. It is durable when
    /// this returns.
    #[boxed]
    pub async fn put_document(&self, document: Document) -> Result<(), Refusal> {
        if document.name.len() > NAME_BYTES_MAX || document.body.len() > BODY_BYTES_MAX {
            let cause = format!(
                "a document may have a name of {NAME_BYTES_MAX} bytes and {BODY_BYTES_MAX} bytes"
            );
            return Err(Refusal::new(ErrorCode::TooLarge, cause));
        }
        self.core.store.put_document(&document).await.map_err(|error| refused(&error))
    }

    /// Forgets a document; whether there was one.
    #[boxed]
    pub async fn remove_document(
        &self,
        kind: &str,
        tenant: KeyId,
        name: &str,
    ) -> Result<bool, Refusal> {
        let query = DocumentQuery { name: Some(name.to_owned()), ..of(kind, tenant) };
        let removed = self.core.store.remove_documents(&query).await;
        removed.map(|count| count > 0).map_err(|error| refused(&error))
    }
}

/// Forgets all documents of a key.
pub(crate) async fn forget_all_of(core: &Core, tenant: KeyId) -> Result<(), Refusal> {
    let query = DocumentQuery { tenant: Some(tenant), ..DocumentQuery::default() };
    let size = core.store.documents_size(&query).await.map_err(|error| refused(&error))?;
    if size.count > 0 {
        core.store.remove_documents(&query).await.map_err(|error| refused(&error))?;
    }
    Ok(())
}

fn of(kind: &str, tenant: KeyId) -> DocumentQuery {
    let kind = Some(kind.to_owned());
    DocumentQuery { kind, tenant: Some(tenant), ..DocumentQuery::default() }
}

pub(crate) fn refused(error: &StoreError) -> Refusal {
    unavailable(&format!("{error} ({})", error.remedy()))
}
