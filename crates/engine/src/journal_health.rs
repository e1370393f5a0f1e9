//! Whether the journal can be written. While it cannot, requests are refused and say why, and what
//! was decided waits: nothing is done or said that is not written down, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The state of the journal.
pub(crate) struct Trouble {
    cause: watch::Sender<Option<Arc<str>>>,
}

impl Default for Trouble {
    fn default() -> Self {
        Self { cause: watch::Sender::new(None) }
    }
}

impl Trouble {
    /// What is wrong, if anything is.
    pub(crate) fn now(&self) -> Option<Arc<str>> {
        self.cause.borrow().clone()
    }

    pub(crate) fn begins(&self, cause: &str) {
        self.cause.send_if_modified(|known| {
            let news = known.as_deref() != Some(cause);
            if news {
                tracing::error!(cause, "the journal cannot be written; requests are refused");
                *known = Some(cause.into());
            }
            news
        });
    }

    /// Nothing will be written any more: whoever still asks is refused, whoever waits is told.
    pub(crate) fn stops(&self) {
        self.cause.send_replace(Some("the server has stopped".into()));
    }

    pub(crate) fn ends(&self) {
        self.cause.send_if_modified(|known| {
            let had = known.take().is_some();
            if had {
                tracing::info!("the journal can be written again");
            }
            had
        });
    }

    /// Waits for something that changes with the trouble and with nothing else.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.cause.subscribe().wait_for(|_| holds()).await;
    }

    /// Waits until there is none.
    pub(crate) async fn over(&self) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.cause.subscribe().wait_for(Option::is_none).await;
    }

    /// Waits until there is trouble that lasts this long.
    pub(crate) async fn lasting(&self, patience: Duration) -> Arc<str> {
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
    async fn short_trouble_is_waited_out_and_long_trouble_is_told() {
        let trouble = Arc::new(Trouble::default());
        let patience = Duration::from_secs(2);
        let watcher = Arc::clone(&trouble);
        let told = tokio::spawn(async move { watcher.lasting(patience).await });
        trouble.begins("disk full");
        tokio::time::sleep(Duration::from_secs(1)).await;
        trouble.ends();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!told.is_finished(), "it was over in time");
        trouble.begins("disk full again");
        assert_eq!(&*told.await.unwrap(), "disk full again");
        assert!(trouble.now().is_some());
    }
}
