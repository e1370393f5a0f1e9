//! The dialect of Ash: its routes, objects, texts and streams, so that its own clients work against
//! Shoal. A session of Ash is a session of ours that has the name of an agent on it; an agent is a
//! set of files, an environment and a configuration, stored per key. Features of Ash that are
//! missing here are answered like a route that does not exist.
//!
//! Mounted beneath [`PREFIX`], and at the root of a listener of its own. It is no part of the
//! OpenAPI document, which is about our own API.

mod access;
mod agent_files;
mod agents;
mod answer;
mod app;
mod bounded_json;
mod credentials;
mod deploy;
mod dialect;
mod errors;
mod exec;
mod fields;
mod files;
mod health;
mod history;
mod keys;
mod known_sessions;
mod message_events;
mod messages;
mod metrics;
mod prewarm;
mod registry;
mod request_body;
mod session_lifecycle;
mod sessions;
mod settings;
mod startup;
mod turn_frames;
mod turn_history;
mod uploads;
mod usage;
mod workspace;

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use http::{Method, Uri};

pub use self::access::OF_ENVIRONMENT;
use self::app::App;
use self::dialect::AshDialect;
use self::errors::AshError;
pub use self::settings::AshSettings;
pub use self::startup::log_recovery;
use web::front::{Front, Needs};

/// Where the dialect is on the main listener.
pub const PREFIX: &str = "/compat/ash";

/// The version of Ash whose wire format this is.
const VERSION: &str = "0.2.0";

/// The label of a session that has the name of its agent: what makes it one of Ash's.
const AGENT: &str = "ash.agent";

/// The routes of the dialect, without a prefix.
pub fn router(web: &web::app::App, settings: &AshSettings) -> Router {
    let app = App::new(web.clone(), settings.clone());
    let mut routes = Routes { app: app.clone(), router: Router::new() };
    health::routes(&mut routes);
    metrics::routes(&mut routes);
    agents::routes(&mut routes);
    agent_files::routes(&mut routes);
    sessions::routes(&mut routes);
    session_lifecycle::routes(&mut routes);
    messages::routes(&mut routes);
    history::routes(&mut routes);
    exec::routes(&mut routes);
    files::routes(&mut routes);
    workspace::routes(&mut routes);
    keys::routes(&mut routes);
    credentials::routes(&mut routes);
    usage::routes(&mut routes);
    startup::continue_soon(&app);
    let other = || routes.front("/compat/ash/other", Needs::Public);
    let (fallback, wrong_method) = (no_route.layer(other()), no_route.layer(other()));
    routes.router.fallback(fallback).method_not_allowed_fallback(wrong_method).with_state(app)
}

/// The routes so far.
struct Routes {
    app: App,
    router: Router<App>,
}

impl Routes {
    fn front(&self, route: &'static str, needs: Needs) -> Front {
        let (app, dialect) = (self.app.web.clone(), Arc::new(AshDialect(self.app.clone())));
        Front { app, route, needs, takes_body: true, dialect }
    }

    /// Adds a route. `name` is what it is called in the metrics.
    fn add<H, T>(
        &mut self,
        method: MethodFilter,
        path: &'static str,
        name: &'static str,
        needs: Needs,
        handler: H,
    ) where
        H: Handler<T, App>,
        T: 'static,
    {
        let layered = on(method, handler).route_layer(self.front(name, needs));
        self.router = std::mem::take(&mut self.router).route(path, layered);
    }
}

/// The answer for routes that do not exist, in Ash or here.
async fn no_route(method: Method, uri: Uri) -> AshError {
    // Without the prefix, so that the path is what Ash would see.
    AshError::no_route(&method, uri.path())
}
