//! The HTTP API: requests in, the engine's answers out. It translates and guards (keys, hosts, sizes,
//! rates, pauses); it decides nothing about sandboxes, and knows neither stores nor runtimes.
//!
//! [`Api`] is the router with everything in front of it, [`serve`] an accept loop that bounds what
//! connections may cost.

mod answer;
mod app;
mod archive;
mod body;
mod body_memory;
mod body_reader;
mod compat;
mod cors;
mod cursor;
pub mod errors;
mod exec_stream;
mod file_watch;
mod front;
mod handed_out;
mod harness_lines;
mod hosts;
mod idempotency;
mod key_watch;
mod lasting;
mod log_stream;
mod log_text;
mod lost;
mod mcp;
mod metrics;
mod octal;
pub mod openapi;
mod operation;
mod passed_on;
mod path;
mod pieces;
mod proxy;
mod pulse;
mod query;
mod range;
mod rate;
mod refused;
mod request_id;
mod routes;
mod schemas;
mod seed;
mod serve;
mod settings;
mod stream;
mod subprotocol;
mod terminal;
mod tunnel;
mod turn_stream;
mod view;

use std::sync::Arc;

use axum::Router;
use engine::Engine;
use tokio::sync::watch;

use crate::app::App;
pub use crate::compat::ash::AshSettings;
pub use crate::compat::blaxel::BlaxelSettings;
pub use crate::serve::{ConnectionLimits, Listen, Peer, Served, serve};
pub use crate::settings::Settings;

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
        let app = App::new(engine, settings, openapi::document().into(), stops);
        let ash = compat::ash::router(&app).with_state(app.clone());
        let listener = compat::blaxel::Mounted::Listener;
        let blaxel = compat::blaxel::router(&app, listener).with_state(app.clone());
        Self { router: routes::router(&app), ash, blaxel, stopping: Arc::new(stopping) }
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
