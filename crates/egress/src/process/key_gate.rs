//! What all sandboxes of a key in this process may use together: the share of this process in the
//! limits of the key. It must never let more through than that share, except what was let through
//! before the share became smaller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{Bucket, EgressLimits};

#[derive(Debug)]
pub(super) struct KeyGate {
    limits: EgressLimits,
    places: Arc<Semaphore>,
    share: Mutex<Share>,
    pub new_connections: Option<Bucket>,
    pub bandwidth: Option<Bucket>,
}

#[derive(Debug)]
struct Share {
    /// Among how many processes the limits are divided.
    parts: u32,
    /// The places there are.
    places: usize,
    /// Places in use that there are no more: they go when they become free.
    owed: usize,
}

/// A place of a connection.
#[derive(Debug)]
pub(super) struct KeyPlace {
    gate: Arc<KeyGate>,
    permit: Option<OwnedSemaphorePermit>,
}

impl KeyGate {
    pub(super) fn new(limits: EgressLimits, parts: u32) -> Self {
        let places = limits.connections_of_key as usize;
        let rate = |rate: f64| Bucket::of_a_second(rate);
        let this = Self {
            limits,
            places: Arc::new(Semaphore::new(places)),
            share: Mutex::new(Share { parts: 1, places, owed: 0 }),
            new_connections: limits.new_connections_per_second_of_key.map(f64::from).map(rate),
            bandwidth: limits.bytes_per_second_of_key.map(as_rate).map(rate),
        };
        this.divide(parts);
        this
    }

    fn share(&self) -> MutexGuard<'_, Share> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of the key are divided among so many processes from now on.
    pub(super) fn divide(&self, parts: u32) {
        let parts = parts.max(1);
        let mut share = self.share();
        if share.parts == parts {
            return;
        }
        share.parts = parts;
        let places = (self.limits.connections_of_key / parts).max(1) as usize;
        if places > share.places {
            let more = places - share.places;
            let kept = share.owed.min(more);
            share.owed -= kept;
            self.places.add_permits(more - kept);
        } else {
            let fewer = share.places - places;
            share.owed += fewer - self.places.forget_permits(fewer);
        }
        share.places = places;
        drop(share);
        let part = |rate: f64| rate / f64::from(parts);
        if let (Some(bucket), Some(rate)) =
            (&self.new_connections, self.limits.new_connections_per_second_of_key)
        {
            bucket.set_rate(part(rate.into()));
        }
        if let (Some(bucket), Some(rate)) = (&self.bandwidth, self.limits.bytes_per_second_of_key) {
            bucket.set_rate(part(as_rate(rate)));
        }
    }

    /// A place if one is free now.
    pub(super) fn try_place(self: &Arc<Self>) -> Option<KeyPlace> {
        let permit = self.places.clone().try_acquire_owned().ok();
        permit.map(|permit| KeyPlace { gate: self.clone(), permit: Some(permit) })
    }

    /// Waits for a place.
    pub(super) async fn place(self: &Arc<Self>) -> Option<KeyPlace> {
        let permit = self.places.clone().acquire_owned().await.ok()?;
        Some(KeyPlace { gate: self.clone(), permit: Some(permit) })
    }
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        let mut share = self.gate.share();
        if share.owed > 0
            && let Some(permit) = self.permit.take()
        {
            share.owed -= 1;
            permit.forget();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub(super) const fn as_rate(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(connections_of_key: u32) -> Arc<KeyGate> {
        let limits = EgressLimits { connections_of_key, ..EgressLimits::default() };
        Arc::new(KeyGate::new(limits, 1))
    }

    fn taken(gate: &Arc<KeyGate>) -> Vec<KeyPlace> {
        std::iter::from_fn(|| gate.try_place()).collect()
    }

    #[test]
    fn a_share_that_becomes_smaller_takes_places_as_they_become_free() {
        let gate = gate(8);
        let mut places = taken(&gate);
        assert_eq!(places.len(), 8);
        gate.divide(4);
        places.truncate(2);
        assert_eq!(taken(&gate).len(), 0, "two are in use, and two are the share");
        places.truncate(1);
        assert_eq!(taken(&gate).len(), 1);
        gate.divide(1);
        assert_eq!(taken(&gate).len(), 7);
    }

    #[test]
    fn a_share_that_becomes_smaller_and_larger_again_owes_nothing() {
        let gate = gate(6);
        let places = taken(&gate);
        gate.divide(3);
        gate.divide(2);
        gate.divide(1);
        drop(places);
        assert_eq!(taken(&gate).len(), 6);
        gate.divide(100);
        assert_eq!(taken(&gate).len(), 1, "never none at all");
    }
}
