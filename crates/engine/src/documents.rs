//! Documents: JSON records beside the journal, by kind, key and name. This module bounds them and
//! does not interpret them. Dialects reach them through `named_documents` only.

use model::{Document, ErrorCode, KeyId, Refusal};
use store::{DocumentQuery, DocumentsSize, StoreError};

use crate::core::{Core, unavailable};

const NAME_BYTES_MAX: usize = 1_024;
const BODY_BYTES_MAX: usize = 4 << 20;

/// A document.
pub(crate) async fn one(
    core: &Core,
    kind: &str,
    tenant: KeyId,
    name: &str,
) -> Result<Option<Document>, Refusal> {
    let query = DocumentQuery { name: Some(name.to_owned()), ..of(kind, tenant) };
    let found = core.store.documents(&query).await.map_err(|error| refused(&error))?;
    Ok(found.into_iter().next())
}

/// All documents of a kind that belong to a key, by name.
pub(crate) async fn all(core: &Core, kind: &str, tenant: KeyId) -> Result<Vec<Document>, Refusal> {
    core.store.documents(&of(kind, tenant)).await.map_err(|error| refused(&error))
}

/// How many documents of a kind a key has, and their bytes; or those of one name.
pub(crate) async fn size(
    core: &Core,
    kind: &str,
    tenant: KeyId,
    name: Option<&str>,
) -> Result<DocumentsSize, Refusal> {
    let query = DocumentQuery { name: name.map(str::to_owned), ..of(kind, tenant) };
    core.store.documents_size(&query).await.map_err(|error| refused(&error))
}

/// Refuses a document that is too large.
pub(crate) fn check(document: &Document) -> Result<(), Refusal> {
    if document.name.len() > NAME_BYTES_MAX || document.body.len() > BODY_BYTES_MAX {
        let cause = format!(
            "a document may have a name of {NAME_BYTES_MAX} bytes and {BODY_BYTES_MAX} bytes"
        );
        return Err(Refusal::new(ErrorCode::TooLarge, cause));
    }
    Ok(())
}

/// Removes a document; whether there was one.
pub(crate) async fn remove(
    core: &Core,
    kind: &str,
    tenant: KeyId,
    name: &str,
) -> Result<bool, Refusal> {
    let query = DocumentQuery { name: Some(name.to_owned()), ..of(kind, tenant) };
    let removed = core.store.remove_documents(&query).await;
    removed.map(|count| count > 0).map_err(|error| refused(&error))
}

/// Removes all documents of a key.
pub(crate) async fn remove_all_of(core: &Core, tenant: KeyId) -> Result<(), Refusal> {
    let query = DocumentQuery { tenant: Some(tenant), ..DocumentQuery::default() };
    let size = core.store.documents_size(&query).await.map_err(|error| refused(&error))?;
    if size.count > 0 {
        core.store.remove_documents(&query).await.map_err(|error| refused(&error))?;
        core.named_documents.forget_all();
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
