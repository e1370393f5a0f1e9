//! Keys of the API: who calls, and what they may do. Only the hash of a key is stored, and not
//! even that is printed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::KeyId;
use crate::key_limits::{KeyLimit, KeyLimits};
use crate::time::Wall;

/// The role of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Role {
    /// Everything, with what belongs to others too.
    Admin,
    /// Make, use and end what is their own.
    Use,
    /// Look at what is their own.
    Read,
}

impl Role {
    /// All roles, the most powerful first.
    pub const ALL: [Self; 3] = [Self::Admin, Self::Use, Self::Read];

    /// The role as text: in the API, the store and the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Use => "use",
            Self::Read => "read",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A key as it is stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its id: the tenant of what is made with it.
    pub id: KeyId,
    /// Its name, for people.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The hash of the secret. The secret itself is stored nowhere.
    #[serde(with = "hex")]
    pub hash: [u8; 32],
    /// When it was made.
    pub created_at: Wall,
    /// When it expires, if ever.
    pub expires_at: Option<Wall>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Wall>,
    /// Its own limits, which come before those of its role. Keys of older versions have none.
    #[serde(default, skip_serializing_if = "has_none")]
    pub limits: KeyLimits,
}

fn has_none(limits: &KeyLimits) -> bool {
    *limits == KeyLimits::default()
}

/// The limits of the keys of each role that have none of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleLimits {
    /// Of administrators.
    pub admin: KeyLimits,
    /// Of those that may use what is their own.
    pub r#use: KeyLimits,
    /// Of those that may look.
    pub read: KeyLimits,
}

impl RoleLimits {
    /// Of one role.
    pub const fn of(&self, role: Role) -> KeyLimits {
        match role {
            Role::Admin => self.admin,
            Role::Use => self.r#use,
            Role::Read => self.read,
        }
    }
}

/// A limit with a value under which a key could do nothing at all, which revoking it says better.
pub fn impossible_limit(limits: &KeyLimits) -> Option<KeyLimit> {
    [KeyLimit::RequestsPerS, KeyLimit::Events]
        .into_iter()
        .find(|limit| limits.get(*limit) == Some(0))
}

impl fmt::Debug for KeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRecord")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("role", &self.role)
            .field("created_at", &self.created_at)
            .field("expires_at", &self.expires_at)
            .field("revoked_at", &self.revoked_at)
            .finish_non_exhaustive()
    }
}

/// A hash as 64 digits, so that a record can be read by people.
mod hex {
    use std::fmt::Write as _;

    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(hash: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(64);
        for byte in hash {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| de::Error::custom("a hash is 64 hexadecimal digits"))
    }

    fn parse(text: &str) -> Option<[u8; 32]> {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = [0; 32];
        if pairs.len() != hash.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> KeyRecord {
        let mut hash = [0xab; 32];
        (hash[0], hash[31]) = (0x00, 0x1f);
        KeyRecord {
            id: KeyId::from_u128(7),
            name: "ci".to_owned(),
            role: Role::Use,
            hash,
            created_at: Wall(1),
            expires_at: None,
            revoked_at: Some(Wall(2)),
            limits: KeyLimits { sessions: Some(3), ..KeyLimits::default() },
        }
    }

    #[test]
    fn key_record_is_read_back_and_its_hash_is_never_printed() {
        let text = serde_json::to_string(&record()).unwrap();
        assert!(text.contains(&format!("\"00{}1f\"", "ab".repeat(30))), "{text}");
        assert_eq!(serde_json::from_str::<KeyRecord>(&text).unwrap(), record());
        let shown = format!("{:?}", record());
        assert!(shown.contains("ci") && !shown.contains("hash"), "{shown}");
    }

    #[test]
    fn key_record_of_an_older_version_has_no_limits() {
        let mut text = serde_json::to_value(record()).unwrap();
        assert_eq!(text["limits"]["sessions"], 3);
        text.as_object_mut().unwrap().remove("limits");
        let read: KeyRecord = serde_json::from_value(text).unwrap();
        assert_eq!(read.limits, KeyLimits::default());
        assert!(!serde_json::to_string(&read).unwrap().contains("limits"));
    }

    #[test]
    fn limits_that_allow_nothing_are_impossible() {
        let none = KeyLimits::default();
        assert_eq!(impossible_limit(&KeyLimits { sessions: Some(0), ..none }), None);
        let stopped = KeyLimits { requests_per_s: Some(0), ..none };
        assert_eq!(impossible_limit(&stopped), Some(KeyLimit::RequestsPerS));
    }

    #[test]
    fn key_record_refuses_an_invalid_hash() {
        let good = serde_json::to_string(&record()).unwrap();
        let digits = format!("00{}1f", "ab".repeat(30));
        for bad in ["", "ab", &digits[1..], &format!("{digits}00"), &digits.replace("1f", "1g")] {
            let text = good.replace(&digits, bad);
            assert!(serde_json::from_str::<KeyRecord>(&text).is_err(), "{bad}");
        }
    }

    #[test]
    fn roles_are_stored_as_their_text() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
    }
}
