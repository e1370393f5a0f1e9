//! Settings of the API. Every limit has a default that is safe on a laptop.

use std::time::Duration;

/// How many bytes an archive may have.
pub(crate) const ARCHIVE_BYTES_MAX: u64 = 16 << 30;

/// Settings of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names under which the server may be addressed, besides loopback ones and plain addresses.
    pub hosts: Vec<String>,
    /// Origins whose pages may call the API from a browser; none if empty.
    pub cors_origins: Vec<String>,
    /// Requests that one key may send in a second; no limit if not given.
    pub rate_limit_per_s: Option<u32>,
    /// Requests that may be worked on at once.
    pub max_requests: u32,
    /// Streams, terminals and connections to ports that one key may have open at a time.
    pub max_lasting_per_key: u32,
    /// Size of a JSON body.
    pub json_bytes_max: u64,
    /// Size of the body of an exec, which may carry the input of a program.
    pub exec_bytes_max: u64,
    /// Bytes of bodies and of unread answers that one key may have in memory while other keys have
    /// none; a key may have half of what other keys leave of twice as many.
    pub body_memory_bytes: u64,
    /// How long a body may pause.
    pub body_stall: Duration,
    /// How long a body that is read whole may take. Files and archives may take as long as they
    /// like.
    pub body_total: Duration,
    /// How long an image may take to arrive.
    pub image_total: Duration,
    /// How many entries an archive may have, up and down.
    pub archive_entries_max: u64,
    /// How many bytes an archive may have before it is compressed, up and down.
    pub archive_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            rate_limit_per_s: None,
            max_requests: 4096,
            // A quarter of the connections that there are.
            max_lasting_per_key: 1024,
            json_bytes_max: 1 << 20,
            // 16 MiB of input as base64, and the rest of the request.
            exec_bytes_max: 23 << 20,
            body_memory_bytes: 128 << 20,
            body_stall: Duration::from_secs(30),
            body_total: Duration::from_mins(1),
            image_total: Duration::from_hours(1),
            archive_entries_max: 100_000,
            archive_bytes_max: ARCHIVE_BYTES_MAX,
        }
    }
}
