//! Agents, as they are written down: per key, by name, each with its files as a seed. One change is
//! made at a time, so that no two deploys get the same version; a change that began to be written is
//! written to its end, also if whoever asked goes away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use model::{Document, ErrorCode, KeyId, Refusal, SeedId, Wall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answer::time;
use super::deploy::Files;
use crate::app::App;

/// What agents are called among the documents.
const KIND: &str = "ash.agent";
/// Agents of one key, and how much is written down of them all, without their files.
const AGENTS_MAX: u64 = 1_000;
const BYTES_MAX: u64 = 32 << 20;

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

/// How many have the files of an agent in memory at once.
const LOADED_MAX: usize = 2;
/// How long somebody waits for others who change agents, or have their files.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes changes of agents one after the other, and bounds what their files take of the memory.
#[derive(Debug)]
pub(crate) struct Registry {
    changes: Arc<Mutex<()>>,
    loaded: Arc<Semaphore>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { changes: Arc::default(), loaded: Arc::new(Semaphore::new(LOADED_MAX)) }
    }
}

/// The right to change agents.
pub(super) struct Change {
    _alone: OwnedMutexGuard<()>,
}

/// The files of an agent in memory.
pub(super) struct Loaded {
    pub(super) files: Files,
    _place: OwnedSemaphorePermit,
}

impl Registry {
    pub(super) async fn change(&self) -> Result<Change, Refusal> {
        let alone = timeout(PATIENCE, Arc::clone(&self.changes).lock_owned()).await;
        alone.map(|alone| Change { _alone: alone }).map_err(|_| busy())
    }

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
    Refusal::new(ErrorCode::Overloaded, "others are at work on agents").retry_after(1000)
}

pub(super) async fn find(app: &App, tenant: KeyId, name: &str) -> Result<Option<Agent>, Refusal> {
    let found = app.engine.document(KIND, tenant, name).await?;
    found.map(|document| read(&document)).transpose()
}

/// All agents of a key, by name.
pub(super) async fn all(app: &App, tenant: KeyId) -> Result<Vec<Agent>, Refusal> {
    let found = app.engine.documents(KIND, tenant).await?;
    found.iter().map(read).collect()
}

async fn refuse_too_much(
    app: &App,
    tenant: KeyId,
    agent: &Agent,
    bytes: u64,
) -> Result<(), Refusal> {
    app.engine.check_env(&agent.env)?;
    let all = app.engine.documents_size(KIND, tenant, None).await?;
    let before = app.engine.documents_size(KIND, tenant, Some(&agent.name)).await?;
    let cause = if all.count - before.count >= AGENTS_MAX {
        format!("There are {AGENTS_MAX} agents already")
    } else if all.bytes - before.bytes + bytes > BYTES_MAX {
        format!("Environments and configurations of all agents have more than {BYTES_MAX} bytes")
    } else {
        return Ok(());
    };
    Err(Refusal::new(ErrorCode::LimitReached, cause))
}

fn read(document: &Document) -> Result<Agent, Refusal> {
    serde_json::from_str(&document.body).map_err(|error| {
        let cause =
            format!("what is written down of agent {:?} fits no more: {error}", document.name);
        Refusal::new(ErrorCode::Internal, cause)
    })
}

impl Change {
    /// Writes an agent down, in place of the one of its name.
    pub(super) async fn put(self, app: &App, tenant: KeyId, agent: &Agent) -> Result<(), Refusal> {
        let body = serde_json::to_string(agent)
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        refuse_too_much(app, tenant, agent, body.len() as u64).await?;
        let document = Document {
            kind: KIND.to_owned(),
            tenant,
            name: agent.name.clone(),
            seed: Some(agent.seed),
            body: body.into(),
        };
        let engine = app.engine.clone();
        self.finish(async move { engine.put_document(document).await }).await
    }

    /// Forgets an agent; whether there was one.
    pub(super) async fn remove(
        self,
        app: &App,
        tenant: KeyId,
        name: &str,
    ) -> Result<bool, Refusal> {
        let (engine, name) = (app.engine.clone(), name.to_owned());
        self.finish(async move { engine.remove_document(KIND, tenant, &name).await }).await
    }

    async fn finish<T: Send + 'static>(
        self,
        writing: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let written = tokio::spawn(async move {
            let written = writing.await;
            drop(self);
            written
        });
        written.await.unwrap_or_else(|error| {
            let cause = format!("an agent was not written down: {error}");
            Err(Refusal::new(ErrorCode::Internal, cause))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_reads_back_and_its_environment_is_masked() {
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
