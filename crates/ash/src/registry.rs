//! Agents, as the engine keeps them: per key, by name, each with its files as a seed. An agent and
//! its version are one document, and the files are stored before it names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::{Caller, Engine, NamedDocumentsLock, NamedError};
use model::{Document, ErrorCode, KeyId, Refusal, SeedId, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answer::time;
use super::deploy::Files;
use crate::app::App;

/// The kind of documents that are agents.
const KIND: &str = "ash.agent";

/// An agent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agent {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) version: u64,
    /// Where it was deployed from, or the name of the place that Ash would have made for it.
    pub(super) path: String,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) config: Map<String, Value>,
    pub(super) seed: SeedId,
    pub(super) created_at: Wall,
    pub(super) updated_at: Wall,
}

impl Agent {
    /// As it is shown. Values of its environment are not.
    pub(super) fn shown(&self, tenant: KeyId) -> Value {
        let mut shown = json!({
            "id": self.id,
            "tenantId": tenant,
            "name": self.name,
            "version": self.version,
            "path": self.path,
            "createdAt": time(self.created_at),
            "updatedAt": time(self.updated_at),
            "config": self.config,
        });
        if !self.env.is_empty() {
            let masked = self.env.keys().map(|name| (name.clone(), Value::from("***")));
            shown["env"] = Value::Object(masked.collect());
        }
        shown
    }
}

/// How many requests may hold the files of an agent in memory at once.
const LOADED_MAX: usize = 2;
/// How long a request waits for others that hold files of agents.
const PATIENCE: Duration = Duration::from_secs(30);

/// Limits the memory for files of agents.
#[derive(Debug)]
pub(crate) struct Registry {
    loaded: Arc<Semaphore>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { loaded: Arc::new(Semaphore::new(LOADED_MAX)) }
    }
}

/// The files of an agent in memory.
pub(super) struct Loaded {
    pub(super) files: Files,
    _place: OwnedSemaphorePermit,
}

impl Registry {
    /// The files of a seed, by path.
    pub(super) async fn load(&self, engine: &Engine, seed: SeedId) -> Result<Loaded, Refusal> {
        let place = timeout(PATIENCE, Arc::clone(&self.loaded).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(busy()) };
        let files = engine.seed_files(seed).await?;
        let files = files.into_iter().map(|file| (file.path.clone(), file)).collect();
        Ok(Loaded { files, _place: place })
    }
}

fn busy() -> Refusal {
    Refusal::new(ErrorCode::Overloaded, "other requests are using the agents' files; retry")
        .retry_after(1000)
}

/// Why an agent could not be stored or removed.
fn refused(error: NamedError) -> Refusal {
    let too_much = |cause: String| Refusal::new(ErrorCode::LimitReached, cause);
    match error {
        NamedError::Busy => busy(),
        NamedError::TooMany(most) => too_much(format!("The key already has {most} agents")),
        NamedError::TooLarge(most) => too_much(format!(
            "Environments and configurations of all agents have more than {most} bytes"
        )),
        NamedError::Refused(refusal) => refusal,
    }
}

pub(super) async fn find(app: &App, tenant: KeyId, name: &str) -> Result<Option<Agent>, Refusal> {
    let found = app.engine.named(KIND, tenant, name).await?;
    found.map(|document| read(&document)).transpose()
}

/// All agents of a key, by name.
pub(super) async fn all(app: &App, tenant: KeyId) -> Result<Vec<Agent>, Refusal> {
    let found = app.engine.named_documents(KIND, tenant).await?;
    found.iter().map(read).collect()
}

fn read(document: &Document) -> Result<Agent, Refusal> {
    serde_json::from_str(&document.body).map_err(|error| {
        let cause = format!("stored agent {:?} cannot be decoded: {error}", document.name);
        Refusal::new(ErrorCode::Internal, cause)
    })
}

/// The right to change agents of a caller.
pub(super) async fn change(app: &App, caller: Caller) -> Result<NamedDocumentsLock, Refusal> {
    app.engine.lock_named_documents(KIND, caller).await.map_err(refused)
}

/// Puts an agent in place of the one of its name.
pub(super) async fn put(
    app: &App,
    change: NamedDocumentsLock,
    agent: &Agent,
) -> Result<(), Refusal> {
    app.engine.check_env(&agent.env)?;
    let body = serde_json::to_string(agent)
        .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    change.put(&agent.name, Some(agent.seed), body).await.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_read_back_and_its_environment_is_masked() {
        let agent = Agent {
            id: "i".to_owned(),
            name: "a".to_owned(),
            version: 3,
            path: "agents/a".to_owned(),
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]),
            config: Map::new(),
            seed: SeedId::from_bytes([7; 32]),
            created_at: Wall(0),
            updated_at: Wall(1),
        };
        let body: Arc<str> = serde_json::to_string(&agent).unwrap().into();
        let (kind, name) = (KIND.to_owned(), "a".to_owned());
        let document = Document { kind, tenant: KeyId::NIL, name, seed: None, body };
        assert!(read(&document).unwrap() == agent);
        let shown = agent.shown(KeyId::NIL);
        assert_eq!(shown["env"], json!({"TOKEN": "***"}));
        assert!(!shown.to_string().contains("hunter2"));
        assert_eq!(shown["updatedAt"], "1970-01-01T00:00:00.001Z");
    }
}
