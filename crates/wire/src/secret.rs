//! Secrets. A value is sent to the server, and never comes back.

use std::fmt;

use model::{SecretInfo, SecretName, SecretOwner};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A request to store a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SecretRequest {
    /// Its value: 1 to 65536 bytes of text without NUL.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 65536))]
    pub value: String,
}

impl fmt::Debug for SecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretRequest").finish_non_exhaustive()
    }
}

/// Who may use a secret.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SecretScope {
    /// The key that stored it.
    #[default]
    Key,
    /// Every key of the node. Only administrators may see and change it.
    Node,
}

impl SecretScope {
    /// All scopes as words.
    pub const WORDS: &'static [&'static str] = &["key", "node"];

    /// The scope as it is sent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Node => "node",
        }
    }
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Secret {
    /// Its name.
    pub name: SecretName,
    /// Who may use it.
    pub scope: SecretScope,
    /// The bytes of its value.
    pub bytes: u64,
    /// When it was first stored.
    pub created_at: Time,
    /// When its value was last stored.
    pub updated_at: Time,
}

impl From<SecretInfo> for Secret {
    fn from(info: SecretInfo) -> Self {
        let scope = match info.owner {
            SecretOwner::Node => SecretScope::Node,
            SecretOwner::Key(_) => SecretScope::Key,
        };
        let (created_at, updated_at) = (info.created_at.into(), info.updated_at.into());
        Self { name: info.name, scope, bytes: info.bytes, created_at, updated_at }
    }
}

/// Secrets of one scope.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SecretList {
    /// The secrets, in the order of their names.
    pub secrets: Vec<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_a_secret_is_sent_and_never_printed() {
        let request = SecretRequest { value: "hunter2".to_owned() };
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"value":"hunter2"}"#);
        assert!(!format!("{request:?}").contains("hunter2"));
        for scope in [SecretScope::Key, SecretScope::Node] {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
            assert!(SecretScope::WORDS.contains(&scope.as_str()));
        }
    }
}
