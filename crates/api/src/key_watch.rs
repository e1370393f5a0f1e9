//! Looks now and then whether the key of a stream still works: one that is revoked or expires ends
//! what was begun with it.

use std::time::Duration;

use model::{KeyId, KeyRecord};
use tokio::time::Instant;

use crate::app::App;
use crate::compat::{ash, blaxel};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(5);

/// The key of a stream.
pub(crate) struct KeyWatch {
    key: KeyId,
    looked_at: Instant,
}

impl KeyWatch {
    /// It works now.
    pub(crate) fn new(key: KeyId) -> Self {
        Self { key, looked_at: Instant::now() }
    }

    /// Whether it still does, as far as is known. The one from the environment is written down
    /// nowhere, and works for as long as the server has it.
    pub(crate) fn works(&mut self, app: &App) -> bool {
        if self.looked_at.elapsed() < LOOK {
            return true;
        }
        self.looked_at = Instant::now();
        if self.key == ash::OF_ENVIRONMENT {
            return app.settings.ash.api_key.is_some();
        }
        if self.key == blaxel::OF_LISTENER {
            return app.settings.blaxel.keyless;
        }
        let now = app.engine.now().wall;
        let works = |key: &KeyRecord| {
            key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end)
        };
        app.engine.keys().iter().any(|key| key.id == self.key && works(key))
    }
}
