//! Requests that may be sent twice. A client that does not know whether its request arrived sends
//! it again with the same `Idempotency-Key`: what was done is not done again, and the answer is the
//! same. Two at once are one: the second waits for the first.
//!
//! The id of a lease is derived from the key, so that even a restarted server can tell that the
//! lease was handed out and is lost. The ids of a session and of an API key are too; those are then
//! still there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use model::{ErrorCode, KeyId, LeaseId, ProcessId, SessionId};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};
use wire::CheckoutPath;

use crate::boxed;
use crate::refused::Refused;

/// The header in which a client names a request that it may send twice.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Per API key: requests of one key never displace those of another.
const REMEMBERED: usize = 10_000;
const REMEMBERED_FOR: Duration = Duration::from_hours(24);
/// How often outdated entries of all keys are removed.
const SWEEP: Duration = Duration::from_mins(1);
const LENGTH_MAX: usize = 255;
/// Longer than any checkout may wait.
const PATIENCE: Duration = Duration::from_mins(11);

/// Earlier requests by their idempotency key.
#[derive(Default)]
pub struct Idempotency {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_key: BTreeMap<KeyId, Known>,
    swept_at: Option<Instant>,
}

/// Earlier requests of one API key.
#[derive(Default)]
struct Known {
    entries: BTreeMap<Box<str>, Entry>,
    /// In the order in which they came.
    ages: VecDeque<(Instant, Box<str>)>,
}

#[derive(Clone)]
struct Entry {
    /// The digest of the request; none if it was abandoned before it arrived.
    fingerprint: Option<[u8; 32]>,
    slot: Arc<AsyncMutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    /// How many attempts failed. Each attempt has its own lease, since an abandoned one may have
    /// been handed out for a moment.
    given_up: u32,
    /// The client abandoned the request, whether it has arrived or not.
    abandoned: bool,
    answer: Option<Answer>,
}

/// An answer.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A lease: the answer is how it is now.
    Lease {
        /// Which.
        lease: LeaseId,
        /// How its sandbox was obtained.
        path: CheckoutPath,
    },
    /// A session: the answer is how it is now.
    Session(SessionId),
    /// A process of the sandbox that the request names: the answer is how it is now.
    Process(ProcessId),
    /// A key: its secret is shown only once, so there is nothing to answer again.
    Key(KeyId),
    /// Exactly this.
    Said(StatusCode, Bytes),
}

/// The right to carry out a request, or its earlier answer. Dropped before it is settled, the next
/// request with the same key carries it out.
pub struct Claim {
    slot: OwnedMutexGuard<Slot>,
    key: KeyId,
    name: Box<str>,
}

impl Claim {
    /// The earlier answer.
    pub fn answer(&self) -> Option<Answer> {
        self.slot.answer.clone()
    }

    /// The lease of this attempt.
    pub fn lease(&self) -> LeaseId {
        LeaseId::from_u128(self.id(b"shoal lease\0"))
    }

    /// The session of this attempt.
    pub fn session(&self) -> SessionId {
        SessionId::from_u128(self.id(b"shoal session\0"))
    }

    /// The API key that this request creates. A failed attempt created none, so all attempts have
    /// the same, and a restarted server finds out that it was created.
    pub fn created_key(&self) -> KeyId {
        KeyId::from_u128(self.id_of_attempt(b"shoal key\0", 0))
    }

    fn id(&self, kind: &[u8]) -> u128 {
        self.id_of_attempt(kind, self.slot.given_up)
    }

    fn id_of_attempt(&self, kind: &[u8], attempt: u32) -> u128 {
        let mut hash = Sha256::new();
        hash.update(kind);
        hash.update(self.key.as_u128().to_be_bytes());
        hash.update(attempt.to_be_bytes());
        hash.update(self.name.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let (half, _) = digest.split_at(16);
        let bits = half.iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
        // The form of a UUID that was made by its own rules: version 8.
        let version = bits & !(0xf << 76) | 0x8 << 76;
        version & !(0x3 << 62) | 0x2 << 62
    }

    /// The request was carried out, with this answer.
    pub fn settle(mut self, answer: Answer) {
        self.slot.answer = Some(answer);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.slot.answer.is_none() {
            self.slot.given_up = self.slot.given_up.wrapping_add(1);
        }
    }
}

impl Idempotency {
    /// Waits for the turn of a request that has an `Idempotency-Key`; none if it has not.
    #[boxed]
    pub async fn claim(
        &self,
        headers: &HeaderMap,
        key: KeyId,
        route: &str,
        body: &[u8],
    ) -> Result<Option<Claim>, Refused> {
        let Some(name) = name(headers)? else { return Ok(None) };
        let mut hash = Sha256::new();
        hash.update(route.as_bytes());
        hash.update(b"\0");
        hash.update(body);
        let fingerprint = Some(hash.finalize().into());
        let entry = self.entry(key, name.clone(), fingerprint);
        if entry.fingerprint.is_some() && entry.fingerprint != fingerprint {
            return Err(conflict(USED));
        }
        let slot = entry.locked().await?;
        if slot.abandoned {
            return Err(conflict("the request with this Idempotency-Key was abandoned"));
        }
        Ok(Some(Claim { slot, key, name }))
    }

