//! What one key may use. Each limit has one name, in the configuration, the API, the command line,
//! the metrics and the refusal. A limit that is not given does not bind.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, Refusal};

/// After how long a caller above a limit should try again, if nothing better is known.
const RETRY_AFTER_MS: u64 = 1_000;

/// The limits of a key, or the defaults of a role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyLimits {
    /// Most live sandboxes, leased or of sessions. Idle ones of its own sessions give way first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_sandboxes: Option<u32>,
    /// Most sessions that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Most memory of its live sandboxes, as the sum of their limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Most bytes of its workspaces and archives, as last measured. From then on no session is
    /// created or forked and no file is written over the API; programs are not stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Most requests in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u32>,
    /// Most streams, terminals, watches and tunnels at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// Most bytes of request bodies and answers in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<u64>,
    /// Most lifecycle events that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
}

/// One of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyLimit {
    /// `live_sandboxes`.
    LiveSandboxes,
    /// `sessions`.
    Sessions,
    /// `memory_mb`.
    MemoryMb,
    /// `stored_bytes`.
    StoredBytes,
    /// `requests_per_s`.
    RequestsPerS,
    /// `streams`.
    Streams,
    /// `body_bytes`.
    BodyBytes,
    /// `events`.
    Events,
}

/// What a key uses of the limits on sandboxes and sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyUse {
    /// Live sandboxes that are not ending.
    pub live_sandboxes: u32,
    /// Sessions that have not ended.
    pub sessions: u32,
    /// The memory of its live sandboxes.
    pub memory_mb: u64,
    /// The measured bytes of its workspaces and archives.
    pub stored_bytes: u64,
}

impl KeyLimit {
    /// All limits.
    pub const ALL: [Self; 8] = [
        Self::LiveSandboxes,
        Self::Sessions,
        Self::MemoryMb,
        Self::StoredBytes,
        Self::RequestsPerS,
        Self::Streams,
        Self::BodyBytes,
        Self::Events,
    ];

    /// Its name everywhere.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LiveSandboxes => "live_sandboxes",
            Self::Sessions => "sessions",
            Self::MemoryMb => "memory_mb",
            Self::StoredBytes => "stored_bytes",
            Self::RequestsPerS => "requests_per_s",
            Self::Streams => "streams",
            Self::BodyBytes => "body_bytes",
            Self::Events => "events",
        }
    }

    /// The refusal of a request that needs `more` and would exceed this limit. One that could not be
    /// granted even if nothing were in use has no time after which to retry.
    pub fn exceeded(self, most: u64, used: u64, more: u64) -> Refusal {
        let limit = format!("the limit {self} of this key is {most}");
        if more > most {
            let cause = format!("{limit}, and this request alone needs {more}");
            return Refusal::new(ErrorCode::QuotaExceeded, cause);
        }
        let cause = format!("{limit}, {used} are in use, and this request needs {more} more");
        Refusal::new(ErrorCode::QuotaExceeded, cause).retry_after(RETRY_AFTER_MS)
    }
}

impl fmt::Display for KeyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl KeyLimits {
    /// The value of one limit.
    pub fn get(&self, limit: KeyLimit) -> Option<u64> {
        match limit {
            KeyLimit::LiveSandboxes => self.live_sandboxes.map(u64::from),
            KeyLimit::Sessions => self.sessions.map(u64::from),
            KeyLimit::MemoryMb => self.memory_mb,
            KeyLimit::StoredBytes => self.stored_bytes,
            KeyLimit::RequestsPerS => self.requests_per_s.map(u64::from),
            KeyLimit::Streams => self.streams.map(u64::from),
            KeyLimit::BodyBytes => self.body_bytes,
            KeyLimit::Events => self.events,
        }
    }

    /// These limits, and `defaults` where one is not given.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            live_sandboxes: self.live_sandboxes.or(defaults.live_sandboxes),
            sessions: self.sessions.or(defaults.sessions),
            memory_mb: self.memory_mb.or(defaults.memory_mb),
            stored_bytes: self.stored_bytes.or(defaults.stored_bytes),
            requests_per_s: self.requests_per_s.or(defaults.requests_per_s),
            streams: self.streams.or(defaults.streams),
            body_bytes: self.body_bytes.or(defaults.body_bytes),
            events: self.events.or(defaults.events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_limits_come_before_defaults() {
        let own = KeyLimits { sessions: Some(3), ..KeyLimits::default() };
        let defaults = KeyLimits { sessions: Some(9), streams: Some(7), ..KeyLimits::default() };
        let both = own.or(defaults);
        assert_eq!((both.sessions, both.streams, both.events), (Some(3), Some(7), None));
    }

    #[test]
    fn each_limit_has_the_name_of_its_field() {
        for limit in KeyLimit::ALL {
            let text = format!("{{\"{limit}\":5}}");
            let read: KeyLimits = serde_json::from_str(&text).unwrap();
            assert_eq!(read.get(limit), Some(5), "{limit}");
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        assert!(serde_json::from_str::<KeyLimits>("{\"sandboxes\":5}").is_err());
    }

    #[test]
    fn refusal_names_the_limit_its_value_and_the_use() {
        let refusal = KeyLimit::Streams.exceeded(4, 4, 1);
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QuotaExceeded, Some(1_000)));
        assert!(refusal.to_string().contains("the limit streams of this key is 4"), "{refusal}");
        assert!(refusal.is_retryable());
        let never = KeyLimit::MemoryMb.exceeded(100, 0, 512);
        assert!(never.to_string().contains("alone needs 512"), "{never}");
        assert!(!never.is_retryable() && never.retry_after_ms.is_none());
    }
}
