//! Sandboxes in Docker containers: a maker of containers over a Docker engine on a Unix socket or
//! TCP, and [`start`], which makes a runtime of it. The engine may come and go: the server must
//! start and run without it, and launches say what is missing.

mod abilities;
mod attach;
mod config;
mod container_config;
mod container_launch;
mod engine;
mod engine_events;
mod engine_setup;
mod first_process;
mod host_root;
mod images;
mod instances;
mod listener;
mod maker;
mod names;
mod path_map;
mod removal;
mod self_inspection;
mod single_flight;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::abilities::{EngineAbilities, NoEngine, probe};
pub use self::config::{DockerConfig, Endpoint, LinkMode, StoredImages};
use self::maker::DockerMaker;
pub use self::path_map::{PathMap, PathMapProblem};
use crate::container::Containers;
use crate::contract::Runtime;
use crate::error::RuntimeError;

/// How long the start waits for the engine.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// Starts a runtime of Docker containers. It starts also without an engine; launches then fail
/// until there is one.
pub async fn start(config: DockerConfig) -> Result<Arc<dyn Runtime>, RuntimeError> {
    let maker = DockerMaker::start(&config)?;
    if let Err(failure) = maker.look_for_engine(LOOK_PATIENCE).await {
        let (engine, why) = (&config.endpoint, failure.message());
        tracing::warn!(%engine, why, "the Docker engine does not answer; launches will fail");
    }
    Ok(Arc::new(Containers::new(maker)))
}
