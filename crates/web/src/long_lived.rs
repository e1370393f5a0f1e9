//! Per-key limit on long-lived connections: tunnels, terminals, watches, followed logs and proxied
//! answers. The server has a limited number of connections, so no key may hold more than its share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{KeyId, KeyLimit};

use crate::key_limits::EffectiveLimits;
use crate::refused::Refused;

/// How many long-lived connections each key has.
pub struct LongLived {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    limits: EffectiveLimits,
}

/// One long-lived connection of a key. Dropped, it no longer counts.
pub struct LongLivedSlot {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    key: KeyId,
}

impl LongLived {
    /// As many as the limit `streams` of each key.
    pub fn new(limits: EffectiveLimits) -> Self {
        Self { held: Arc::default(), limits }
    }

    /// Counts one more for a key, or refuses it.
    pub fn begin(&self, key: KeyId) -> Result<LongLivedSlot, Refused> {
        let most = self.limits.of(key).streams.unwrap_or(u32::MAX);
        // A count is consistent after every step, so a poisoned lock is harmless.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.get(&key).copied().unwrap_or_default();
        if count >= most {
            return Err(KeyLimit::Streams.exceeded(most.into(), count.into(), 1).into());
        }
        held.insert(key, count + 1);
        Ok(LongLivedSlot { held: Arc::clone(&self.held), key })
    }

    /// How many a key has.
    pub fn count(&self, key: KeyId) -> u32 {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&key).copied().unwrap_or_default()
    }
}

impl Drop for LongLivedSlot {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ErrorCode, KeyLimits, Role};

    use super::*;
    use crate::app::App;

    #[tokio::test]
    async fn long_lived_connections_are_limited_per_key() {
        let (app, _stop) = App::for_tests().await;
        let limits = KeyLimits { streams: Some(2), ..KeyLimits::default() };
        let made =
            app.engine.create_limited_key(None, "eve", Role::Use, None, limits).await.unwrap();
        let (eve, ada) = (made.record.id, KeyId::from_u128(2));
        let held = [app.long_lived.begin(eve), app.long_lived.begin(eve)];
        assert!(held.iter().all(Result::is_ok));
        let refusal = app.long_lived.begin(eve).err().unwrap().refusal;
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QuotaExceeded, Some(1000)));
        assert!(refusal.cause.contains("streams of this key is 2"), "{refusal}");
        assert!(app.long_lived.begin(ada).is_ok(), "others have theirs");
        assert_eq!(app.long_lived.count(eve), 2);
        let more = KeyLimits { streams: Some(3), ..limits };
        app.engine.limit_key(eve, more).await.unwrap();
        assert!(app.long_lived.begin(eve).is_ok(), "a change holds at once");
        drop(held);
        assert!(
            app.long_lived.held.lock().unwrap().is_empty(),
            "one without any is not remembered"
        );
    }
}
