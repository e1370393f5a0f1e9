//! Who has the connections. Places are limited, so a client that shows no valid key and a key that
//! has many must not keep others out. When all are taken, a new connection takes the place of one
//! that does nothing: first of the client without a key that came first, then of the key that has
//! the most idle ones. The same holds among the clients without a key of one address. A request in
//! progress never loses its connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{ErrorCode, KeyId, Refusal};
use tokio::sync::Notify;

use crate::refused::Refused;
use crate::serve::ConnectionLimits;
use crate::serve::watched::Activity;

/// The connections that there are.
pub(super) struct Places {
    table: Mutex<Table>,
    most: usize,
    strangers_per_address: usize,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// In the order in which they came.
    all: BTreeMap<u64, Entry>,
    /// How many without a key each address has.
    strangers: BTreeMap<IpAddr, usize>,
    by_key: BTreeMap<KeyId, usize>,
}

struct Entry {
    address: Option<IpAddr>,
    key: Option<KeyId>,
    activity: Arc<Activity>,
    cut: Arc<Notify>,
}

/// Why a connection gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All are taken by requests in progress.
    Full,
    /// Its address has too many that showed no key, with requests in progress.
    Strangers,
}

impl Places {
    pub(super) fn new(limits: &ConnectionLimits) -> Arc<Self> {
        let ConnectionLimits { connections: most, strangers_per_address, .. } = *limits;
        Arc::new(Self { table: Mutex::default(), most, strangers_per_address })
    }

    /// Gives a new connection a place.
    pub(super) fn enter(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        activity: &Arc<Activity>,
    ) -> Result<Place, NoPlace> {
        let address = address.map(network_of);
        let mut table = self.table();
        let strangers = address.and_then(|address| table.strangers.get(&address)).copied();
        if strangers.unwrap_or_default() >= self.strangers_per_address {
            let is_one = |entry: &Entry| entry.key.is_none() && entry.address == address;
            let victim = table.oldest_resting(is_one).ok_or(NoPlace::Strangers)?;
            table.cut(victim);
        }
        if table.all.len() >= self.most {
            let victim = table.victim().ok_or(NoPlace::Full)?;
            table.cut(victim);
        }
        let (id, cut) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        let entry =
            Entry { address, key: None, activity: Arc::clone(activity), cut: Arc::clone(&cut) };
        table.count(&entry);
        table.all.insert(id, entry);
        Ok(Place(Arc::new(Held { places: Arc::clone(self), id, cut })))
    }

    // A table is consistent after every step, so a poisoned lock is harmless.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Machines have whole networks of version 6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl Table {
    fn resting(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.all
            .iter()
            .map(|(id, entry)| (*id, entry))
            .filter(|(_, entry)| !entry.activity.is_busy())
    }

    /// The oldest connection of some kind that does nothing.
    fn oldest_resting(&self, is_one: impl Fn(&Entry) -> bool) -> Option<u64> {
        self.resting().find(|(_, entry)| is_one(entry)).map(|(id, _)| id)
    }

    /// The connection that gives way when all places are taken.
    fn victim(&self) -> Option<u64> {
        let mut idle: BTreeMap<KeyId, (usize, u64)> = BTreeMap::new();
        for (id, entry) in self.resting() {
            let Some(key) = entry.key else { return Some(id) };
            idle.entry(key).or_insert((0, id)).0 += 1;
        }
        idle.into_values().max_by_key(|(count, _)| *count).map(|(_, oldest)| oldest)
    }

    fn cut(&mut self, id: u64) {
        if let Some(entry) = self.all.remove(&id) {
            self.forget(&entry);
            entry.cut.notify_one();
        }
    }

    fn count(&mut self, entry: &Entry) {
        match (entry.key, entry.address) {
            (Some(key), _) => *self.by_key.entry(key).or_default() += 1,
            (None, Some(address)) => *self.strangers.entry(address).or_default() += 1,
            (None, None) => {}
        }
    }

    fn forget(&mut self, entry: &Entry) {
        match (entry.key, entry.address) {
            (Some(key), _) => less_one(&mut self.by_key, &key),
            (None, Some(address)) => less_one(&mut self.strangers, &address),
            (None, None) => {}
        }
    }

    fn of_key(&self, key: KeyId) -> usize {
        self.by_key.get(&key).copied().unwrap_or_default()
    }

    /// How many a key may have: half of what other keys leave.
    fn most_of(&self, key: KeyId, most: usize) -> usize {
        let others: usize = self.by_key.values().sum::<usize>() - self.of_key(key);
        most.saturating_sub(others).div_ceil(2)
    }
}