    /// The client abandons the request with this key: it will not be carried out any more.
    /// Answers with the lease that was handed out for it, if any, once that is certain.
    #[boxed]
    pub async fn abandon(
        &self,
        headers: &HeaderMap,
        key: KeyId,
    ) -> Result<Option<LeaseId>, Refused> {
        let Some(name) = name(headers)? else {
            let cause = "the Idempotency-Key of the abandoned request is required";
            return Err(Refused::bad("Idempotency-Key", cause));
        };
        // An unknown request may still be on its way.
        let mut slot = self.entry(key, name, None).locked().await?;
        match &slot.answer {
            Some(Answer::Lease { lease, .. }) => Ok(Some(*lease)),
            Some(Answer::Session(_) | Answer::Process(_) | Answer::Key(_) | Answer::Said(..)) => {
                Err(conflict(USED))
            }
            None => {
                slot.abandoned = true;
                Ok(None)
            }
        }
    }

    fn entry(&self, key: KeyId, name: Box<str>, fingerprint: Option<[u8; 32]>) -> Entry {
        let now = Instant::now();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.sweep(now);
        let known = table.by_key.entry(key).or_default();
        known.forget(now);
        if let Some(entry) = known.entries.get(&name) {
            return entry.clone();
        }
        let entry = Entry { fingerprint, slot: Arc::default() };
        known.ages.push_back((now, name.clone()));
        known.entries.insert(name, entry.clone());
        entry
    }
}

impl Entry {
    /// Waits until no other request works on it.
    async fn locked(self) -> Result<OwnedMutexGuard<Slot>, Refused> {
        timeout(PATIENCE, self.slot.lock_owned()).await.map_err(|_| {
            let cause = "the same request was sent before and is still in progress";
            Refused::new(ErrorCode::DeadlineExceeded, cause)
        })
    }
}

const USED: &str = "this Idempotency-Key was already used for a different request";

fn conflict(cause: &'static str) -> Refused {
    let mut refused = Refused::new(ErrorCode::IdempotencyConflict, cause);
    refused.field = Some("Idempotency-Key".into());
    refused
}

/// The key of a request, if it has one.
fn name(headers: &HeaderMap) -> Result<Option<Box<str>>, Refused> {
    let Some(given) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    match given.to_str() {
        Ok(text) if is_key(text) => Ok(Some(text.into())),
        Ok(_) | Err(_) => {
            let cause =
                format!("an Idempotency-Key must have 1 to {LENGTH_MAX} visible characters");
            Err(Refused::bad("Idempotency-Key", cause))
        }
    }
}

/// Also said in the description of the header.
fn is_key(text: &str) -> bool {
    (1..=LENGTH_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Table {
    /// Removes outdated entries now and then, also of keys that no longer send requests.
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_some_and(|at| now.duration_since(at) < SWEEP) {
            return;
        }
        self.swept_at = Some(now);
        self.by_key.retain(|_, known| {
            known.forget(now);
            !known.entries.is_empty()
        });
    }
}

impl Known {
    /// Removes outdated entries, and the oldest ones if there are too many.
    fn forget(&mut self, now: Instant) {
        while let Some((at, _)) = self.ages.front()
            && (self.ages.len() >= REMEMBERED || now.duration_since(*at) >= REMEMBERED_FOR)
        {
            if let Some((_, name)) = self.ages.pop_front() {
                self.entries.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyId = KeyId::from_u128(1);

    async fn claim(table: &Idempotency, name: &str, body: &str) -> Result<Option<Claim>, Refused> {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, name.parse().unwrap());
        table.claim(&headers, KEY, "/v1/checkouts", body.as_bytes()).await
    }

    fn said() -> Answer {
        Answer::Said(StatusCode::CREATED, Bytes::from_static(b"{}"))
    }

    #[tokio::test]
    async fn idempotent_request_gets_the_same_answer_again() {
        let table = Idempotency::default();
        let none = table.claim(&HeaderMap::new(), KEY, "/", b"").await.unwrap();
        assert!(none.is_none(), "without a key every request is new");
        let first = claim(&table, "a", "1").await.unwrap().unwrap();
        assert!(first.answer().is_none());
        first.settle(said());
        let second = claim(&table, "a", "1").await.unwrap().unwrap();
        assert!(matches!(second.answer(), Some(Answer::Said(StatusCode::CREATED, _))));
        drop(second);
        assert!(claim(&table, "a", "1").await.unwrap().unwrap().answer().is_some());
        let other = claim(&table, "a", "2").await.err().unwrap();
        assert_eq!(other.refusal.code, ErrorCode::IdempotencyConflict);
        assert!(claim(&table, "", "1").await.is_err());
        assert!(claim(&table, "a b", "1").await.is_err());
        assert!(claim(&table, &"x".repeat(LENGTH_MAX), "1").await.is_ok());
        assert!(claim(&table, &"x".repeat(LENGTH_MAX + 1), "1").await.is_err());
    }

    #[tokio::test]
    async fn idempotent_request_waits_for_the_first_with_its_key() {
        let table = Idempotency::default();
        let first = claim(&table, "a", "1").await.unwrap().unwrap();
        let second = claim(&table, "a", "1");
        tokio::pin!(second);
        assert!((&mut second).now_or_never().is_none());
        first.settle(said());
        assert!(second.await.unwrap().unwrap().answer().is_some());
    }

    #[tokio::test]
    async fn idempotent_request_that_failed_is_retried_with_another_lease() {
        let table = Idempotency::default();
        let first = claim(&table, "a", "1").await.unwrap().unwrap();
        let lease = first.lease();
        drop(first);
        let second = claim(&table, "a", "1").await.unwrap().unwrap();
        assert!(second.answer().is_none());
        assert_ne!(second.lease(), lease);
        let again = Idempotency::default();
        let after_restart = claim(&again, "a", "1").await.unwrap().unwrap();
        assert_eq!(after_restart.lease(), lease, "the name of a lease outlives the server");
        let other = claim(&again, "b", "1").await.unwrap().unwrap();
        assert_ne!(other.lease(), lease);
        assert_eq!(lease.to_string().chars().nth(14), Some('8'), "{lease}");
    }

    #[tokio::test]
    async fn abandoned_request_is_not_carried_out() {
        let table = Idempotency::default();
        let headers = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, name.parse().unwrap());
            headers
        };
        let abandon = |name: &str| {
            let headers = headers(name);
            async { table.abandon(&{ headers }, KEY).await.map_err(|refused| refused.refusal.code) }
        };
        // Before it arrived, or after it came to nothing: it comes to nothing.
        assert_eq!(abandon("early").await, Ok(None));
        drop(claim(&table, "tried", "1").await.unwrap());
        assert_eq!(abandon("tried").await, Ok(None));
        for name in ["early", "tried"] {
            let refused = claim(&table, name, "1").await.err().unwrap();
            assert_eq!(refused.refusal.code, ErrorCode::IdempotencyConflict);
        }
        // During the request: answered when it is certain.
        let first = claim(&table, "a", "1").await.unwrap().unwrap();
        let lease = first.lease();
        let abandoned = abandon("a");
        tokio::pin!(abandoned);
        assert!((&mut abandoned).now_or_never().is_none());
        first.settle(Answer::Lease { lease, path: CheckoutPath::Fast });
        assert_eq!(abandoned.await, Ok(Some(lease)));
        assert_eq!(abandon("a").await, Ok(Some(lease)), "as often as it is said");
        claim(&table, "said", "1").await.unwrap().unwrap().settle(said());
        assert_eq!(abandon("said").await, Err(ErrorCode::IdempotencyConflict));
        let none = table.abandon(&HeaderMap::new(), KEY).await.err().unwrap();
        assert_eq!(none.refusal.code, ErrorCode::BadRequest);
    }

    #[tokio::test]
    async fn idempotency_keys_are_bounded() {
        let table = Idempotency::default();
        for n in 0..=REMEMBERED {
            claim(&table, &n.to_string(), "1").await.unwrap().unwrap().settle(said());
        }
        let remembered =
            |table: &Idempotency| table.table.lock().unwrap().by_key[&KEY].entries.len();
        assert_eq!(remembered(&table), REMEMBERED);
        assert!(claim(&table, "0", "2").await.is_ok(), "the oldest is forgotten");
        assert!(claim(&table, "1000", "2").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn idempotency_keys_of_one_api_key_do_not_displace_those_of_another() {
        const OTHER: KeyId = KeyId::from_u128(2);
        let table = Idempotency::default();
        claim(&table, "mine", "1").await.unwrap().unwrap().settle(said());
        let mut headers = HeaderMap::new();
        for n in 0..=REMEMBERED {
            headers.insert(IDEMPOTENCY_KEY, n.to_string().parse().unwrap());
            table.abandon(&headers, OTHER).await.unwrap();
        }
        assert!(claim(&table, "mine", "1").await.unwrap().unwrap().answer().is_some());
        tokio::time::advance(REMEMBERED_FOR).await;
        drop(claim(&table, "later", "1").await);
        let keys: Vec<_> = table.table.lock().unwrap().by_key.keys().copied().collect();
        assert_eq!(keys, [KEY], "a key without recent requests is removed");
    }

    use futures_util::FutureExt as _;
}
