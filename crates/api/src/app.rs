//! What every handler knows.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use engine::Engine;
use tokio::sync::watch;

use crate::body_memory::BodyMemory;
use crate::compat::ash::Registry;
use crate::compat::blaxel;
use crate::cors::Cors;
use crate::hosts::Hosts;
use crate::idempotency::Idempotency;
use crate::lasting::Lasting;
use crate::metrics::Metrics;
use crate::rate::Rate;
use crate::request_id::RequestIds;
use crate::settings::Settings;

/// What every handler knows. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) settings: Settings,
    pub(crate) hosts: Hosts,
    pub(crate) cors: Cors,
    pub(crate) rate: Option<Rate>,
    pub(crate) request_ids: RequestIds,
    pub(crate) metrics: Metrics,
    pub(crate) idempotency: Idempotency,
    pub(crate) body_memory: BodyMemory,
    pub(crate) lasting: Lasting,
    /// Agents of Ash.
    pub(crate) agents: Registry,
    /// Sandboxes of Blaxel.
    pub(crate) blaxel: blaxel::Registry,
    /// The OpenAPI document.
    pub(crate) document: Bytes,
    /// True from when the server stops: streams that have no end of their own end then.
    pub(crate) stopping: watch::Receiver<bool>,
    in_progress: AtomicU32,
}

impl App {
    pub(crate) fn new(
        engine: Engine,
        settings: Settings,
        document: Bytes,
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
            lasting: Lasting::new(settings.max_lasting_per_key),
            agents: Registry::default(),
            blaxel: blaxel::Registry::new(engine.now().wall),
            document,
            stopping,
            in_progress: AtomicU32::new(0),
            engine,
            settings,
        }))
    }

    /// A place among the requests that are worked on, if there is one.
    pub(crate) fn begin(&self) -> Option<InProgress> {
        let place = InProgress(self.clone());
        let before = self.in_progress.fetch_add(1, Ordering::Relaxed);
        (before < self.settings.max_requests).then_some(place)
    }
}

#[cfg(test)]
impl App {
    /// On an engine that has a store in memory and no runtime; with what stops its streams.
    pub(crate) async fn for_tests() -> (Self, watch::Sender<bool>) {
        let store = store::memory::MemoryStore::new(store::Retention::default());
        let (config, runtimes) = (engine::EngineConfig::default(), engine::Runtimes::new());
        let started = Engine::start(config, Arc::new(store), runtimes).await.unwrap();
        let (stop, stopping) = watch::channel(false);
        (Self::new(started.engine, Settings::default(), Bytes::new(), stopping), stop)
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// One of the requests that are worked on.
pub(crate) struct InProgress(App);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}
