//! The HTTP API of one engine: our own routes, the dialects and the Model Context Protocol, put
//! together. What they have in common is in `web`; no dialect knows another.

mod tools;

use std::sync::Arc;

pub use ash::{AshSettings, log_recovery};
use axum::Router;
use blaxel::Blaxel;
pub use blaxel::BlaxelSettings;
use engine::Engine;
use tokio::sync::watch;
pub use v1::errors;
use web::app::App;
pub use web::serve::{ConnectionLimits, Listen, Peer, Served};
pub use web::settings::Settings as WebSettings;

/// The document that describes our own routes.
pub mod openapi {
    pub use v1::document;
    #[cfg(feature = "schema")]
    pub use v1::made_document;
}

/// Settings of the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// What holds for every route.
    pub web: WebSettings,
    /// The dialect of Ash.
    pub ash: AshSettings,
    /// The dialect of Blaxel.
    pub blaxel: BlaxelSettings,
}

/// The API of one engine. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    router: Router,
    ash: Router,
    blaxel: Router,
    stopping: Arc<watch::Sender<bool>>,
}

impl Api {
    /// The API of an engine.
    pub fn new(engine: Engine, settings: Settings) -> Self {
        let (stopping, stops) = watch::channel(false);
        let Settings { web, ash: of_ash, blaxel: of_blaxel } = settings;
        let standing = [
            of_ash.api_key.is_some().then_some(ash::OF_ENVIRONMENT),
            of_blaxel.keyless.then_some(blaxel::OF_LISTENER),
        ];
        let standing = standing.into_iter().flatten().collect();
        let document = v1::document();
        let app = App::new(engine, web, document.clone().into(), standing, stops);
        let ash = ash::router(&app, &of_ash);
        let blaxel = Blaxel::new(&app, &of_blaxel, Arc::new(tools::Mcp));
        let others = Router::new()
            .nest(ash::PREFIX, ash.clone())
            .nest(blaxel::PREFIX, blaxel.router())
            .merge(mcp::router(&app, v1::routes(), &document));
        let router = v1::router(&app, others);
        Self { router, ash, blaxel: blaxel.listener(), stopping: Arc::new(stopping) }
    }

    /// One sandbox of the same engine in the dialect of Blaxel, for a listener of its own.
    #[must_use]
    pub fn as_blaxel(&self) -> Self {
        Self { router: self.blaxel.clone(), ..self.clone() }
    }

    /// The same engine in the dialect of Ash alone, for a listener of its own.
    #[must_use]
    pub fn as_ash(&self) -> Self {
        Self { router: self.ash.clone(), ..self.clone() }
    }

    /// The routes, for servers of another kind and for tests.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Ends the streams that have no end of their own. What is being worked on goes on.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

/// Serves until `shutdown`, then finishes what is being worked on, for as long as the limits say.
pub async fn serve<L: Listen>(
    listener: L,
    api: &Api,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
) -> Served {
    let stopping = async {
        shutdown.await;
        api.stop();
    };
    web::serve::serve(listener, &api.router, limits, stopping).await
}
