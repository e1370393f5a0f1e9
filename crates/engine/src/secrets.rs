//! Secrets: stored for a key or for the node, and found by name when a claim needs one. Values are
//! read from the store when they are needed and kept nowhere else. Nothing here logs a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::secret_record::{SECRETS_BYTES_MAX, SECRETS_MAX};
use model::{
    ErrorCode, KeyId, Refusal, SecretCounts, SecretInfo, SecretName, SecretOwner, SecretRecord,
    SecretValue,
};

use crate::Engine;
use crate::boxed;
use crate::core::Core;
use crate::documents::refused;

/// Reads a variable of the server's own environment.
pub type ReadVariable = fn(&str) -> Option<String>;

/// Variables that configure the server may hold its own keys: claims never get them.
const OWN_VARIABLES: [&str; 2] = ["SHOAL_", "ASH_"];

/// What the engine knows of secrets without reading the store.
pub(crate) struct Secrets {
    /// One change at a time, so that limits are kept, and that none is stored for a revoked key.
    pub(crate) changing: tokio::sync::Mutex<()>,
    environment: Option<ReadVariable>,
    node: AtomicU64,
    keys: AtomicU64,
}

impl Secrets {
    pub(crate) fn new(environment: Option<ReadVariable>) -> Self {
        let (node, keys) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { changing: tokio::sync::Mutex::default(), environment, node, keys }
    }

    /// A variable of the server with this name, if claims may have it.
    fn variable(&self, name: &SecretName) -> Option<SecretValue> {
        let read = self.environment?;
        if OWN_VARIABLES.iter().any(|own| name.as_str().starts_with(own)) {
            return None;
        }
        SecretValue::new(read(name.as_str())?).ok()
    }
}

/// A secret was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretPut {
    /// What may be shown of it.
    pub info: SecretInfo,
    /// There was none of this name before.
    pub created: bool,
}

/// The refusal of a claim that names a secret which is not stored.
pub fn secret_missing(name: &SecretName) -> Refusal {
    let cause = format!("no secret {name} is stored for this key or for the node");
    Refusal::new(ErrorCode::SecretMissing, cause)
}

impl Engine {
    /// Stores a secret, in place of the one of this owner and name if there is one. Runs to its end
    /// even if the caller goes away.
    #[boxed]
    pub async fn put_secret(
        &self,
        owner: SecretOwner,
        name: SecretName,
        value: SecretValue,
    ) -> Result<SecretPut, Refusal> {
        let core = Arc::clone(&self.core);
        finished(tasks::spawn(async move { put(&core, owner, name, value).await })).await
    }

    /// Removes a secret. Sandboxes that have its value keep it.
    #[boxed]
    pub async fn remove_secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<(), Refusal> {
        let (core, name) = (Arc::clone(&self.core), name.clone());
        finished(tasks::spawn(async move { remove(&core, owner, &name).await })).await
    }

    /// The secrets of an owner by name, without their values.
    #[boxed]
    pub async fn list_secrets(&self, owner: SecretOwner) -> Result<Vec<SecretInfo>, Refusal> {
        self.core.store.secrets(owner).await.map_err(|error| refused(&error))
    }

    /// The value that a name has for a key: of the key's own secret, else of the node's, else of the
    /// server's variable of this name if the configuration allows that.
    #[boxed]
    pub async fn secret_value(
        &self,
        key: KeyId,
        name: &SecretName,
    ) -> Result<Option<SecretValue>, Refusal> {
        stored(&self.core, key, name).await
    }

    /// The same for a claim that cannot do without it.
    #[boxed]
    pub async fn needed_secret(
        &self,
        key: KeyId,
        name: &SecretName,
    ) -> Result<SecretValue, Refusal> {
        self.secret_value(key, name).await?.ok_or_else(|| secret_missing(name))
    }

    /// How many secrets are stored.
    pub fn secret_counts(&self) -> SecretCounts {
        let Secrets { node, keys, .. } = &self.core.secrets;
        SecretCounts { node: node.load(Ordering::Relaxed), keys: keys.load(Ordering::Relaxed) }
    }
}

