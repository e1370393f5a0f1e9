//! Checks now and then whether the key of a stream is still valid. When the key is revoked or
//! expires, the stream ends.

use std::time::Duration;

use model::{ErrorCode, KeyId, KeyRecord};
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::refused::Refused;

/// How often the key is checked.
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
}

impl KeyWatch {
    /// A key that is valid now.
    pub fn new(key: KeyId) -> Self {
        Self { key, looked_at: Instant::now() }
    }

    /// Done when the key is no longer valid. May be dropped at any time.
    pub async fn ended(&mut self, app: &App) {
        while self.works(app) {
            sleep(LOOK).await;
        }
    }

    /// Whether it still does, as far as is known. Standing keys are in no store, and work for as
    /// long as the server runs.
    pub fn works(&mut self, app: &App) -> bool {
        if self.looked_at.elapsed() < LOOK {
            return true;
        }
        self.looked_at = Instant::now();
        if app.standing_keys.contains(&self.key) {
            return true;
        }
        let now = app.engine.now().wall;
        let works = |key: &KeyRecord| {
            key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end)
        };
        app.engine.keys().iter().any(|key| key.id == self.key && works(key))
    }
}
