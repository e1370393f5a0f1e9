//! All sessions, and the indexes to find one: by id, by the client of a turn, by age. No index
//! leads to a session that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Index, IndexMut};

use model::{KeyId, RequestId, SessionId, Wall};

use crate::index::IdIndex;
use crate::session::{Session, SessionIx};
use crate::slab::Slab;

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slab: Slab<Session>,
    by_id: IdIndex<SessionIx>,
    oldest_first: BTreeSet<(Wall, SessionId)>,
    /// By the requests of the clients whose turns are in progress or wait.
    by_client: IdIndex<SessionIx>,
    /// How many each key has.
    of_key: BTreeMap<KeyId, u32>,
}

impl Sessions {
    pub(crate) fn insert(&mut self, known: Session) -> SessionIx {
        let (id, created_at) = (known.id, known.created_at);
        *self.of_key.entry(known.settings.tenant).or_default() += 1;
        let session = self.slab.insert(known);
        self.by_id.insert(id.as_u128(), session);
        self.oldest_first.insert((created_at, id));
        session
    }

    pub(crate) fn remove(&mut self, session: SessionIx) -> Session {
        let known = self.slab.remove(session);
        self.by_id.remove(known.id.as_u128());
        self.oldest_first.remove(&(known.created_at, known.id));
        if let Some(count) = self.of_key.get_mut(&known.settings.tenant) {
            *count -= 1;
            if *count == 0 {
                self.of_key.remove(&known.settings.tenant);
            }
        }
        known
    }

    pub(crate) fn by_id(&self, id: SessionId) -> Option<SessionIx> {
        self.by_id.get(id.as_u128())
    }

    /// Those that are older than `before`, or all, newest first.
    pub(crate) fn newest_first(
        &self,
        before: Option<(Wall, SessionId)>,
    ) -> impl Iterator<Item = &Session> {
        let until = before.map_or(Bound::Unbounded, Bound::Excluded);
        let found = self.oldest_first.range((Bound::Unbounded, until)).rev();
        found.filter_map(|(_, id)| Some(&self.slab[self.by_id(*id)?]))
    }

    /// A client follows or waits for a turn of a session.
    pub(crate) fn client_came(&mut self, client: RequestId, session: SessionIx) {
        self.by_client.insert(client.as_u128(), session);
    }

    /// A client stopped following its turn.
    pub(crate) fn client_left(&mut self, client: RequestId) {
        self.by_client.remove(client.as_u128());
    }

    pub(crate) fn by_client(&self, client: RequestId) -> Option<SessionIx> {
        self.by_client.get(client.as_u128())
    }

    pub(crate) fn get(&self, session: SessionIx) -> Option<&Session> {
        self.slab.get(session)
    }

    pub(crate) fn get_mut(&mut self, session: SessionIx) -> Option<&mut Session> {
        self.slab.get_mut(session)
    }

    /// All sessions, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionIx, &Session)> {
        self.slab.iter()
    }

    /// All indexes in use, so that sessions may change or be removed during the loop.
    pub(crate) fn indices(&self) -> Vec<SessionIx> {
        self.slab.indices()
    }

    /// How many a key has.
    pub(crate) fn of_key(&self, key: KeyId) -> u32 {
        self.of_key.get(&key).copied().unwrap_or(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many ids, ages and clients lead to a session, for audits.
    pub(crate) fn indexed(&self) -> (usize, usize, usize) {
        (self.by_id.len(), self.oldest_first.len(), self.by_client.len())
    }
}

impl Index<SessionIx> for Sessions {
    type Output = Session;

    #[inline]
    fn index(&self, session: SessionIx) -> &Session {
        &self.slab[session]
    }
}

impl IndexMut<SessionIx> for Sessions {
    #[inline]
    fn index_mut(&mut self, session: SessionIx) -> &mut Session {
        &mut self.slab[session]
    }
}
