//! How much of the way out one sandbox, one key and the whole process may use. It must never make one
//! sandbox wait for another's turn: what is full stays in the backlog of its own socket.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressLimits {
    /// Connections at the same time.
    pub connections: u32,
    /// Connections at the same time of all sandboxes of a key.
    pub connections_of_key: u32,
    /// New connections per second in the long run, and at once.
    pub new_connections_per_second: u32,
    /// The same for all sandboxes of a key together.
    pub new_connections_per_second_of_key: Option<u32>,
    /// Questions for names per second, in the long run.
    pub questions_per_second: u32,
    /// Questions for names at once.
    pub questions_burst: u32,
    /// Bytes in both directions together while the sandbox is attached.
    pub bytes: Option<u64>,
    /// Bytes per second in both directions together.
    pub bytes_per_second: Option<u64>,
    /// The same for all sandboxes of a key together.
    pub bytes_per_second_of_key: Option<u64>,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_of_key: 2048,
            new_connections_per_second: 100,
            new_connections_per_second_of_key: None,
            questions_per_second: 100,
            questions_burst: 500,
            bytes: None,
            bytes_per_second: None,
            bytes_per_second_of_key: None,
        }
    }
}

/// Tokens that come back at a steady rate.
#[derive(Debug)]
pub(crate) struct Bucket {
    state: Mutex<Tokens>,
}

#[derive(Debug)]
struct Tokens {
    per_second: f64,
    most: f64,
    now: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        let state = Tokens { per_second, most, now: most, at: Instant::now() };
        Self { state: Mutex::new(state) }
    }

    /// A full one that holds what comes in a second, and at least one.
    pub(crate) fn of_a_second(per_second: f64) -> Self {
        Self::new(per_second, per_second.max(1.0))
    }

    /// From now on so much comes, and as much is held.
    pub(crate) fn set_rate(&self, per_second: f64) {
        let mut state = self.filled(Instant::now());
        state.per_second = per_second;
        state.most = per_second.max(1.0);
        state.now = state.now.min(state.most);
    }

    /// Takes one if there is one.
    pub(crate) fn try_take(&self) -> bool {
        self.try_take_at(Instant::now())
    }

    fn try_take_at(&self, now: Instant) -> bool {
        let mut state = self.filled(now);
        let has_one = state.now >= 1.0;
        if has_one {
            state.now -= 1.0;
        }
        has_one
    }

    /// Takes so many, also more than there are, and says how long to wait until the debt is paid.
    pub(crate) fn owe(&self, count: f64) -> Duration {
        self.owe_at(count, Instant::now())
    }

    fn owe_at(&self, count: f64, now: Instant) -> Duration {
        let mut state = self.filled(now);
        state.now -= count;
        if state.now >= 0.0 {
            return Duration::ZERO;
        }
        let seconds = (-state.now / state.per_second).min(3600.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn filled(&self, now: Instant) -> MutexGuard<'_, Tokens> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.at).as_secs_f64();
        state.now = passed.mul_add(state.per_second, state.now).min(state.most);
        state.at = now;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = Bucket::new(10.0, 3.0);
        let start = Instant::now();
        let taken = |now| (0..5).filter(|_| bucket.try_take_at(now)).count();
        assert_eq!(taken(start), 3);
        assert_eq!(taken(start + Duration::from_millis(250)), 2);
        assert_eq!(taken(start + Duration::from_mins(1)), 3);
    }

    #[test]
    fn a_bucket_of_a_second_follows_a_change_of_its_rate() {
        let bucket = Bucket::of_a_second(8.0);
        bucket.set_rate(4.0);
        let start = Instant::now();
        let taken = |now| (0..20).filter(|_| bucket.try_take_at(now)).count();
        assert_eq!(taken(start), 4);
        assert_eq!(taken(start + Duration::from_mins(1)), 4);
        // A rate below one gives one at a time.
        bucket.set_rate(0.5);
        assert_eq!(taken(start + Duration::from_mins(2)), 1);
    }

    #[test]
    fn a_debt_is_waited_for() {
        let bucket = Bucket::new(100.0, 100.0);
        let start = Instant::now();
        assert_eq!(bucket.owe_at(100.0, start), Duration::ZERO);
        assert_eq!(bucket.owe_at(50.0, start), Duration::from_millis(500));
        let later = start + Duration::from_millis(500);
        assert_eq!(bucket.owe_at(1.0, later), Duration::from_millis(10));
    }
}
