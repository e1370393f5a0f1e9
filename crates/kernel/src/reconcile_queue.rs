//! What the reconcilers are to look at before a decision is complete. An event only says that
//! something may have become possible; what follows is found by looking at the facts, so a thing
//! that is due twice, or for nothing, does no harm.

use std::collections::VecDeque;

use crate::pool::PoolIx;
use crate::session::SessionIx;

/// What the reconcilers are to look at.
#[derive(Debug, Default)]
pub(crate) struct ReconcileQueue {
    sessions: VecDeque<SessionIx>,
    pools: VecDeque<PoolIx>,
    /// Pools that miss sandboxes for want of a place: they are due when the line is empty.
    starved: Vec<PoolIx>,
    line: bool,
    archives: bool,
}

/// The next to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconcileItem {
    /// A session that may want a sandbox, unless it is gone.
    Session(SessionIx),
    /// A pool, unless it is gone.
    Pool(PoolIx),
    /// The line for places.
    PlaceQueue,
    /// Files that wait to be put into archives.
    Archives,
}

impl ReconcileQueue {
    pub(crate) fn look_at_session(&mut self, session: SessionIx) {
        self.sessions.push_back(session);
    }

    pub(crate) fn look_at_pool(&mut self, pool: PoolIx) {
        self.pools.push_back(pool);
    }

    /// A place may be free, or an applicant may have joined or left the line.
    pub(crate) const fn look_at_line(&mut self) {
        self.line = true;
    }

    /// There may be room to put more files into an archive, or more files to put there.
    pub(crate) const fn look_at_archives(&mut self) {
        self.archives = true;
    }

    /// A pool is looked at again when the line for places is empty.
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

    /// Sessions come first, because what they want may be idle in a pool; the line comes after the
    /// pools, which stand in it.
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
