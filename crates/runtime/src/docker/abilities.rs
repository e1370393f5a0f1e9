//! What an engine says about itself, for whoever asks before there is a runtime. Nothing is made for it.

use std::time::Duration;

use rustix::process::geteuid;
use tokio::time::timeout;

use super::config::Endpoint;
use super::engine::{Engine, Trouble};
use crate::error::{RuntimeError, RuntimeErrorCode};

const STEP: &str = "find the Docker engine";
/// How long an engine has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAbilities {
    /// Its version.
    pub version: String,
    /// The version of its interface that both sides know.
    pub api: String,
    /// Who makes control groups for it, and of which generation they are.
    pub control_groups: String,
    /// Whether used sandboxes can be wiped: it is on this machine, as far as can be told, and we are
    /// root.
    pub wipes: bool,
}

/// Asks an engine what it is.
pub async fn probe(endpoint: &Endpoint) -> Result<EngineAbilities, RuntimeError> {
    let engine = Engine::new(endpoint.clone());
    let asked = timeout(PATIENCE, engine.find()).await;
    let found = asked.unwrap_or_else(|_| Err(Trouble::Unanswered("no answer in time".into())));
    let facts = match found {
        Ok(found) => found.facts,
        Err(trouble) => return Err(engine.failed(RuntimeErrorCode::Unsupported, STEP, &trouble)),
    };
    let said = |word: Option<&str>| word.unwrap_or("unknown").to_owned();
    let driver = facts.info.cgroup_driver.map(|driver| driver.to_string());
    let generation = facts.info.cgroup_version.map(|version| version.to_string());
    Ok(EngineAbilities {
        version: said(facts.info.server_version.as_deref()),
        api: format!("{}.{}", facts.api.0, facts.api.1),
        control_groups: format!(
            "{}, version {}",
            said(driver.as_deref()),
            said(generation.as_deref())
        ),
        wipes: matches!(endpoint, Endpoint::Unix(_)) && geteuid().is_root(),
    })
}
