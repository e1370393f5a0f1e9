//! Which bridges of Ash have been ready before, by what decides whether they can start: the program,
//! the files and the names of the variables. A session whose bridge is known does not wait for it.
//! Kept in memory only, and never a promise: a bridge that fails later is reported by the turn.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernel::SessionView;
use model::Template;

/// The most bridges that are remembered. All are forgotten when there are more.
const KNOWN_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct KnownBridges {
    hasher: RandomState,
    known: Mutex<BTreeSet<BridgeKey>>,
}

/// One bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BridgeKey(u64);

impl KnownBridges {
    fn known(&self) -> MutexGuard<'_, BTreeSet<BridgeKey>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bridge of a session. The values of its variables are not part of it, since tokens differ
    /// from session to session.
    pub(crate) fn key(&self, template: &Template, session: &SessionView) -> BridgeKey {
        let claim = session.claim.as_ref();
        let names: Vec<_> = claim.iter().flat_map(|claim| claim.env.keys()).collect();
        let seed = claim.and_then(|claim| claim.seed);
        let program = format!("{:?} {:?} {:?}", template.name, template.root, template.harness);
        BridgeKey(self.hasher.hash_one((program, seed, names)))
    }

    pub(crate) fn is_known(&self, bridge: BridgeKey) -> bool {
        self.known().contains(&bridge)
    }

    /// It was ready.
    pub(crate) fn learn(&self, bridge: BridgeKey) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(bridge);
    }

    /// It failed: the next session waits for it again, and learns why.
    pub(crate) fn forget(&self, bridge: BridgeKey) {
        self.known().remove(&bridge);
    }
}
