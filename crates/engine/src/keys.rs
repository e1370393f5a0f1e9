//! Keys: who calls, and what they see. A key is 256 random bits, so a plain hash of it is as good
//! as the key is; only that hash is kept. What belongs to one key is invisible to another.

use std::sync::{Arc, PoisonError, RwLock};

use model::{ErrorCode, KeyId, KeyRecord, Refusal, Role, Wall};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::boxed;
use crate::core::unavailable;
use crate::{Engine, documents};

/// What every key begins with, so that one is recognised where it should not be.
const PREFIX: &str = "shoal_";
/// The most keys, revoked ones included.
const KEYS_MAX: usize = 10_000;
const NAME_MAX: usize = 100;

/// Who asks.
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

    /// Whether what belongs to a key is visible.
    pub fn sees(self, tenant: KeyId) -> bool {
        self.role == Role::Admin || self.key == tenant
    }
}

/// A key that was just made: the only time that it is told.
pub struct NewKey {
    /// What is kept of it.
    pub record: KeyRecord,
    /// The key itself.
    pub secret: String,
}

/// The keys that there are.
pub(crate) struct Keyring {
    keys: RwLock<Vec<KeyRecord>>,
}

impl Keyring {
    pub(crate) fn new(keys: Vec<KeyRecord>) -> Self {
        Self { keys: RwLock::new(keys) }
    }

    pub(crate) fn all(&self) -> Vec<KeyRecord> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, record: KeyRecord) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        match keys.iter_mut().find(|known| known.id == record.id) {
            Some(known) => *known = record,
            None => keys.push(record),
        }
    }

    /// Every key is compared, each in constant time: how long it takes says nothing.
    fn find(&self, secret: &str, now: Wall) -> Option<Caller> {
        let hash = hash(secret);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for key in &*keys {
            if bool::from(key.hash.ct_eq(&hash)) {
                found = Some(key);
            }
        }
        let works = |key: &&KeyRecord| {
            key.revoked_at.is_none() && key.expires_at.is_none_or(|end| now < end)
        };
        found.filter(works).map(|key| Caller { key: key.id, role: key.role })
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Engine {
    /// Who has this key, if it is one that works.
    pub fn authenticate(&self, secret: &str) -> Option<Caller> {
        self.core.keyring.find(secret, self.now().wall)
    }

    /// All keys, revoked ones too.
    pub fn keys(&self) -> Vec<KeyRecord> {
        self.core.keyring.all()
    }

    /// Makes a key. It is told once, and only its hash is kept.
    #[boxed]
    pub async fn create_key(
        &self,
        name: &str,
        role: Role,
        ttl_ms: Option<u64>,
    ) -> Result<NewKey, Refusal> {
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
        let mut id = [0; 16];
        getrandom::fill(&mut bits)
            .and_then(|()| getrandom::fill(&mut id))
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        let secret = format!("{PREFIX}{}", hex(&bits));
        let now = self.now().wall;
        let record = KeyRecord {
            id: KeyId::from_uuid(uuid::Builder::from_random_bytes(id).into_uuid()),
            name: name.to_owned(),
            role,
            hash: hash(&secret),
            created_at: now,
            expires_at: ttl_ms.map(|ms| now.plus(ms)),
            revoked_at: None,
        };
        self.write_key(&record).await?;
        tracing::info!(key = %record.id, name, role = %role, "a key was made");
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
        // What it wrote down is nobody's any more. Asked for again, it is tried again; and what
        // was being written meanwhile goes when seeds are looked through.
        documents::forget_all_of(&self.core, id).await
    }

    /// Goes on to its end also if whoever asked goes away: what is written counts here too.
    async fn write_key(&self, record: &KeyRecord) -> Result<(), Refusal> {
        let (core, record) = (Arc::clone(&self.core), record.clone());
        let writing = tasks::spawn(async move {
            let written = core.store.put_key(&record).await;
            written.map_err(|error| unavailable(&format!("{error} ({})", error.remedy())))?;
            core.keyring.put(record);
            Ok(())
        });
        writing.await.unwrap_or_else(|error| {
            Err(Refusal::new(ErrorCode::Internal, format!("a key was not written: {error}")))
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
