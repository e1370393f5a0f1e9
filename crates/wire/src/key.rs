//! Keys of the API. The secret of a key is shown once, when it is made, and nowhere else.

use std::fmt;

use model::{KeyId, KeyLimits, KeyRecord, Role};
use serde::{Deserialize, Serialize};

use crate::key_limits::KeyUsed;
use crate::time::Time;

/// A request to create a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyRequest {
    /// Its name, for people.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 100))]
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its lifetime in seconds; without a limit if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3_153_600_000u64))]
    pub ttl_s: Option<u64>,
    /// Its own limits; where it has none, those of its role hold.
    #[serde(default)]
    pub limits: KeyLimits,
}

impl KeyRequest {
    /// The longest name.
    pub const NAME_CHARS_MAX: usize = 100;
    /// The longest lifetime: a hundred years.
    pub const TTL_S_MAX: u64 = 3_153_600_000;
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Key {
    /// Its id: what is made with it belongs to this id.
    pub id: KeyId,
    /// Its name, for people.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// When it was made.
    pub created_at: Time,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When it was revoked, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// Its own limits.
    #[serde(default)]
    pub limits: KeyLimits,
    /// The limits that hold: its own, else those of its role, else those of the server.
    #[serde(default)]
    pub effective_limits: KeyLimits,
    /// What it uses of what is limited.
    #[serde(default)]
    pub used: KeyUsed,
}

impl Key {
    /// A key, with what holds for it and what it uses.
    pub fn new(record: &KeyRecord, effective_limits: KeyLimits, used: KeyUsed) -> Self {
        Self { effective_limits, used, ..Self::from(record) }
    }
}

impl From<&KeyRecord> for Key {
    fn from(record: &KeyRecord) -> Self {
        Self {
            id: record.id,
            name: record.name.clone(),
            role: record.role,
            created_at: record.created_at.into(),
            expires_at: record.expires_at.map(Time::from),
            revoked_at: record.revoked_at.map(Time::from),
            limits: record.limits,
            effective_limits: KeyLimits::default(),
            used: KeyUsed::default(),
        }
    }
}

/// All keys, the revoked and expired ones included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyList {
    /// The keys.
    pub keys: Vec<Key>,
}

/// A key that was just created.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NewKey {
    /// Its id: what is made with it belongs to this id.
    pub id: KeyId,
    /// Its name, for people.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// When it was made.
    pub created_at: Time,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Its own limits.
    #[serde(default)]
    pub limits: KeyLimits,
    /// The secret, sent as `Authorization: Bearer SECRET`. It is not shown again.
    pub secret: String,
}

impl NewKey {
    /// A key with its secret.
    pub fn new(record: &KeyRecord, secret: String) -> Self {
        Self {
            id: record.id,
            name: record.name.clone(),
            role: record.role,
            created_at: record.created_at.into(),
            expires_at: record.expires_at.map(Time::from),
            limits: record.limits,
            secret,
        }
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_sent_and_never_printed() {
        let record = KeyRecord {
            id: KeyId::from_u128(1),
            name: "ci".to_owned(),
            role: Role::Use,
            hash: [0; 32],
            created_at: model::Wall(0),
            expires_at: None,
            revoked_at: None,
            limits: KeyLimits::default(),
        };
        let key = NewKey::new(&record, "hunter2".to_owned());
        assert!(serde_json::to_string(&key).unwrap().contains("hunter2"));
        assert!(!format!("{key:?}").contains("hunter2"));
        let listed = serde_json::to_value(Key::from(&record)).unwrap();
        assert_eq!(listed["role"], "use");
        assert!(listed.get("hash").is_none());
    }
}