/// The value that a name has for a key, if it has one.
pub(crate) async fn stored(
    core: &Core,
    key: KeyId,
    name: &SecretName,
) -> Result<Option<SecretValue>, Refusal> {
    for owner in [SecretOwner::Key(key), SecretOwner::Node] {
        let found = core.store.secret(owner, name).await;
        if let Some(secret) = found.map_err(|error| refused(&error))? {
            return Ok(Some(secret.value));
        }
    }
    Ok(core.secrets.variable(name))
}

async fn put(
    core: &Core,
    owner: SecretOwner,
    name: SecretName,
    value: SecretValue,
) -> Result<SecretPut, Refusal> {
    let _alone = core.secrets.changing.lock().await;
    if let SecretOwner::Key(key) = owner
        && core.keyring.is_revoked(key)
    {
        return Err(Refusal::new(ErrorCode::Unauthorized, "the key was revoked"));
    }
    let others = core.store.secrets(owner).await.map_err(|error| refused(&error))?;
    let before = others.iter().find(|info| info.name == name);
    check_room(owner, &others, before, value.len() as u64)?;
    let now = core.now().wall;
    let (bytes, created) = (value.len() as u64, before.is_none());
    let created_at = before.map_or(now, |info| info.created_at);
    let info = SecretInfo { owner, name, bytes, created_at, updated_at: now };
    let record = SecretRecord { info, value };
    core.store.put_secret(&record).await.map_err(|error| refused(&error))?;
    count(core).await;
    tracing::info!(name = %record.info.name, scope = owner.scope(), created, "a secret was stored");
    Ok(SecretPut { info: record.info, created })
}

/// Refuses a secret for which its owner has no room. Nothing frees room by itself, so there is no
/// time after which to retry.
fn check_room(
    owner: SecretOwner,
    others: &[SecretInfo],
    before: Option<&SecretInfo>,
    bytes: u64,
) -> Result<(), Refusal> {
    let whose = match owner {
        SecretOwner::Node => "the node",
        SecretOwner::Key(_) => "a key",
    };
    let full = |cause: String| Err(Refusal::new(ErrorCode::QuotaExceeded, cause));
    if before.is_none() && others.len() >= SECRETS_MAX {
        return full(format!("{whose} may have {SECRETS_MAX} secrets, and there are as many"));
    }
    let used: u64 = others.iter().map(|info| info.bytes).sum();
    let used = used - before.map_or(0, |info| info.bytes);
    if used + bytes > SECRETS_BYTES_MAX {
        return full(format!(
            "the secrets of {whose} may have {SECRETS_BYTES_MAX} bytes, the others have {used}, \
             and this one has {bytes}"
        ));
    }
    Ok(())
}

async fn remove(core: &Core, owner: SecretOwner, name: &SecretName) -> Result<(), Refusal> {
    let _alone = core.secrets.changing.lock().await;
    let removed = core.store.remove_secret(owner, name).await;
    if !removed.map_err(|error| refused(&error))? {
        let cause = match owner {
            SecretOwner::Node => format!("the node has no secret {name}"),
            SecretOwner::Key(_) => format!("this key has no secret {name}"),
        };
        return Err(Refusal::new(ErrorCode::NotFound, cause));
    }
    count(core).await;
    tracing::info!(%name, scope = owner.scope(), "a secret was removed");
    Ok(())
}

/// Counts the stored secrets for the metrics. If that fails, the old numbers stay.
pub(crate) async fn count(core: &Core) {
    match core.store.secret_counts().await {
        Ok(SecretCounts { node, keys }) => {
            core.secrets.node.store(node, Ordering::Relaxed);
            core.secrets.keys.store(keys, Ordering::Relaxed);
        }
        Err(error) => tracing::debug!(%error, "the secrets were not counted"),
    }
}

async fn finished<T>(changing: tokio::task::JoinHandle<Result<T, Refusal>>) -> Result<T, Refusal> {
    changing.await.unwrap_or_else(|error| {
        Err(Refusal::new(ErrorCode::Internal, format!("a secret was not changed: {error}")))
    })
}
