//! Documents: named JSON records that dialects and other parts outside the kernel store. Only the
//! writer of a document knows its contents; they may be secret, so nothing prints them.

use std::fmt;
use std::sync::Arc;

use crate::ids::{KeyId, SeedId};

/// A named JSON record.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// Its kind, as its writer calls it.
    pub kind: String,
    /// The key that it belongs to.
    pub tenant: KeyId,
    /// Its name: there is one of a name for each kind and key.
    pub name: String,
    /// The files that must be there for as long as it is.
    pub seed: Option<SeedId>,
    /// Its contents, as JSON.
    pub body: Arc<str>,
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("kind", &self.kind)
            .field("tenant", &self.tenant)
            .field("name", &self.name)
            .field("seed", &self.seed)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// A change of a document that is written together with other things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentChange {
    /// Stores this document, in place of the one with its kind, key and name.
    Put(Document),
    /// Deletes the document.
    Removed {
        /// Its kind.
        kind: String,
        /// The key that it belonged to.
        tenant: KeyId,
        /// Its name.
        name: String,
    },
}

impl DocumentChange {
    /// Bytes of what is written.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(document) => document.body.len(),
            Self::Removed { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_contents_are_never_printed() {
        let (kind, name) = ("agent".to_owned(), "a".to_owned());
        let body = Arc::from("hunter2");
        let document = Document { kind, tenant: KeyId::NIL, name, seed: None, body };
        let shown = format!("{document:?}");
        assert!(shown.contains("agent") && !shown.contains("hunter2"), "{shown}");
    }
}
