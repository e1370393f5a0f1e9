//! What the reconcilers must look at before a decision is complete. An event only says that
//! something may have become possible; the reconcilers look at the facts. An item that is queued
//! twice, or for nothing, does no harm.

use std::collections::VecDeque;

use crate::pool::PoolIx;
use crate::session::SessionIx;

/// What the reconcilers must look at.
#[derive(Debug, Default)]
pub(crate) struct ReconcileQueue {
    sessions: VecDeque<SessionIx>,
    pools: VecDeque<PoolIx>,
    /// Pools that lack sandboxes because no place was free: they are due when the queue for places
    /// is empty.
    starved: Vec<PoolIx>,
    line: bool,
    archives: bool,
}

/// One item of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconcileItem {
    /// A session that may want a sandbox, unless it is gone.
    Session(SessionIx),
    /// A pool, unless it is gone.
    Pool(PoolIx),
    /// The queue for places.
    PlaceQueue,
    /// Workspaces that wait to be archived.
    Archives,
}

impl ReconcileQueue {
    pub(crate) fn look_at_session(&mut self, session: SessionIx) {
        self.sessions.push_back(session);
    }

    pub(crate) fn look_at_pool(&mut self, pool: PoolIx) {
        self.pools.push_back(pool);
    }

    /// A place may be free, or an applicant joined or left the queue.
    pub(crate) const fn look_at_line(&mut self) {
        self.line = true;
    }

    /// More workspaces may be archived now, or more are due.
    pub(crate) const fn look_at_archives(&mut self) {
        self.archives = true;
    }

    /// A pool is looked at again when the queue for places is empty.
    pub(crate) fn starved(&mut self, pool: PoolIx) {
        if !self.starved.contains(&pool) {
            self.starved.push(pool);
        }
    }

    pub(crate) fn take_starved(&mut self) -> Vec<PoolIx> {
        std::mem::take(&mut self.starved)
    }

    /// A pool is gone.
    pub(crate) fn forget_starved(&mut self, pool: PoolIx) {
        self.starved.retain(|starved| *starved != pool);
    }

    /// Sessions come first, because what they want may be idle in a pool. The queue for places
    /// comes after the pools, which apply for places.
    pub(crate) fn next(&mut self) -> Option<ReconcileItem> {
        if let Some(session) = self.sessions.pop_front() {
            Some(ReconcileItem::Session(session))
        } else if let Some(pool) = self.pools.pop_front() {
            Some(ReconcileItem::Pool(pool))
        } else if std::mem::take(&mut self.line) {
            Some(ReconcileItem::PlaceQueue)
        } else if std::mem::take(&mut self.archives) {
            Some(ReconcileItem::Archives)
        } else {
            None
        }
    }
}
