//! What an engine reports about itself, for callers that ask before there is a runtime (`shoal
//! doctor`). It must create nothing in the engine.

use std::time::Duration;

use tokio::time::timeout;

use super::config::{Endpoint, LinkMode};
use super::engine::{Engine, EngineFailure};
use super::engine_setup::may_be_wiped;
use crate::container::tried_network;
use crate::spec::NetworkAbility;

/// How long an engine has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The abilities of an engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAbilities {
    /// Its version.
    pub version: String,
    /// The version of its interface that both sides know.
    pub api: String,
    /// Its cgroup driver and the version of control groups.
    pub control_groups: String,
    /// Whether used sandboxes can be wiped, as far as is known: the engine is on this host, maps no
    /// users, and the server is root.
    pub wipes: bool,
    /// How its sandboxes reach the network, as far as is known.
    pub network: NetworkAbility,
    /// What it cannot limit, in words.
    pub lacks: Vec<&'static str>,
}

/// Why the engine cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEngine {
    /// What is wrong.
    pub why: String,
    /// What helps.
    pub remedy: &'static str,
}

/// Asks an engine for its abilities, for sandboxes that are connected in this mode.
pub async fn probe(endpoint: &Endpoint, link: LinkMode) -> Result<EngineAbilities, NoEngine> {
    let engine = Engine::new(endpoint.clone());
    let asked = timeout(PATIENCE, engine.find()).await;
    let found =
        asked.unwrap_or_else(|_| Err(EngineFailure::Unanswered("no answer in time".into())));
    let facts = match found {
        Ok(found) => found.facts,
        Err(failure) => {
            let remedy = failure.remedy().unwrap_or("see the log of the engine");
            return Err(NoEngine { why: engine.describe(&failure), remedy });
        }
    };
    let said = |word: Option<&str>| word.unwrap_or("unknown").to_owned();
    let driver = facts.info.cgroup_driver.map(|driver| driver.to_string());
    let generation = facts.info.cgroup_version.map(|version| version.to_string());
    let info = &facts.info;
    // An ability that it does not mention is assumed.
    let limits = [
        (info.memory_limit, "memory"),
        (info.cpu_cfs_quota, "processors"),
        (info.pids_limit, "processes"),
    ];
    let lacks = limits.into_iter().filter(|(can, _)| *can == Some(false)).map(|(_, of)| of);
    let lacks = lacks.collect();
    let wipes = may_be_wiped(endpoint, link, &facts);
    Ok(EngineAbilities {
        version: said(facts.info.server_version.as_deref()),
        api: format!("{}.{}", facts.api.0, facts.api.1),
        control_groups: format!(
            "{}, version {}",
            said(driver.as_deref()),
            said(generation.as_deref())
        ),
        wipes,
        // The keeper tries it by itself, without a container.
        network: if wipes { tried_network().await } else { NetworkAbility::None },
        lacks,
    })
}
