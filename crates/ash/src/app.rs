//! The shared state of the handlers of the dialect.

use std::ops::Deref;
use std::sync::Arc;

use crate::prewarm::Prewarm;
use crate::registry::Registry;
use crate::settings::AshSettings;

/// The shared state of the handlers of the dialect. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) web: web::app::App,
    pub(crate) options: AshSettings,
    pub(crate) agents: Registry,
    pub(crate) prewarm: Prewarm,
}

impl App {
    pub(crate) fn new(web: web::app::App, options: AshSettings) -> Self {
        let (agents, prewarm) = (Registry::default(), Prewarm::default());
        Self(Arc::new(Parts { web, options, agents, prewarm }))
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
