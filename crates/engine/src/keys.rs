//! Keys: who calls, and what they may see. A key is 256 random bits, so a plain hash of it is as
//! good as the key; only the hash is stored. What belongs to one key is invisible to another.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kernel::Event;
use model::key::impossible_limit;
use model::{ErrorCode, KeyId, KeyLimits, KeyRecord, KeyUse, Refusal, Role, RoleLimits, Wall};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::boxed;
use crate::core::unavailable;
use crate::{Engine, documents, secrets};

/// The prefix of every key, so that a leaked key is recognised.
const PREFIX: &str = "shoal_";
/// The most keys, revoked ones included.
const KEYS_MAX: usize = 10_000;
const NAME_MAX: usize = 100;

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Their key.
    pub key: KeyId,
    /// What it allows.
    pub role: Role,
}

impl Caller {
    /// The server itself, which sees everything.
    pub const SERVER: Self = Self { key: KeyId::NIL, role: Role::Admin };

    /// Whether this caller may see what belongs to a key.
    pub fn sees(self, tenant: KeyId) -> bool {
        self.role == Role::Admin || self.key == tenant
    }
}

/// A new key: the only time that its secret is shown.
pub struct NewKey {
    /// What is stored of it.
    pub record: KeyRecord,
    /// The key itself.
    pub secret: String,
}

/// The keys that there are.
pub(crate) struct Keyring {
    keys: RwLock<Vec<KeyRecord>>,
    /// Grows with every change.
    changes: watch::Sender<u64>,
    of_roles: RoleLimits,
    /// The limits of each key, those of its role included.
    limits: RwLock<BTreeMap<KeyId, KeyLimits>>,
}

impl Keyring {
    pub(crate) fn new(keys: Vec<KeyRecord>, of_roles: RoleLimits) -> Self {
        let limits =
            keys.iter().map(|key| (key.id, key.limits.or(of_roles.of(key.role)))).collect();
        let (keys, changes) = (RwLock::new(keys), watch::Sender::new(0));
        Self { keys, changes, of_roles, limits: RwLock::new(limits) }
    }

    fn limits_of(&self, key: KeyId) -> KeyLimits {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.get(&key).copied().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<KeyRecord> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, record: KeyRecord) {
        let limits = record.limits.or(self.of_roles.of(record.role));
        self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(record.id, limits);
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        match keys.iter_mut().find(|known| known.id == record.id) {
            Some(known) => *known = record,
            None => keys.push(record),
        }
        drop(keys);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn is_valid(&self, id: KeyId, now: Wall) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().any(|key| key.id == id && is_valid(key, now))
    }

    /// Whether a key was revoked. What is in no store was not.
    pub(crate) fn is_revoked(&self, id: KeyId) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().any(|key| key.id == id && key.revoked_at.is_some())
    }

    /// Every key is compared, each in constant time: the duration reveals nothing.
    fn find(&self, secret: &str, now: Wall) -> Option<Caller> {
        let hash = hash(secret);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for key in &*keys {
            if bool::from(key.hash.ct_eq(&hash)) {
                found = Some(key);
            }
        }
        found.filter(|key| is_valid(key, now)).map(|key| Caller { key: key.id, role: key.role })
    }
}

