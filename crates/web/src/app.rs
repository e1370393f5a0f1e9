//! The shared state of all handlers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use engine::Engine;
use model::KeyId;
use tokio::sync::watch;
use wire::KeyUsed;

use crate::body_memory::BodyMemory;
use crate::cors::Cors;
use crate::hosts::Hosts;
use crate::idempotency::Idempotency;
use crate::key_limits::EffectiveLimits;
use crate::long_lived::LongLived;
use crate::metrics::Metrics;
use crate::rate::Rate;
use crate::request_id::RequestIds;
use crate::settings::Settings;

/// The shared state of all handlers. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// The parts of the shared state.
pub struct Parts {
    /// The engine.
    pub engine: Engine,
    /// Settings of the API.
    pub settings: Settings,
    /// The names under which the server may be addressed.
    pub hosts: Hosts,
    /// The origins whose pages may call.
    pub cors: Cors,
    /// The limits that hold for each key.
    pub limits: EffectiveLimits,
    /// How many requests each key sent.
    pub rate: Rate,
    /// Makes ids for requests that have none.
    pub request_ids: RequestIds,
    /// Metrics.
    pub metrics: Metrics,
    /// Answers to requests with an idempotency key.
    pub idempotency: Idempotency,
    /// The memory for bodies of requests.
    pub body_memory: BodyMemory,
    /// The long-lived connections of each key.
    pub long_lived: LongLived,
    /// Keys that are in no store: they are valid while the server runs.
    pub standing_keys: Vec<KeyId>,
    /// The OpenAPI document.
    pub document: Bytes,
    /// Becomes true when the server stops: endless streams end then.
    pub stopping: watch::Receiver<bool>,
    in_progress: AtomicU32,
}

impl App {
    /// For one engine. `document` describes our own routes.
    pub fn new(
        engine: Engine,
        settings: Settings,
        document: Bytes,
        standing_keys: Vec<KeyId>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let limits = EffectiveLimits::new(engine.clone(), &settings);
        Self(Arc::new(Parts {
            hosts: Hosts::new(&settings.hosts),
            cors: Cors::new(&settings.cors_origins),
            rate: Rate::default(),
            request_ids: RequestIds::new(),
            metrics: Metrics::new(&engine),
            idempotency: Idempotency::default(),
            body_memory: BodyMemory::new(settings.body_memory_bytes),
            long_lived: LongLived::new(limits.clone()),
            limits,
            standing_keys,
            document,
            stopping,
            in_progress: AtomicU32::new(0),
            engine,
            settings,
        }))
    }

    /// What a key uses of what is limited, with so many stored events.
    pub fn used_by(&self, key: KeyId, events: u64) -> KeyUsed {
        let (streams, body_bytes) = (self.long_lived.count(key), self.body_memory.held(key));
        KeyUsed::new(self.engine.key_use(key), streams, body_bytes, events)
    }

    /// Counts one more request in progress; none if there are too many.
    pub fn begin(&self) -> Option<InProgress> {
        let place = InProgress(self.clone());
        let before = self.in_progress.fetch_add(1, Ordering::Relaxed);
        (before < self.settings.max_requests).then_some(place)
    }
}

#[cfg(test)]
impl App {
    /// With an engine that has a store in memory and no runtime; the sender stops its streams.
    pub async fn for_tests() -> (Self, watch::Sender<bool>) {
        let store = store::memory::MemoryStore::new(store::Retention::default());
        let (config, runtimes) = (engine::EngineConfig::default(), engine::Runtimes::new());
        let started = Engine::start(config, Arc::new(store), runtimes).await.unwrap();
        let (stop, stopping) = watch::channel(false);
        (Self::new(started.engine, Settings::default(), Bytes::new(), Vec::new(), stopping), stop)
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// One request in progress.
pub struct InProgress(App);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}
