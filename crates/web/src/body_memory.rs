//! Limits the memory of request bodies, and of answers until they are sent. Bytes count when they
//! arrive or are made, not when they are announced, so that a client cannot reserve memory with a
//! header alone. The first few KiB of each are free: the number of requests bounds them, and small
//! requests pass while large ones are refused. No request waits here: without room it is refused
//! and asked to retry.
//!
//! A key may hold half of what other keys leave. So whatever one key holds, and for however long,
//! the next one finds room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{ErrorCode, KeyId, KeyLimit, Refusal};

use crate::account::{self, Payer};
use crate::refused::Refused;

/// What of each body and each answer is not counted.
pub(crate) const FREE_BYTES: u64 = 16 << 10;

/// Memory for bodies and answers. Cheap to clone.
#[derive(Clone)]
pub struct BodyMemory(Arc<Mutex<Table>>);

struct Table {
    most: u64,
    all: u64,
    by_key: BTreeMap<KeyId, u64>,
}

impl BodyMemory {
    /// One key may hold so many bytes while other keys hold none; all keys together hold at most
    /// twice as many.
    pub fn new(bytes: u64) -> Self {
        let most = bytes.saturating_mul(2);
        Self(Arc::new(Mutex::new(Table { most, all: 0, by_key: BTreeMap::new() })))
    }

    /// What a key holds.
    pub fn held(&self, key: KeyId) -> u64 {
        self.table().by_key.get(&key).copied().unwrap_or_default()
    }

    /// Refuses a key whose unread answers take more than it may ever hold.
    pub(crate) fn check(&self, payer: &Payer) -> Result<(), Refused> {
        let table = self.table();
        let held = table.by_key.get(&payer.key).copied().unwrap_or_default();
        // Not what it may hold now: what others hold must not stop small requests.
        let most = payer.most.unwrap_or(u64::MAX).min(table.most / 2);
        if held <= most { Ok(()) } else { Err(table.no_room(payer, 1)) }
    }

    // Numbers are consistent after every step, so a poisoned lock is harmless.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// What a key may hold now.
    fn most_of(&self, key: KeyId) -> u64 {
        let held = self.by_key.get(&key).copied().unwrap_or_default();
        self.most.saturating_sub(self.all.saturating_sub(held)) / 2
    }

    fn add(&mut self, key: KeyId, more: u64) {
        self.all += more;
        *self.by_key.entry(key).or_default() += more;
    }

    fn take(&mut self, payer: &Payer, more: u64) -> Result<(), Refused> {
        let held = self.by_key.get(&payer.key).copied().unwrap_or_default();
        if held + more > self.most_of(payer.key).min(payer.most.unwrap_or(u64::MAX)) {
            return Err(self.no_room(payer, more));
        }
        self.add(payer.key, more);
        Ok(())
    }

    fn give_back(&mut self, key: KeyId, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(held) = self.by_key.get_mut(&key) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.by_key.remove(&key);
            }
        }
    }

    fn no_room(&self, payer: &Payer, more: u64) -> Refused {
        let held = self.by_key.get(&payer.key).copied().unwrap_or_default();
        if let Some(most) = payer.most.filter(|most| *most <= self.most_of(payer.key)) {
            return KeyLimit::BodyBytes.exceeded(most, held, more).into();
        }
        let cause = format!(
            "the bodies and the unread answers of this key take {held} bytes of memory, of {} that \
             it may take now",
            self.most_of(payer.key)
        );
        Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000).into()
    }
}

/// The share of one body or answer. Returned on drop, so it must live as long as the bytes.
#[derive(Default)]
pub struct Share {
    held: Option<Held>,
}

struct Held {
    memory: BodyMemory,
    payer: Payer,
    bytes: u64,
}

impl Share {
    /// Grows to a body of this size, if there is room. It counts for the key of the request that
    /// is worked on.
    pub fn grow_to(&mut self, memory: &BodyMemory, bytes: u64) -> Result<(), Refused> {
        self.grow(memory, bytes, Table::take)
    }

    /// Grows to bytes that are there already, whether there is room or not: the key is refused more
    /// until it has read them.
    pub(crate) fn count(&mut self, memory: &BodyMemory, bytes: u64) {
        let counted = self.grow(memory, bytes, |table, payer, more| {
            table.add(payer.key, more);
            Ok(())
        });
        debug_assert!(counted.is_ok(), "what is there is counted");
    }

    fn grow(
        &mut self,
        memory: &BodyMemory,
        bytes: u64,
        take: impl FnOnce(&mut Table, &Payer, u64) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let counted = bytes.saturating_sub(FREE_BYTES);
        let more = counted.saturating_sub(self.counted());
        if more == 0 {
            return Ok(());
        }
        let held = self.held.get_or_insert_with(|| Held {
            memory: memory.clone(),
            payer: account::payer(),
            bytes: 0,
        });
        take(&mut memory.table(), &held.payer, more)?;
        held.bytes += more;
        held.payer.holds(more);
        Ok(())
    }