fn less_one<K: Ord>(counts: &mut BTreeMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

/// The place of one connection, which is free when the last copy is dropped.
#[derive(Clone)]
pub(crate) struct Place(Arc<Held>);

struct Held {
    places: Arc<Places>,
    id: u64,
    cut: Arc<Notify>,
}

impl Place {
    /// Done when another connection takes the place.
    pub(super) async fn taken_away(&self) {
        self.0.cut.notified().await;
    }

    /// The request on it has a valid key. Refuses a key that has too many connections.
    pub(crate) fn known(&self, key: KeyId) -> Result<(), Refused> {
        let Held { places, id, .. } = &*self.0;
        let mut table = places.table();
        if table.all.get(id).is_none_or(|entry| entry.key == Some(key)) {
            return Ok(());
        }
        let most = table.most_of(key, places.most);
        if table.of_key(key) >= most {
            let Some(victim) = table.oldest_resting(|entry| entry.key == Some(key)) else {
                let cause =
                    format!("the key already has {most} connections with requests in progress");
                return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000).into());
            };
            table.cut(victim);
        }
        if let Some(mut entry) = table.all.remove(id) {
            table.forget(&entry);
            entry.key = Some(key);
            table.count(&entry);
            table.all.insert(*id, entry);
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.places.table();
        if let Some(entry) = table.all.remove(&self.id) {
            table.forget(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    const ADA: KeyId = KeyId::from_u128(1);
    const EVE: KeyId = KeyId::from_u128(2);
    const HERE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

    fn places(connections: usize, strangers_per_address: usize) -> Arc<Places> {
        Places::new(&ConnectionLimits {
            connections,
            strangers_per_address,
            ..ConnectionLimits::default()
        })
    }

    /// A connection, and whether a request is worked on.
    fn opened(places: &Arc<Places>, is_busy: bool) -> Result<Place, NoPlace> {
        let activity = Arc::new(Activity::new());
        if is_busy {
            activity.serve();
        }
        places.enter(HERE, &activity)
    }

    fn is_cut(place: &Place) -> bool {
        place.taken_away().now_or_never().is_some()
    }

    #[test]
    fn connection_without_a_key_gives_way_and_one_in_use_never_does() {
        let places = places(3, 100);
        let busy = opened(&places, true).unwrap();
        let (first, second) = (opened(&places, false).unwrap(), opened(&places, false).unwrap());
        second.known(ADA).unwrap();
        let third = opened(&places, true).unwrap();
        assert_eq!((is_cut(&first), is_cut(&second), is_cut(&busy)), (true, false, false));
        let fourth = opened(&places, true).unwrap();
        assert!(is_cut(&second), "an idle one of a key is next");
        assert_eq!(opened(&places, false).err(), Some(NoPlace::Full));
        drop((first, second));
        assert_eq!(opened(&places, false).err(), Some(NoPlace::Full), "those were gone already");
        drop(busy);
        assert!(opened(&places, false).is_ok());
        drop((third, fourth));
        assert!(places.table().all.is_empty());
    }

    #[test]
    fn connections_without_a_key_are_limited_per_address() {
        let places = places(100, 2);
        let silent = opened(&places, false).unwrap();
        let held = [opened(&places, true).unwrap(), opened(&places, true).unwrap()];
        assert!(is_cut(&silent), "the oldest of the address that does nothing gives way");
        assert_eq!(opened(&places, false).err(), Some(NoPlace::Strangers));
        let idle = Arc::new(Activity::new());
        idle.serve();
        let elsewhere = |text: &str| places.enter(text.parse().ok(), &idle);
        assert!(elsewhere("192.0.2.1").is_ok());
        let network = [elsewhere("2001:db8::1").unwrap(), elsewhere("2001:db8::2").unwrap()];
        assert!(elsewhere("2001:db8::3").is_err(), "a network counts as one");
        assert!(places.enter(None, &idle).is_ok(), "a local socket has no address");
        held[0].known(ADA).unwrap();
        assert!(opened(&places, false).is_ok(), "one with a key does not count, as of a proxy");
        drop((held, network));
        assert!(places.table().strangers.is_empty() && places.table().by_key.is_empty());
    }

    #[test]
    fn one_key_leaves_connections_for_others() {
        let places = places(8, 100);
        let eves: Vec<_> = (0..4).map(|_| opened(&places, true).unwrap()).collect();
        for place in &eves {
            place.known(EVE).unwrap();
            place.known(EVE).unwrap();
        }
        let fifth = opened(&places, true).unwrap();
        let refused = fifth.known(EVE).unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::Overloaded);
        fifth.known(ADA).unwrap();
        fifth.known(ADA).unwrap();
        let sixth = opened(&places, true).unwrap();
        sixth.known(ADA).unwrap();
        let idle = opened(&places, false).unwrap();
        drop(eves);
        idle.known(EVE).unwrap();
        let more: Vec<_> = (0..3).map(|_| opened(&places, true).unwrap()).collect();
        for place in &more {
            place.known(EVE).unwrap();
        }
        assert!(is_cut(&idle), "a request of a key takes the place of its own idle connection");
    }
}