fn is_valid(key: &KeyRecord, now: Wall) -> bool {
    key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end)
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Engine {
    /// The caller with this key, if the key is valid.
    pub fn authenticate(&self, secret: &str) -> Option<Caller> {
        self.core.keyring.find(secret, self.now().wall)
    }

    /// Whether a key of the store is neither revoked nor expired.
    pub fn key_is_valid(&self, id: KeyId) -> bool {
        self.core.keyring.is_valid(id, self.now().wall)
    }

    /// Sees when a key was created, revoked or changed.
    pub fn key_changes(&self) -> watch::Receiver<u64> {
        self.core.keyring.changes.subscribe()
    }

    /// Sets the limits of a key on sandboxes, sessions and stored bytes. They bind what comes
    /// later.
    pub fn set_key_limits(&self, key: KeyId, limits: KeyLimits) {
        self.core.notify(Event::KeyLimitsSet { key, limits });
    }

    /// The limits of a key: its own, else those of its role. None of a key that is in no store.
    pub fn key_limits(&self, key: KeyId) -> KeyLimits {
        self.core.keyring.limits_of(key)
    }

    /// Changes a key's own limits. They bind what comes later: nothing ends because of them, but
    /// events above the limit are deleted with its next event.
    #[boxed]
    pub async fn limit_key(&self, id: KeyId, limits: KeyLimits) -> Result<KeyRecord, Refusal> {
        let Some(mut record) = self.keys().into_iter().find(|key| key.id == id) else {
            return Err(Refusal::new(ErrorCode::NotFound, format!("no key {id} is known")));
        };
        check_limits(&limits)?;
        record.limits = limits;
        self.write_key(&record).await?;
        self.apply_limits(id).await?;
        tracing::info!(key = %id, name = record.name, ?limits, "the limits of a key were changed");
        Ok(record)
    }

    /// Hands the limits of a key to those that enforce them.
    async fn apply_limits(&self, id: KeyId) -> Result<(), Refusal> {
        let limits = self.key_limits(id);
        self.set_key_limits(id, limits);
        let limited = self.core.store.limit_events(id, limits.events).await;
        limited.map_err(|error| unavailable(&format!("{error} ({})", error.remedy())))
    }

    /// Hands the limits of all keys to those that enforce them, once, at the start.
    pub(crate) async fn apply_all_limits(&self) {
        for key in self.keys().iter().filter(|key| key.revoked_at.is_none()) {
            if self.key_limits(key.id) == KeyLimits::default() {
                continue;
            }
            if let Err(refusal) = self.apply_limits(key.id).await {
                tracing::warn!(key = %key.id, cause = %refusal, "its limit on events does not hold");
            }
        }
    }

    /// How many events of each key are stored.
    #[boxed]
    pub async fn event_counts(&self) -> Result<BTreeMap<KeyId, u64>, Refusal> {
        let counts = self.core.store.event_counts().await;
        counts.map_err(|error| unavailable(&format!("{error} ({})", error.remedy())))
    }

    /// What a key uses of these limits.
    pub fn key_use(&self, key: KeyId) -> KeyUse {
        self.core.read(|kernel| kernel.key_use(key))
    }

    /// All keys, revoked ones too.
    pub fn keys(&self) -> Vec<KeyRecord> {
        self.core.keyring.all()
    }

    /// Makes a key. Its secret is shown once; only its hash is stored.
    #[boxed]
    pub async fn create_key(
        &self,
        name: &str,
        role: Role,
        ttl_ms: Option<u64>,
    ) -> Result<NewKey, Refusal> {
        self.create_limited_key(None, name, role, ttl_ms, KeyLimits::default()).await
    }

    /// Makes a key with limits of its own, and with this id if one is given.
    #[boxed]
    pub async fn create_limited_key(
        &self,
        id: Option<KeyId>,
        name: &str,
        role: Role,
        ttl_ms: Option<u64>,
        limits: KeyLimits,
    ) -> Result<NewKey, Refusal> {
        check_limits(&limits)?;
        let invalid = |cause: &'static str| Err(Refusal::new(ErrorCode::InvalidArgument, cause));
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return invalid("name: 1 to 100 bytes without control characters");
        }
        if ttl_ms == Some(0) {
            return invalid("ttl_s: must be above 0");
        }
        if self.keys().len() >= KEYS_MAX {
            let cause = format!("there are {KEYS_MAX} keys already");
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        let mut bits = [0; 32];
        let mut random = [0; 16];
        getrandom::fill(&mut bits)
            .and_then(|()| getrandom::fill(&mut random))
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        let secret = format!("{PREFIX}{}", hex(&bits));
        let now = self.now().wall;
        let record = KeyRecord {
            id: id.unwrap_or_else(|| {
                KeyId::from_uuid(uuid::Builder::from_random_bytes(random).into_uuid())
            }),
            name: name.to_owned(),
            role,
            hash: hash(&secret),
            created_at: now,
            expires_at: ttl_ms.map(|ms| now.plus(ms)),
            revoked_at: None,
            limits,
        };
        self.write_key(&record).await?;
        if self.key_limits(record.id) != KeyLimits::default() {
            self.apply_limits(record.id).await?;
        }
        tracing::info!(key = %record.id, name, role = %role, "a key was created");
        Ok(NewKey { record, secret })
    }

    /// Makes a key useless, at once and for ever. What was made with it stays until it ends.
    #[boxed]
    pub async fn revoke_key(&self, id: KeyId) -> Result<(), Refusal> {
        let Some(mut record) = self.keys().into_iter().find(|key| key.id == id) else {
            return Err(Refusal::new(ErrorCode::NotFound, format!("no key {id} is known")));
        };
        if record.revoked_at.is_none() {
            record.revoked_at = Some(self.now().wall);
            self.write_key(&record).await?;
            tracing::info!(key = %id, name = record.name, "a key was revoked");
        }
        // Its documents belong to no key now. A repeated request tries again, and the sweep of seed
        // archives removes documents that were being written meanwhile.
        documents::remove_all_of(&self.core, id).await
    }

    /// Runs to its end even if the caller goes away: a stored key must be known here too.
    async fn write_key(&self, record: &KeyRecord) -> Result<(), Refusal> {
        let (core, record) = (Arc::clone(&self.core), record.clone());
        let writing = tasks::spawn(async move {
            // With a revoked key its secrets go, and none may be stored for it meanwhile.
            let _alone = core.secrets.changing.lock().await;
            let revoked = record.revoked_at.is_some();
            let written = core.store.put_key(&record).await;
            written.map_err(|error| unavailable(&format!("{error} ({})", error.remedy())))?;
            core.keyring.put(record);
            if revoked {
                secrets::count(&core).await;
            }
            Ok(())
        });
        writing.await.unwrap_or_else(|error| {
            Err(Refusal::new(ErrorCode::Internal, format!("a key was not written: {error}")))
        })
    }
}

fn check_limits(limits: &KeyLimits) -> Result<(), Refusal> {
    let Some(limit) = impossible_limit(limits) else { return Ok(()) };
    let cause = format!("limits.{limit}: must be above 0");
    Err(Refusal::new(ErrorCode::InvalidArgument, cause))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