    /// Whether it takes nothing of the memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.counted() == 0
    }

    /// How much of the memory it takes.
    pub(crate) fn counted(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.bytes)
    }

    /// Returns memory that is no longer used.
    pub fn shrink_to(&mut self, bytes: u64) {
        if let Some(held) = &mut self.held {
            held.shrink_to(bytes.saturating_sub(FREE_BYTES));
        }
    }
}

impl Held {
    fn shrink_to(&mut self, counted: u64) {
        let less = self.bytes.saturating_sub(counted);
        self.memory.table().give_back(self.payer.key, less);
        self.payer.lets_go(less);
        self.bytes -= less;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;

    const ADA: KeyId = KeyId::from_u128(1);
    const EVE: KeyId = KeyId::from_u128(2);

    fn code(done: Result<(), Refused>) -> Option<ErrorCode> {
        done.err().map(|refused| refused.refusal.code)
    }

    fn of<T>(key: KeyId, doing: impl FnOnce() -> T) -> T {
        Account::new(Payer::new(key, None), &BodyMemory::new(0)).sync_scope(doing)
    }

    #[test]
    fn body_memory_above_the_limit_is_refused_until_some_is_returned() {
        let memory = BodyMemory::new(100 << 10);
        let all = || memory.table().all;
        let mut first = Share::default();
        for kib in [1, 16, 40, 30, 76] {
            first.grow_to(&memory, kib << 10).unwrap();
        }
        assert_eq!(all(), 60 << 10);
        let mut second = Share::default();
        let refused = second.grow_to(&memory, (56 << 10) + 1).unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::Overloaded);
        assert_eq!(refused.refusal.retry_after_ms, Some(1000));
        second.grow_to(&memory, 56 << 10).unwrap();
        let mut small = Share::default();
        small.grow_to(&memory, FREE_BYTES).unwrap();
        assert!(small.grow_to(&memory, FREE_BYTES + 1).is_err());
        first.shrink_to(80 << 10);
        assert!(small.grow_to(&memory, FREE_BYTES + 1).is_err(), "it never had so much");
        first.shrink_to(26 << 10);
        assert_eq!(all(), 50 << 10);
        drop(first);
        small.grow_to(&memory, FREE_BYTES + 1).unwrap();
        drop((second, small));
        assert_eq!(all(), 0);
        assert!(memory.table().by_key.is_empty(), "a key that holds nothing is not remembered");
    }

    #[test]
    fn one_key_that_holds_all_it_may_leaves_room_for_others() {
        let memory = BodyMemory::new(1 << 20);
        let (mut eves, mut more, mut adas) = (Share::default(), Share::default(), Share::default());
        of(EVE, || eves.grow_to(&memory, (1 << 20) + FREE_BYTES).unwrap());
        let refused = of(EVE, || more.grow_to(&memory, FREE_BYTES + 1));
        assert_eq!(code(refused), Some(ErrorCode::Overloaded));
        of(ADA, || adas.grow_to(&memory, (512 << 10) + FREE_BYTES).unwrap());
        assert_eq!((memory.held(ADA), memory.held(EVE)), (512 << 10, 1 << 20));
        assert!(of(ADA, || adas.grow_to(&memory, 600 << 10)).is_err(), "and some for a third");
        drop(eves);
        of(ADA, || adas.grow_to(&memory, 600 << 10)).unwrap();
    }

    #[test]
    fn a_key_with_a_limit_on_bodies_is_refused_by_its_name() {
        let memory = BodyMemory::new(1 << 20);
        let limited = || Account::new(Payer::new(EVE, Some(100 << 10)), &memory);
        let mut share = Share::default();
        limited().sync_scope(|| share.grow_to(&memory, 100 << 10)).unwrap();
        let refused = limited().sync_scope(|| share.grow_to(&memory, 200 << 10)).unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::QuotaExceeded);
        assert!(refused.refusal.cause.contains("body_bytes of this key is 102400"), "{refused:?}");
    }

    #[test]
    fn answers_that_are_there_count_and_stop_the_next_request_of_their_key() {
        let memory = BodyMemory::new(1 << 20);
        let mut answer = Share::default();
        of(EVE, || answer.count(&memory, 3 << 20));
        let check = |key| code(memory.check(&Payer::new(key, None)));
        assert_eq!(check(EVE), Some(ErrorCode::Overloaded));
        assert_eq!(check(ADA), None, "others may begin");
        answer.shrink_to(100 << 10);
        assert_eq!(check(EVE), None);
        drop(answer);
        assert_eq!(memory.held(EVE), 0);
    }
}
