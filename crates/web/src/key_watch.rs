//! Whether the key of a stream is still valid. When the key is revoked or expires, the stream ends.

use std::time::Duration;

use model::{ErrorCode, KeyId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::refused::Refused;

/// How often the key is checked when no key changed: it may expire.
const LOOK: Duration = Duration::from_secs(5);

/// The refusal for a key that is no longer valid.
pub fn revoked() -> Refused {
    Refused::new(ErrorCode::Unauthorized, "the key is no longer valid")
}

/// Does something while the key is valid.
pub async fn while_it_works<T>(
    app: &App,
    key: KeyId,
    doing: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Refused> {
    let mut watch = KeyWatch::new(key);
    tokio::select! {
        biased;
        done = doing => done,
        () = watch.ended(app) => Err(revoked()),
    }
}

/// The key of a stream.
pub struct KeyWatch {
    key: KeyId,
    looked_at: Instant,
    /// From the first look on.
    changes: Option<watch::Receiver<u64>>,
}

impl KeyWatch {
    /// A key that is valid now.
    pub fn new(key: KeyId) -> Self {
        Self { key, looked_at: Instant::now(), changes: None }
    }

    /// Done at once when the key is revoked, and soon after it expires. May be dropped at any time.
    pub async fn ended(&mut self, app: &App) {
        while self.works(app) {
            let Some(changes) = &self.changes else { continue };
            // On a copy: the next look must still see the change.
            let mut copy = changes.clone();
            tokio::select! {
                changed = copy.changed() => if changed.is_err() { return },
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Waits for something as long as the key is valid; none when it no longer is.
    pub async fn while_valid<T>(
        &mut self,
        app: &App,
        waiting: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            () = self.ended(app) => None,
            done = waiting => Some(done),
        }
    }

    /// Whether it still does. Standing keys are in no store, and work for as long as the server
    /// runs.
    pub fn works(&mut self, app: &App) -> bool {
        let changes = self.changes.get_or_insert_with(|| {
            let mut changes = app.engine.key_changes();
            // It may have changed since the request was admitted.
            changes.mark_changed();
            changes
        });
        let has_changed = changes.has_changed().unwrap_or(true);
        if !has_changed && self.looked_at.elapsed() < LOOK {
            return true;
        }
        changes.mark_unchanged();
        self.looked_at = Instant::now();
        app.standing_keys.contains(&self.key) || app.engine.key_is_valid(self.key)
    }
}
