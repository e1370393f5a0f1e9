//! Per-key limit on long-lived connections: tunnels, terminals, watches, followed logs and proxied
//! answers. The server has a limited number of connections, so no key may hold more than its share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{ErrorCode, KeyId, Refusal};

use crate::refused::Refused;

/// How many long-lived connections each key has.
pub struct LongLived {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    most: u32,
}

/// One long-lived connection of a key. Dropped, it no longer counts.
pub struct LongLivedSlot {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    key: KeyId,
}

impl LongLived {
    /// At most `most` for each key.
    pub fn new(most: u32) -> Self {
        Self { held: Arc::default(), most }
    }

    /// Counts one more for a key, or refuses it.
    pub fn begin(&self, key: KeyId) -> Result<LongLivedSlot, Refused> {
        // A count is consistent after every step, so a poisoned lock is harmless.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(key).or_default();
        if *count >= self.most {
            let cause = format!(
                "the key already has {} streams, terminals and connections open",
                self.most
            );
            return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000).into());
        }
        *count += 1;
        Ok(LongLivedSlot { held: Arc::clone(&self.held), key })
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
    use super::*;

    #[test]
    fn long_lived_connections_are_limited_per_key() {
        let (ada, eve) = (KeyId::from_u128(1), KeyId::from_u128(2));
        let long_lived = LongLived::new(2);
        let held = [long_lived.begin(ada), long_lived.begin(ada)];
        assert!(held.iter().all(Result::is_ok));
        let refused = long_lived.begin(ada).err().map(|refused| refused.refusal.code);
        assert_eq!(refused, Some(ErrorCode::Overloaded));
        assert!(long_lived.begin(eve).is_ok(), "others have theirs");
        drop(held);
        assert!(long_lived.begin(ada).is_ok());
        assert!(long_lived.held.lock().unwrap().is_empty(), "who has none is not remembered");
    }
}
