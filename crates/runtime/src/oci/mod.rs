//! Sandboxes in containers of OCI runtimes: `runc`, `crun`, `youki`, and gVisor's `runsc`, each
//! driven by its command line with bundles of our own. The same guest runs in all of them;
//! `program` knows how they differ. There is no daemon, and nothing may be mounted on the host.

mod abilities;
mod bundle;
mod command;
mod config;
mod host_guest;
mod maker;
mod program;
mod removal;
mod roots;
mod run_directory;

use std::io;
use std::sync::Arc;

pub use self::abilities::Abilities;
pub use self::config::OciConfig;
use self::maker::OciMaker;
pub use self::program::Program;
use crate::container::Containers;
use crate::contract::Runtime;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Starts a runtime. It owns what it launches. `reap_orphans` removes what earlier runs left.
pub async fn start(config: OciConfig) -> Result<Arc<dyn Runtime>, RuntimeError> {
    let abilities = Abilities::find(&config).await?;
    let maker = blocking("prepare the run", move || OciMaker::prepare(&config, abilities)).await?;
    Ok(Arc::new(Containers::new(maker)))
}

/// What a program can do on this machine, or why it cannot be used.
pub async fn probe(config: &OciConfig) -> Result<Abilities, RuntimeError> {
    Abilities::find(config).await
}

/// Runs blocking work on a thread where it holds up no task.
async fn blocking<T: Send + 'static>(
    step: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tasks::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| RuntimeError::system(step, &error)),
        Err(error) => Err(RuntimeError::new(RuntimeErrorCode::System, step, error.to_string())),
    }
}
