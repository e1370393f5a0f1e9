//! Exchanges that last: tunnels, terminals, watches, logs that are followed, answers of servers inside.
//! Each takes a connection for as long as it likes, and there are only so many for everybody; so no
//! key may have more than its share of them at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{ErrorCode, KeyId, Refusal};

use crate::refused::Refused;

/// How many of them each key has.
pub struct Lasting {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    most: u32,
}

/// One of them. Dropped, it is over.
pub struct Place {
    held: Arc<Mutex<BTreeMap<KeyId, u32>>>,
    key: KeyId,
}

impl Lasting {
    /// So many for each key.
    pub fn new(most: u32) -> Self {
        Self { held: Arc::default(), most }
    }

    /// A place for one more of a key, if it has not too many.
    pub fn begin(&self, key: KeyId) -> Result<Place, Refused> {
        // A count is whole after every step, so one that a panic left is good.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(key).or_default();
        if *count >= self.most {
            let cause =
                format!("{} streams, terminals and connections are open already", self.most);
            return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000).into());
        }
        *count += 1;
        Ok(Place { held: Arc::clone(&self.held), key })
    }
}

impl Drop for Place {
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
        let lasting = Lasting::new(2);
        let held = [lasting.begin(ada), lasting.begin(ada)];
        assert!(held.iter().all(Result::is_ok));
        let refused = lasting.begin(ada).err().map(|refused| refused.refusal.code);
        assert_eq!(refused, Some(ErrorCode::Overloaded));
        assert!(lasting.begin(eve).is_ok(), "others have theirs");
        drop(held);
        assert!(lasting.begin(ada).is_ok());
        assert!(lasting.held.lock().unwrap().is_empty(), "who has none is not remembered");
    }
}
