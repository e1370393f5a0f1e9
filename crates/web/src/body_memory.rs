//! Limits the memory of all request bodies together. Bytes count when they arrive, not when they
//! are announced, so that a client cannot reserve memory with a header alone. The first few KiB of
//! each body are free: the number of requests bounds them, and small requests pass while large ones
//! are refused. No request waits here: without room it is refused and asked to retry.

use std::sync::Arc;

use model::{ErrorCode, Refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refused::Refused;

const FREE_BYTES: u64 = 16 << 10;
const UNIT_BYTES: u64 = 1 << 10;

/// Memory for bodies.
pub struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    /// So many bytes for all bodies together.
    pub fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        Self(Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))))
    }
}

/// The share of one body. Returned on drop, so it must live as long as the bytes.
#[derive(Default)]
pub struct Share {
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Grows to a body of this size, if there is room.
    pub fn grow_to(&mut self, memory: &BodyMemory, bytes: u64) -> Result<(), Refused> {
        let units = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let more = units.saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let taken = u32::try_from(more).ok().and_then(|more| {
            let memory = Arc::clone(&memory.0);
            memory.try_acquire_many_owned(more).ok()
        });
        let Some(taken) = taken else {
            let cause = "the bodies of other requests use all memory for bodies";
            return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000).into());
        };
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
        Ok(())
    }

    /// Returns memory that is no longer used.
    pub fn shrink_to(&mut self, bytes: u64) {
        let units = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES);
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        if let Some(held) = &mut self.held {
            drop(held.split(held.num_permits().saturating_sub(units)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_memory_above_the_limit_is_refused_until_some_is_returned() {
        let memory = BodyMemory::new(100 << 10);
        let mut first = Share::default();
        for kib in [1, 16, 40, 30, 76] {
            first.grow_to(&memory, kib << 10).unwrap();
        }
        assert_eq!(memory.0.available_permits(), 40);
        let mut second = Share::default();
        let refused = second.grow_to(&memory, (56 << 10) + 1).unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::Overloaded);
        assert_eq!(refused.refusal.retry_after_ms, Some(1000));
        second.grow_to(&memory, 56 << 10).unwrap();
        let mut small = Share::default();
        small.grow_to(&memory, FREE_BYTES).unwrap();
        assert!(small.grow_to(&memory, FREE_BYTES + 1).is_err());
        first.shrink_to(80 << 10);
        assert!(small.grow_to(&memory, FREE_BYTES + 1).is_err(), "it never had so much");
        first.shrink_to(26 << 10);
        assert_eq!(memory.0.available_permits(), 50);
        drop(first);
        small.grow_to(&memory, FREE_BYTES + 1).unwrap();
        drop((second, small));
        assert_eq!(memory.0.available_permits(), 100);
    }
}
