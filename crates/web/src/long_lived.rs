//! Exchanges that last: tunnels, terminals, watches, logs that are followed, answers of servers inside.
//! Each takes a connection for as long as it likes, and there are only so many for everybody; so no
//! key may have more than its share of them at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{ErrorCode, KeyId, Refusal};

use crate::refused::Refused;

/// How many of them each key has.
pub struct LongLived {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    most: u32,
}

/// One of them. Dropped, it is over.
pub struct LongLivedSlot {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    key: KeyId,
}

impl LongLived {
    /// So many for each key.
    pub fn new(most: u32) -> Self {
        Self { held: Arc::default(), most }
    }

    /// A place for one more of a key, if it has not too many.
    pub fn begin(&self, key: KeyId) -> Result<LongLivedSlot, Refused> {
        // A count is whole after every step, so one that a panic left is good.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(key).or_default();
        if *count >= self.most {
            let cause =
                format!("{} streams, terminals and connections are open already", self.most);
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
    fn a_key_has_its_share_and_no_more() {
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
