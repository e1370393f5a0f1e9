//! Work that is done once for all who wait for it, in a task of its own: whoever gives up waiting does
//! not end it, and what came of it is told to all. A failure may count for a while, so that it is not
//! begun again at once by everybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

type Outcome<T, E> = Option<Result<T, E>>;

/// Works in progress, by their names, and those whose failure counts.
pub(super) struct Flights<T, E> {
    flying: Mutex<BTreeMap<String, Known<T, E>>>,
    failures_count: Duration,
}

struct Known<T, E> {
    outcome: watch::Receiver<Outcome<T, E>>,
    /// Until when what came of it counts, once that is known.
    until: Arc<Mutex<Option<Instant>>>,
}

impl<T, E> Known<T, E> {
    fn counts(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        match until {
            Some(until) => Instant::now() < until,
            // Unless whoever did it is gone without a word.
            None => self.outcome.has_changed().is_ok(),
        }
    }
}

/// A work that somebody waits for.
pub(super) struct Flight<T, E> {
    outcome: watch::Receiver<Outcome<T, E>>,
}

impl<T: Clone, E: Clone> Flight<T, E> {
    /// Waits for what comes of it; none if it was given up by a mistake.
    pub(super) async fn landed(mut self) -> Option<Result<T, E>> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok()?;
        (*outcome).clone()
    }
}

impl<T, E> Flights<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// Failures count for so long.
    pub(super) fn new(failures_count: Duration) -> Self {
        Self { flying: Mutex::default(), failures_count }
    }

    /// Waits for the work of this name, which is begun unless it is going on. Must be called inside
    /// a tokio runtime.
    pub(super) fn board<W>(&self, name: &str, work: impl FnOnce() -> W) -> Flight<T, E>
    where
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        flying.retain(|_, known| known.counts());
        if let Some(known) = flying.get(name) {
            return Flight { outcome: known.outcome.clone() };
        }
        let (tell, outcome) = watch::channel(None);
        let until = Arc::new(Mutex::new(None));
        let known = Known { outcome: outcome.clone(), until: Arc::clone(&until) };
        flying.insert(name.to_owned(), known);
        let (work, failures_count) = (work(), self.failures_count);
        tasks::spawn(async move {
            let done = work.await;
            let counts = if done.is_ok() { Duration::ZERO } else { failures_count };
            let end = Instant::now() + counts;
            *until.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
            tell.send_replace(Some(done));
        });
        Flight { outcome }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{sleep, timeout};

    use super::*;

    fn flights(failures_count_s: u64) -> Flights<u32, &'static str> {
        Flights::new(Duration::from_secs(failures_count_s))
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_are_told_and_who_gives_up_ends_nothing() {
        let flights = flights(0);
        let begun = Arc::new(AtomicU32::new(0));
        let board = || {
            let begun = Arc::clone(&begun);
            flights.board("x", || async move {
                sleep(Duration::from_secs(5)).await;
                Ok(begun.fetch_add(1, Ordering::Relaxed))
            })
        };
        assert!(timeout(Duration::from_secs(1), board().landed()).await.is_err());
        let (one, two) = tokio::join!(board().landed(), board().landed());
        assert_eq!((one, two), (Some(Ok(0)), Some(Ok(0))));
        assert_eq!(board().landed().await, Some(Ok(1)), "a success is not remembered");
        let other = flights.board("y", || async { Ok(7) });
        assert_eq!(other.landed().await, Some(Ok(7)), "by name");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_counts_for_a_while() {
        let flights = flights(10);
        let fail = || flights.board("x", || async { Err("no") });
        let succeed = || flights.board("x", || async { Ok(1) });
        assert_eq!(fail().landed().await, Some(Err("no")));
        sleep(Duration::from_secs(9)).await;
        assert_eq!(succeed().landed().await, Some(Err("no")));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(succeed().landed().await, Some(Ok(1)));
    }

    #[tokio::test]
    async fn a_mistake_is_not_waited_for_for_ever() {
        let flights = flights(10);
        let wrong = flights.board("x", || async { panic!("a mistake") });
        assert_eq!(wrong.landed().await, None);
        assert_eq!(flights.board("x", || async { Ok(1) }).landed().await, Some(Ok(1)));
    }
}
