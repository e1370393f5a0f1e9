//! How fast one key may call: a bucket of a second's worth of requests that fills steadily.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use model::{KeyId, KeyLimit, Refusal};
use tokio::time::Instant;

/// The buckets of the keys that called.
#[derive(Debug, Default)]
pub struct Rate {
    buckets: Mutex<BTreeMap<KeyId, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Rate {
    /// Lets one request through if the key may send so many in a second, or says when the next may
    /// come. Only keys that work get here, so there are never more buckets than keys.
    pub fn take(&self, key: KeyId, most_per_s: u32, now: Instant) -> Result<(), Refusal> {
        let per_s = f64::from(most_per_s.max(1));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(key).or_insert_with(|| Bucket { tokens: per_s, filled_at: now });
        let since = now.saturating_duration_since(bucket.filled_at).as_secs_f64();
        bucket.tokens = (bucket.tokens + since * per_s).min(per_s);
        bucket.filled_at = now;
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let missing_s = (1.0 - bucket.tokens) / per_s;
        #[expect(clippy::cast_sign_loss, reason = "a bucket never holds more than one token here")]
        let wait_ms = (missing_s * 1000.0).ceil() as u64;
        let (most, limit) = (most_per_s.into(), KeyLimit::RequestsPerS);
        Err(limit.exceeded(most, most, 1).retry_after(wait_ms))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_limit_allows_a_burst_of_one_second() {
        let rate = Rate::default();
        let (a, b) = (KeyId::from_u128(1), KeyId::from_u128(2));
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..4 {
            assert!(rate.take(a, 4, start).is_ok());
        }
        assert_eq!(rate.take(a, 4, start).unwrap_err().retry_after_ms, Some(250));
        assert!(rate.take(b, 4, start).is_ok(), "each key has its own");
        assert_eq!(rate.take(a, 4, at(100)).unwrap_err().retry_after_ms, Some(150));
        assert!(rate.take(a, 4, at(250)).is_ok());
        assert!(rate.take(a, 4, at(251)).is_err());
        for _ in 0..4 {
            assert!(rate.take(a, 4, at(60_000)).is_ok(), "and never more than a second's worth");
        }
        assert!(rate.take(a, 4, at(60_000)).is_err());
        assert!(rate.take(a, 4, start).is_err(), "a clock that jumps back adds nothing");
        let refusal = rate.take(a, 2, start).unwrap_err();
        assert_eq!(refusal.code, model::ErrorCode::QuotaExceeded);
        assert!(refusal.cause.contains("requests_per_s of this key is 2"), "{refusal}");
    }
}
