//! The limits of a key in requests and answers: what is asked for, what holds, and what is used.

use model::{KeyLimit, KeyLimits, KeyUse};
use serde::{Deserialize, Deserializer, Serialize};

/// A change of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyChange {
    /// Its own limits. One that is left out stays as it is, and `null` removes one: then that of its
    /// role holds.
    pub limits: KeyLimitsChange,
}

/// Defines a struct with a field for each limit, and what it does to them.
macro_rules! changes {
    ($($(#[$about:meta])* $name:ident: $number:ty,)*) => {
        /// A change of limits. One that is left out stays as it is, and `null` removes one.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub struct KeyLimitsChange {
            $(
                $(#[$about])*
                #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
                #[cfg_attr(feature = "schema", schema(value_type = Option<$number>))]
                pub $name: Option<Option<$number>>,
            )*
        }

        impl KeyLimitsChange {
            /// The limits after the change.
            #[must_use]
            pub fn applied_to(self, limits: KeyLimits) -> KeyLimits {
                KeyLimits { $($name: self.$name.unwrap_or(limits.$name),)* }
            }
        }
    };
}

changes! {
    /// Most live sandboxes.
    live_sandboxes: u32,
    /// Most sessions that have not ended.
    sessions: u32,
    /// Most memory of its live sandboxes, as the sum of their limits.
    memory_mb: u64,
    /// Most bytes of its workspaces and archives.
    stored_bytes: u64,
    /// Most requests in a second.
    requests_per_s: u32,
    /// Most streams, terminals, watches and tunnels at a time.
    streams: u32,
    /// Most bytes of request bodies and answers in flight.
    body_bytes: u64,
    /// Most lifecycle events that are kept.
    events: u64,
}

/// A field that is there, even if it is `null`.
#[expect(clippy::option_option, reason = "left out and null differ")]
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// What a key uses of what is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyUsed {
    /// Live sandboxes that are not ending.
    pub live_sandboxes: u32,
    /// Sessions that have not ended.
    pub sessions: u32,
    /// The memory of its live sandboxes.
    pub memory_mb: u64,
    /// The measured bytes of its workspaces and archives.
    pub stored_bytes: u64,
    /// Open streams, terminals, watches and tunnels.
    pub streams: u32,
    /// Bytes of request bodies and answers in flight. The first few KiB of each are not counted.
    pub body_bytes: u64,
    /// Stored lifecycle events.
    pub events: u64,
}

impl KeyUsed {
    /// With what a kernel counts.
    pub fn new(counted: KeyUse, streams: u32, body_bytes: u64, events: u64) -> Self {
        let KeyUse { live_sandboxes, sessions, memory_mb, stored_bytes } = counted;
        Self { live_sandboxes, sessions, memory_mb, stored_bytes, streams, body_bytes, events }
    }

    /// What is used of one limit; a rate has no amount.
    pub fn of(&self, limit: KeyLimit) -> Option<u64> {
        Some(match limit {
            KeyLimit::LiveSandboxes => self.live_sandboxes.into(),
            KeyLimit::Sessions => self.sessions.into(),
            KeyLimit::MemoryMb => self.memory_mb,
            KeyLimit::StoredBytes => self.stored_bytes,
            KeyLimit::RequestsPerS => return None,
            KeyLimit::Streams => self.streams.into(),
            KeyLimit::BodyBytes => self.body_bytes,
            KeyLimit::Events => self.events,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_limits_tells_null_from_left_out() {
        let limits = KeyLimits { sessions: Some(3), streams: Some(4), ..KeyLimits::default() };
        let change: KeyLimitsChange =
            serde_json::from_str(r#"{"sessions":null,"memory_mb":5}"#).unwrap();
        let expected = KeyLimits { streams: Some(4), memory_mb: Some(5), ..KeyLimits::default() };
        assert_eq!(change.applied_to(limits), expected);
        assert_eq!(serde_json::to_string(&change).unwrap(), r#"{"sessions":null,"memory_mb":5}"#);
        assert!(serde_json::from_str::<KeyLimitsChange>(r#"{"sandboxes":1}"#).is_err());
        assert!(serde_json::from_str::<KeyLimitsChange>(r#"{"sessions":-1}"#).is_err());
        assert!(serde_json::from_str::<KeyChange>("{}").is_err(), "a change must say something");
    }
}
