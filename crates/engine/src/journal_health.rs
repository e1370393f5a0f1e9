//! Whether commits to the journal succeed. While they fail, requests are refused with the cause and
//! decisions wait: no effect and no answer goes out before its commit, so nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The state of the journal.
pub(crate) struct JournalHealth {
    cause: watch::Sender<Option<Arc<str>>>,
}

impl Default for JournalHealth {
    fn default() -> Self {
        Self { cause: watch::Sender::new(None) }
    }
}

impl JournalHealth {
    /// Why the journal cannot be written, if it cannot.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.cause.borrow().clone()
    }

    pub(crate) fn failed(&self, cause: &str) {
        self.cause.send_if_modified(|known| {
            let news = known.as_deref() != Some(cause);
            if news {
                tracing::error!(
                    cause,
                    "the journal cannot be written; requests are refused until it can"
                );
                *known = Some(cause.into());
            }
            news
        });
    }

    /// The journal will not be written again: later and waiting requests are refused.
    pub(crate) fn stopped(&self) {
        self.cause.send_replace(Some("the server has stopped".into()));
    }

    pub(crate) fn recovered(&self) {
        self.cause.send_if_modified(|known| {
            let had = known.take().is_some();
            if had {
                tracing::info!("the journal can be written again");
            }
            had
        });
    }

    /// Waits for a condition that changes only with the health of the journal.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.cause.subscribe().wait_for(|_| holds()).await;
    }

    /// Waits until the journal can be written.
    pub(crate) async fn until_healthy(&self) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.cause.subscribe().wait_for(Option::is_none).await;
    }

    /// Waits until the journal cannot be written for this long, and returns the cause.
    pub(crate) async fn failed_for(&self, patience: Duration) -> Arc<str> {
        let mut watched = self.cause.subscribe();
        loop {
            // The sender is in `self`: it cannot be gone.
            let cause = match watched.wait_for(Option::is_some).await {
                Ok(cause) => cause.clone(),
                Err(_) => None,
            };
            let over = tokio::time::timeout(patience, watched.wait_for(Option::is_none)).await;
            if let (Some(cause), Err(_)) = (cause, over) {
                return cause;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn journal_failure_is_reported_only_if_it_lasts() {
        let health = Arc::new(JournalHealth::default());
        let patience = Duration::from_secs(2);
        let watcher = Arc::clone(&health);
        let reported = tokio::spawn(async move { watcher.failed_for(patience).await });
        health.failed("disk full");
        tokio::time::sleep(Duration::from_secs(1)).await;
        health.recovered();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!reported.is_finished(), "the journal recovered in time");
        health.failed("disk full again");
        assert_eq!(&*reported.await.unwrap(), "disk full again");
        assert!(health.failure().is_some());
    }
}
