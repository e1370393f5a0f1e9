//! The id of a request in the log and in answers: the client's own, if it sent one that can be
//! printed, or a new one.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that has the id of a request.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const LENGTH_MAX: usize = 128;

/// Makes ids that no other run of the server makes.
#[derive(Debug)]
pub struct RequestIds {
    run: u32,
    made: AtomicU64,
}

impl RequestIds {
    /// Ids that differ from those of an earlier run.
    pub(crate) fn new() -> Self {
        // Without random bits ids of two runs may be the same, which costs nothing but clarity.
        Self { run: getrandom::u32().unwrap_or_default(), made: AtomicU64::new(0) }
    }

    /// The id of a request. Its bytes are always visible ASCII.
    pub fn of(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(X_REQUEST_ID) {
            Some(given) if is_fit(given.as_bytes()) => given.clone(),
            Some(_) | None => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        let text = format!("{:08x}-{n:x}", self.run);
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("none"))
    }
}

fn is_fit(id: &[u8]) -> bool {
    let fits =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=LENGTH_MAX).contains(&id.len()) && id.iter().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_of_the_client_is_used_if_printable() {
        let ids = RequestIds::new();
        let of = |id: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            ids.of(&headers)
        };
        let longest = "x".repeat(LENGTH_MAX);
        for good in ["abc", "A-1_2.3:4", &longest] {
            assert_eq!(of(good.as_bytes()), good);
        }
        let longer = "x".repeat(LENGTH_MAX + 1);
        for bad in ["", "a b", "a\"b", "{}", &longer] {
            assert_ne!(of(bad.as_bytes()), bad);
        }
        assert_ne!(of(b"\xff"), of(b"\xff"), "each gets one of its own");
    }
}
