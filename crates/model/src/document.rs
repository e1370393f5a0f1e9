//! Documents: what dialects and other parts outside the kernel write down under a name of their
//! own. Nobody but their writer knows what is in them; they may be secret, so nothing prints it.

use std::fmt;
use std::sync::Arc;

use crate::ids::{KeyId, SeedId};

/// Something that was written down by name.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// What it is, in the word of its writer.
    pub kind: String,
    /// The key that it belongs to.
    pub tenant: KeyId,
    /// Its name: there is one of a name for each kind and key.
    pub name: String,
    /// The files that must be there for as long as it is.
    pub seed: Option<SeedId>,
    /// What it says, as JSON.
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
    /// It is this from now on, in place of the one of its kind, key and name.
    Put(Document),
    /// It is gone.
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
    fn what_a_document_says_is_never_printed() {
        let (kind, name) = ("agent".to_owned(), "a".to_owned());
        let body = Arc::from("hunter2");
        let document = Document { kind, tenant: KeyId::NIL, name, seed: None, body };
        let shown = format!("{document:?}");
        assert!(shown.contains("agent") && !shown.contains("hunter2"), "{shown}");
    }
}
