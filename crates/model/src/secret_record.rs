//! Secrets as they are stored: to whom one belongs, its name, its value. A value is never printed,
//! never part of an error, and cleared from memory when it is dropped. It has no `Serialize`, so
//! that no answer can contain it by accident.

use std::fmt;

use zeroize::Zeroizing;

use crate::ids::KeyId;
use crate::secret::{SECRET_BYTES_MAX, SecretName};
use crate::time::Wall;

/// The most secrets of one owner.
pub const SECRETS_MAX: usize = 256;

/// The most bytes of all values of one owner.
pub const SECRETS_BYTES_MAX: u64 = 1 << 20;

/// To whom a secret belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretOwner {
    /// The node: all keys may use it, and only administrators may change it.
    Node,
    /// One key, and no other.
    Key(KeyId),
}

impl SecretOwner {
    /// The word for it: `node` or `key`.
    pub const fn scope(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Key(_) => "key",
        }
    }
}

/// The value of a secret: text without NUL, which no variable of an environment can have.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    /// Reads a value. A refusal says nothing about it.
    pub fn new(text: String) -> Result<Self, &'static str> {
        let text = Zeroizing::new(text);
        if text.is_empty() || text.len() > SECRET_BYTES_MAX {
            return Err("the value of a secret has 1 to 65536 bytes");
        }
        if text.contains('\0') {
            return Err("the value of a secret has no NUL character");
        }
        Ok(Self(text))
    }

    /// The value, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// How many bytes it has: never 0.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has more than one line, which neither a header nor a line of a file can carry.
    pub fn has_line_breaks(&self) -> bool {
        self.0.contains(['\r', '\n'])
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

/// A secret without its value: what lists show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretInfo {
    /// To whom it belongs.
    pub owner: SecretOwner,
    /// Its name: each owner has one of a name.
    pub name: SecretName,
    /// The bytes of its value.
    pub bytes: u64,
    /// When it was first stored.
    pub created_at: Wall,
    /// When its value was last stored.
    pub updated_at: Wall,
}

/// A secret with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRecord {
    /// What may be shown of it.
    pub info: SecretInfo,
    /// Its value.
    pub value: SecretValue,
}

/// How many secrets are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecretCounts {
    /// Of the node.
    pub node: u64,
    /// Of all keys together.
    pub keys: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_bounded_and_never_printed() {
        for bad in ["", "a\0b", &"x".repeat(SECRET_BYTES_MAX + 1)] {
            let refused = SecretValue::new(bad.to_owned()).unwrap_err();
            assert!(bad.is_empty() || !refused.contains(bad));
        }
        let most = SecretValue::new("x".repeat(SECRET_BYTES_MAX)).unwrap();
        assert_eq!((most.len(), most.has_line_breaks()), (SECRET_BYTES_MAX, false));
        let value = SecretValue::new("hunter2\nü".to_owned()).unwrap();
        assert!(value.has_line_breaks());
        assert_eq!(value.len(), 10, "bytes, not characters");
        let info = SecretInfo {
            owner: SecretOwner::Node,
            name: SecretName::new("a").unwrap(),
            bytes: 10,
            created_at: Wall(1),
            updated_at: Wall(2),
        };
        let shown = format!("{:?}", SecretRecord { info, value });
        assert!(shown.contains("Node") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_secret_belongs_to_the_node_or_to_a_key() {
        assert_eq!(SecretOwner::Node.scope(), "node");
        assert_eq!(SecretOwner::Key(KeyId::NIL).scope(), "key");
    }
}
