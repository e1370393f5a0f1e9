//! Names of things. Each kind of id is its own type, so that a lease can never be passed where a
//! session is meant. Ids are UUIDs on the wire; they are made from an injected clock and seed,
//! never here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "schema", schema(value_type = String, format = "uuid"))]
        pub struct $name(Uuid);

        impl $name {
            /// The id that names nothing; never handed out.
            pub const NIL: Self = Self(Uuid::nil());

            /// Wraps 128 bits that came from an injected source.
            pub const fn from_u128(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// Wraps a UUID that came from outside.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The bits of the id, for hashing and for building other ids.
            pub const fn as_u128(self) -> u128 {
                self.0.as_u128()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text).map(Self).map_err(|_| IdError { kind: stringify!($name) })
            }
        }
    )+};
}

uuid_ids! {
    /// One isolated environment as its user knows it. A returned sandbox never comes back under
    /// the same id, so a stale id can never reach the next user.
    SandboxId;
    /// One launched instance in a runtime. Journalled before it exists and put on it as a label, so
    /// that whatever we started can be found and removed.
    InstanceId;
    /// Exclusive use of a sandbox between checkout and return.
    LeaseId;
    /// A conversation.
    SessionId;
    /// One message handled by a session's harness.
    TurnId;
    /// One exec, file or port call in progress.
    UseId;
    /// One process started through the API inside a sandbox; stable over its restarts.
    ProcessId;
    /// One request of a client that may have to wait for its answer.
    RequestId;
    /// The contents of `/workspace`, which may outlive the sandbox.
    WorkspaceId;
    /// The key (a caller of the API) that something belongs to.
    KeyId;
}

/// [`KeyId::NIL`] stands for the server itself: the owner of what belongs to no caller.
impl Default for KeyId {
    fn default() -> Self {
        Self::NIL
    }
}

/// A text that is not an id of the kind that was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a valid id: {} ids look like 0192f3a0-7c1e-7a52-8b3d-5e6f70819203",
    kind.trim_end_matches("Id").to_ascii_lowercase()
)]
pub struct IdError {
    kind: &'static str,
}

macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[0-9a-f]{64}$"))]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps a digest.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The digest.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = DigestError;

            fn from_str(text: &str) -> Result<Self, DigestError> {
                let digit = |byte: u8| match byte {
                    b'0'..=b'9' => Ok(byte - b'0'),
                    b'a'..=b'f' => Ok(byte - b'a' + 10),
                    _ => Err(DigestError),
                };
                let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| DigestError)?;
                let mut bytes = [0; 32];
                for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = digit(pair[0])? << 4 | digit(pair[1])?;
                }
                Ok(Self(bytes))
            }
        }

        impl TryFrom<String> for $name {
            type Error = DigestError;

            fn try_from(text: String) -> Result<Self, DigestError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    };
}

digest_id! {
    /// An image of the store: what its layers are and what it says about itself, as a digest.
    ImageId
}

digest_id! {
    /// Files that a fresh workspace begins with, as the digest of their archive.
    SeedId
}

/// A text that is not the id of an image, nor of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 of 0-9 a-f")]
pub struct DigestError;

/// Grows each time a session gets another sandbox or a sandbox is remade: the fencing token.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Generation(pub u64);

impl Generation {
    /// The first generation of anything.
    pub const FIRST: Self = Self(1);

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one effect: which sandbox, which generation of it, and a number that is never used twice
/// by one kernel. It is the idempotency key, and it makes late completions harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectId {
    /// The sandbox the effect is for.
    pub sandbox: SandboxId,
    /// Its generation when the effect was decided.
    pub generation: Generation,
    /// Unique within one run of the kernel.
    pub n: u64,
}

/// The name of a template: 1 to 64 of `a-z 0-9 . _ -`, starting with a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._-]{0,63}$"))]
pub struct TemplateName(Arc<str>);

impl TemplateName {
    /// Longest name accepted.
    pub const MAX_LEN: usize = 64;

    /// Checks and wraps a name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let tail_ok =
            |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'.' | b'_' | b'-');
        let head_ok = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = name.as_bytes();
        if bytes.len() > Self::MAX_LEN
            || !bytes.first().copied().is_some_and(head_ok)
            || !bytes.iter().copied().all(tail_ok)
        {
            return Err(NameError);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that cannot name a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a template name is 1 to 64 of a-z 0-9 . _ - and starts with a letter or digit")]
pub struct NameError;

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TemplateName({})", self.0)
    }
}

impl TryFrom<String> for TemplateName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(&name)
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_names_are_checked() {
        for good in ["a", "default", "code-interpreter", "py3.11_slim", &"x".repeat(64)] {
            assert!(TemplateName::new(good).is_ok(), "{good} should be accepted");
        }
        for bad in ["", "A", "-a", ".a", "_a", "a/b", "a b", "ä", "../x", &"x".repeat(65)] {
            assert_eq!(TemplateName::new(bad), Err(NameError), "{bad} should be refused");
        }
    }

    #[test]
    fn ids_read_back_what_they_print() {
        let id = SandboxId::from_u128(0x0192_f3a0_0000_7000_8000_0000_0000_0001);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("not-an-id".parse::<LeaseId>().is_err());
        let image = ImageId::from_bytes(std::array::from_fn(|index| index as u8 * 8));
        assert_eq!(image.to_string().parse(), Ok(image));
        assert!(image.to_string().starts_with("000810"));
        for bad in ["", "00", &"0".repeat(63), &"A".repeat(64), &"g".repeat(64)] {
            assert_eq!(bad.parse::<ImageId>(), Err(DigestError), "{bad}");
        }
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
    }
}
