//! What every handler knows.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use engine::Engine;
use model::KeyId;
use tokio::sync::watch;

use crate::body_memory::BodyMemory;
use crate::cors::Cors;
use crate::hosts::Hosts;
use crate::idempotency::Idempotency;
use crate::long_lived::LongLived;
use crate::metrics::Metrics;
use crate::rate::Rate;
use crate::request_id::RequestIds;
use crate::settings::Settings;

/// What every handler knows. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// What there is one of in a server.
pub struct Parts {
    /// The engine that is asked.
    pub engine: Engine,
    /// How the API is to behave.
    pub settings: Settings,
    /// The names under which the server may be addressed.
    pub hosts: Hosts,
    /// The origins whose pages may call.
    pub cors: Cors,
    /// How many requests a key may send, if that is limited.
    pub rate: Option<Rate>,
    /// Makes ids for requests that have none.
    pub request_ids: RequestIds,
    /// What is counted.
    pub metrics: Metrics,
    /// The answers of requests that may be sent twice.
    pub idempotency: Idempotency,
    /// The memory for bodies of requests.
    pub body_memory: BodyMemory,
    /// Streams, terminals and connections that are open.
    pub long_lived: LongLived,
    /// Keys that are in no store: they work for as long as the server runs.
    pub standing_keys: Vec<KeyId>,
    /// The OpenAPI document.
    pub document: Bytes,
    /// True from when the server stops: streams that have no end of their own end then.
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
        Self(Arc::new(Parts {
            hosts: Hosts::new(&settings.hosts),
            cors: Cors::new(&settings.cors_origins),
            rate: settings.rate_limit_per_s.map(Rate::new),
            request_ids: RequestIds::new(),
            metrics: Metrics::new(&engine),
            idempotency: Idempotency::default(),
            body_memory: BodyMemory::new(settings.body_memory_bytes),
            long_lived: LongLived::new(settings.max_lasting_per_key),
            standing_keys,
            document,
            stopping,
            in_progress: AtomicU32::new(0),
            engine,
            settings,
        }))
    }

    /// A place among the requests that are worked on, if there is one.
    pub fn begin(&self) -> Option<InProgress> {
        let place = InProgress(self.clone());
        let before = self.in_progress.fetch_add(1, Ordering::Relaxed);
        (before < self.settings.max_requests).then_some(place)
    }
}

#[cfg(test)]
impl App {
    /// On an engine that has a store in memory and no runtime; with what stops its streams.
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

/// One of the requests that are worked on.
pub struct InProgress(App);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}
