//! Sandboxes of Blaxel, as they are written down: per key, by name, each one of our sessions. A
//! change is made one at a time per server, so that no name is given twice; what is asked all the
//! time is remembered here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use engine::Caller;
use model::{Document, ErrorCode, KeyId, Refusal, SandboxId, SessionId, Wall};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::terminal::Terminals;
use super::uploads::Uploads;
use crate::app::App;

/// What they are called among the documents.
const KIND: &str = "blaxel.sandbox";
/// Sandboxes of one key, and how much is written down of them all.
const NAMED_MAX: u64 = 1_000;
const BYTES_MAX: u64 = 32 << 20;
/// Names that are remembered.
const REMEMBERED_MAX: usize = 10_000;
/// Sandboxes of ours that one had before: what ran in them can still be asked.
const BEFORE_MAX: usize = 8;
/// How long somebody waits for others who change sandboxes.
const PATIENCE: Duration = Duration::from_mins(1);

/// A sandbox of Blaxel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) session: SessionId,
    /// As its maker described it.
    pub(super) object: Value,
    pub(super) created_at: Wall,
    pub(super) updated_at: Wall,
    /// The sandboxes that the session had, the latest first.
    #[serde(default)]
    pub(super) sandboxes: Vec<SandboxId>,
}

/// Whose turn it is to make one; nobody's, if nobody wants to.
type Turn = Weak<tokio::sync::Mutex<()>>;

/// What is known of all of them.
pub(crate) struct Registry {
    pub(super) began: Wall,
    pub(super) uploads: Uploads,
    pub(super) terminals: Terminals,
    changes: Arc<tokio::sync::Mutex<()>>,
    /// Names for which a sandbox is being made.
    making: Mutex<BTreeMap<(KeyId, String), Turn>>,
    known: Mutex<BTreeMap<(KeyId, String), Arc<Named>>>,
}

/// The right to change sandboxes.
pub(super) struct Change {
    _alone: OwnedMutexGuard<()>,
}

impl Registry {
    pub(crate) fn new(began: Wall) -> Self {
        let (uploads, terminals) = (Uploads::default(), Terminals::default());
        let (changes, making, known) = (Arc::default(), Mutex::default(), Mutex::default());
        Self { began, uploads, terminals, changes, making, known }
    }

    /// The right to make the sandbox of a name, so that many who want it make one. Others wait.
    pub(super) async fn making(
        &self,
        tenant: KeyId,
        name: &str,
    ) -> Result<OwnedMutexGuard<()>, Refusal> {
        let turn = {
            let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            making.retain(|_, turn| turn.strong_count() > 0);
            let of = making.entry((tenant, name.to_owned())).or_default();
            let turn = of.upgrade().unwrap_or_default();
            *of = Arc::downgrade(&turn);
            turn
        };
        timeout(PATIENCE, turn.lock_owned()).await.map_err(|_| {
            Refusal::new(ErrorCode::Overloaded, "others make this sandbox").retry_after(1000)
        })
    }

    pub(super) async fn change(&self) -> Result<Change, Refusal> {
        let alone = timeout(PATIENCE, Arc::clone(&self.changes).lock_owned()).await;
        alone.map(|alone| Change { _alone: alone }).map_err(|_| {
            Refusal::new(ErrorCode::Overloaded, "others make sandboxes").retry_after(1000)
        })
    }

    fn remember(&self, tenant: KeyId, named: &Arc<Named>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert((tenant, named.name.clone()), Arc::clone(named));
    }

    fn forget(&self, tenant: KeyId, name: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(tenant, name.to_owned()));
    }

    fn remembered(&self, tenant: KeyId, name: &str) -> Option<Arc<Named>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(tenant, name.to_owned())).cloned()
    }
}

/// One of a key.
pub(super) async fn find(
    app: &App,
    tenant: KeyId,
    name: &str,
) -> Result<Option<Arc<Named>>, Refusal> {
    if let Some(named) = app.blaxel.remembered(tenant, name) {
        return Ok(Some(named));
    }
    let found = app.engine.document(KIND, tenant, name).await?;
    let Some(document) = found else { return Ok(None) };
    let named = Arc::new(read(&document)?);
    app.blaxel.remember(tenant, &named);
    Ok(Some(named))
}

/// All of a key, by name.
pub(super) async fn all(app: &App, tenant: KeyId) -> Result<Vec<Named>, Refusal> {
    let found = app.engine.documents(KIND, tenant).await?;
    found.iter().map(read).collect()
}

/// Writes down that a session has another sandbox now.
pub(super) async fn moved(
    app: &App,
    caller: Caller,
    named: &Named,
    to: SandboxId,
) -> Result<(), Refusal> {
    let change = app.blaxel.change().await?;
    // It may have been removed or made again meanwhile.
    let Some(now) = find(app, caller.key, &named.name).await? else { return Ok(()) };
    if now.session != named.session || now.sandboxes.first() == Some(&to) {
        return Ok(());
    }
    let mut now = Named::clone(&now);
    now.sandboxes.insert(0, to);
    now.sandboxes.truncate(BEFORE_MAX);
    change.put(app, caller.key, now).await.map(drop)
}

fn read(document: &Document) -> Result<Named, Refusal> {
    serde_json::from_str(&document.body).map_err(|error| {
        let name = &document.name;
        let cause = format!("what is written down of sandbox {name:?} fits no more: {error}");
        Refusal::new(ErrorCode::Internal, cause)
    })
}

async fn refuse_too_much(
    app: &App,
    tenant: KeyId,
    name: &str,
    bytes: usize,
) -> Result<(), Refusal> {
    let all = app.engine.documents_size(KIND, tenant, None).await?;
    let before = app.engine.documents_size(KIND, tenant, Some(name)).await?;
    let cause = if all.count - before.count >= NAMED_MAX {
        format!("there are {NAMED_MAX} sandboxes already")
    } else if all.bytes - before.bytes + bytes as u64 > BYTES_MAX {
        format!("descriptions of all sandboxes have more than {BYTES_MAX} bytes")
    } else {
        return Ok(());
    };
    Err(Refusal::new(ErrorCode::LimitReached, cause))
}

impl Change {
    /// Writes one down, in place of the one of its name.
    pub(super) async fn put(
        &self,
        app: &App,
        tenant: KeyId,
        named: Named,
    ) -> Result<Arc<Named>, Refusal> {
        let body = serde_json::to_string(&named)
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        refuse_too_much(app, tenant, &named.name, body.len()).await?;
        let document = Document {
            kind: KIND.to_owned(),
            tenant,
            name: named.name.clone(),
            seed: None,
            body: body.into(),
        };
        // Given up in the middle, it is not known what is written.
        app.blaxel.forget(tenant, &named.name);
        app.engine.put_document(document).await?;
        let named = Arc::new(named);
        app.blaxel.remember(tenant, &named);
        Ok(named)
    }

    /// Forgets one.
    pub(super) async fn remove(
        &self,
        app: &App,
        tenant: KeyId,
        name: &str,
    ) -> Result<bool, Refusal> {
        app.blaxel.forget(tenant, name);
        app.engine.remove_document(KIND, tenant, name).await
    }
}
