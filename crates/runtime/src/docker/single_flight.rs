//! Single flight: work that is done once for all waiting callers, in a task of its own. A caller
//! that stops waiting does not end the work, and all callers get its result. A failure may be kept
//! for a while, so that callers do not all retry at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

type Outcome<T, E> = Option<Result<T, E>>;

/// Work in progress by name, and recent failures.
pub(super) struct SingleFlight<T, E> {
    by_name: Mutex<BTreeMap<String, Shared<T, E>>>,
    failures_count: Duration,
}

struct Shared<T, E> {
    outcome: watch::Receiver<Outcome<T, E>>,
    /// Until when the result counts, once it is known.
    until: Arc<Mutex<Option<Instant>>>,
}

impl<T, E> Shared<T, E> {
    fn counts(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        match until {
            Some(until) => Instant::now() < until,
            // Unless the task ended without a result.
            None => self.outcome.has_changed().is_ok(),
        }
    }
}

/// A caller's share of work in progress.
pub(super) struct Flight<T, E> {
    outcome: watch::Receiver<Outcome<T, E>>,
}

impl<T: Clone, E: Clone> Flight<T, E> {
    /// Waits for the result; none if the task panicked.
    pub(super) async fn result(mut self) -> Option<Result<T, E>> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok()?;
        (*outcome).clone()
    }
}

impl<T, E> SingleFlight<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// `failures_count` is how long a failure is kept.
    pub(super) fn new(failures_count: Duration) -> Self {
        Self { by_name: Mutex::default(), failures_count }
    }

    /// Joins the work of this name, and starts it unless it is in progress. Must be called inside a
    /// tokio runtime.
    pub(super) fn join<W>(&self, name: &str, work: impl FnOnce() -> W) -> Flight<T, E>
    where
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.retain(|_, known| known.counts());
        if let Some(known) = by_name.get(name) {
            return Flight { outcome: known.outcome.clone() };
        }
        let (finish, outcome) = watch::channel(None);
        let until = Arc::new(Mutex::new(None));
        let known = Shared { outcome: outcome.clone(), until: Arc::clone(&until) };
        by_name.insert(name.to_owned(), known);
        let (work, failures_count) = (work(), self.failures_count);
        tasks::spawn(async move {
            let done = work.await;
            let counts = if done.is_ok() { Duration::ZERO } else { failures_count };
            let end = Instant::now() + counts;
            *until.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            finish.send_replace(Some(done));
        });
        Flight { outcome }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    fn flights(failures_count_s: u64) -> SingleFlight<u32, &'static str> {
        SingleFlight::new(Duration::from_secs(failures_count_s))
    }

    #[tokio::test(start_paused = true)]
    async fn single_flight_answers_all_callers_and_survives_those_that_stop_waiting() {
        let flights = flights(0);
        let begun = Arc::new(AtomicU32::new(0));
        let join = || {
            let begun = Arc::clone(&begun);
            flights.join("x", || async move {
                sleep(Duration::from_secs(5)).await;
                Ok(begun.fetch_add(1, Ordering::Relaxed))
            })
        };
        assert!(timeout(Duration::from_secs(1), join().result()).await.is_err());
        let (one, two) = tokio::join!(join().result(), join().result());
        assert_eq!((one, two), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(join().result().await, Some(Ok(1)), "a success is not remembered");
        let other = flights.join("y", || async { Ok(7) });
        assert_eq!(other.result().await, Some(Ok(7)), "by name");
    }

    #[tokio::test(start_paused = true)]
    async fn single_flight_keeps_failures_for_a_while() {
        let flights = flights(10);
        let fail = || flights.join("x", || async { Err("no") });
        let succeed = || flights.join("x", || async { Ok(1) });
        assert_eq!(fail().result().await, Some(Err("no")));
        sleep(Duration::from_secs(9)).await;
        assert_eq!(succeed().result().await, Some(Err("no")));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(succeed().result().await, Some(Ok(1)));
    }

    #[tokio::test]
    async fn single_flight_that_panics_is_not_waited_for() {
        let flights = flights(10);
        let wrong = flights.join("x", || async { panic!("on purpose") });
        assert_eq!(wrong.result().await, None);
        assert_eq!(flights.join("x", || async { Ok(1) }).result().await, Some(Ok(1)));
    }
}
