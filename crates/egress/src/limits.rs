//! How much of the way out one sandbox, one key and the whole process may use. It must never make one
//! sandbox wait for another's turn: what is full stays in the backlog of its own socket.

use std::sync::Mutex;
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
    /// New connections per second, in the long run.
    pub new_connections_per_second: u32,
    /// New connections at once.
    pub new_connections_burst: u32,
    /// Questions for names per second, in the long run.
    pub questions_per_second: u32,
    /// Questions for names at once.
    pub questions_burst: u32,
    /// Bytes in both directions together while the sandbox is attached.
    pub bytes: Option<u64>,
    /// Bytes per second in both directions together.
    pub bytes_per_second: Option<u64>,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_of_key: 2048,
            new_connections_per_second: 100,
            new_connections_burst: 256,
            questions_per_second: 100,
            questions_burst: 500,
            bytes: None,
            bytes_per_second: None,
        }
    }
}

/// Tokens that come back at a steady rate.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    most: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most, state: Mutex::new((most, Instant::now())) }
    }

    /// Takes one if there is one.
    pub(crate) fn try_take(&self) -> bool {
        self.try_take_at(Instant::now())
    }

    fn try_take_at(&self, now: Instant) -> bool {
        let mut state = self.filled(now);
        let has_one = state.0 >= 1.0;
        if has_one {
            state.0 -= 1.0;
        }
        has_one
    }

    /// Takes so many, also more than there are, and says how long to wait until the debt is paid.
    pub(crate) fn owe(&self, count: f64) -> Duration {
        self.owe_at(count, Instant::now())
    }

    fn owe_at(&self, count: f64, now: Instant) -> Duration {
        let mut state = self.filled(now);
        state.0 -= count;
        if state.0 >= 0.0 {
            return Duration::ZERO;
        }
        let seconds = (-state.0 / self.per_second).min(3600.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }

    fn filled(&self, now: Instant) -> std::sync::MutexGuard<'_, (f64, Instant)> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let passed = now.saturating_duration_since(state.1).as_secs_f64();
        state.0 = passed.mul_add(self.per_second, state.0).min(self.most);
        state.1 = now;
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
    fn a_debt_is_waited_for() {
        let bucket = Bucket::new(100.0, 100.0);
        let start = Instant::now();
        assert_eq!(bucket.owe_at(100.0, start), Duration::ZERO);
        assert_eq!(bucket.owe_at(50.0, start), Duration::from_millis(500));
        let later = start + Duration::from_millis(500);
        assert_eq!(bucket.owe_at(1.0, later), Duration::from_millis(10));
    }
}
