//! The limits that hold for a key: its own, else those of its role, else those of the server. What
//! they bind is counted elsewhere.

use engine::Engine;
use model::{KeyId, KeyLimits};

use crate::settings::Settings;

/// The limits of all keys.
#[derive(Clone)]
pub struct EffectiveLimits {
    engine: Engine,
    of_server: KeyLimits,
}

impl EffectiveLimits {
    /// Of the keys of an engine.
    pub fn new(engine: Engine, settings: &Settings) -> Self {
        let of_server = KeyLimits {
            requests_per_s: settings.rate_limit_per_s,
            streams: Some(settings.max_lasting_per_key),
            ..KeyLimits::default()
        };
        Self { engine, of_server }
    }

    /// Of one key. A key that is in no store has those of the server.
    pub fn of(&self, key: KeyId) -> KeyLimits {
        self.engine.key_limits(key).or(self.of_server)
    }
}
