//! The shared state of the handlers of the dialect.

use std::ops::Deref;
use std::sync::Arc;

use crate::registry::Registry;
use crate::settings::BlaxelSettings;
use crate::tools::SandboxTools;

/// The shared state of the handlers of the dialect. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) web: web::app::App,
    pub(crate) options: BlaxelSettings,
    /// Sandboxes by their names.
    pub(crate) blaxel: Registry,
    /// Answers the Model Context Protocol for a sandbox.
    pub(crate) tools: Arc<dyn SandboxTools>,
}

impl App {
    pub(crate) fn new(
        web: web::app::App,
        options: BlaxelSettings,
        tools: Arc<dyn SandboxTools>,
    ) -> Self {
        let blaxel = Registry::new(web.engine.now().wall);
        Self(Arc::new(Parts { web, options, blaxel, tools }))
    }
}

#[cfg(test)]
impl App {
    /// With an engine that has a store in memory and no runtime; the sender stops its streams.
    pub(crate) async fn for_tests() -> (Self, tokio::sync::watch::Sender<bool>) {
        let store = store::memory::MemoryStore::new(store::Retention::default());
        let (config, runtimes) = (engine::EngineConfig::default(), engine::Runtimes::new());
        let started = engine::Engine::start(config, Arc::new(store), runtimes).await.unwrap();
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let settings = web::settings::Settings::default();
        let none = bytes::Bytes::new();
        let web = web::app::App::new(started.engine, settings, none, Vec::new(), stopping);
        (Self::new(web, BlaxelSettings::default(), Arc::new(crate::tools::None)), stop)
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Deref for Parts {
    type Target = web::app::App;

    fn deref(&self) -> &web::app::App {
        &self.web
    }
}
