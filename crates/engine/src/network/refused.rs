//! Addresses that the machine's kernel refused, as entries of the network log. The kernel reports
//! nothing: it keeps a list for each sandbox, which is read when the log is asked for, and before a
//! user loses the sandbox. It must never keep the end of a sandbox waiting for long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egress::{EgressEvent, EventKind, Verdict};
use model::InstanceId;
use tokio::time::timeout;

use super::log::Whose;
use super::{NetworkLogQuery, Networks, whose};
use crate::core::Core;

/// How long the list of one sandbox is waited for.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long one question waits for all lists together.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(1);

/// The most sandboxes whose lists one question reads. The next question reads those that follow.
const READ_AT_ONCE: usize = 256;

const REASON: &str = "no rule of the template names the address";

/// What the lists of the sandboxes had when they were last read.
#[derive(Default)]
pub(super) struct Noted {
    known: Mutex<BTreeMap<InstanceId, BTreeSet<(Ipv4Addr, u16)>>>,
    /// Where the next question about all sandboxes begins.
    next: Mutex<Option<InstanceId>>,
    count: AtomicU64,
}

impl Noted {
    fn known(&self) -> MutexGuard<'_, BTreeMap<InstanceId, BTreeSet<(Ipv4Addr, u16)>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many addresses were noted since the start.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self, instance: InstanceId) {
        let _ = self.known().remove(&instance);
    }

    /// What a list has that it did not have before. An address that was gone from it counts again.
    fn new_ones(
        &self,
        instance: InstanceId,
        list: Vec<(Ipv4Addr, u16)>,
    ) -> BTreeSet<(Ipv4Addr, u16)> {
        let list: BTreeSet<_> = list.into_iter().collect();
        let mut known = self.known();
        let before = known.entry(instance).or_default();
        let new: BTreeSet<_> = list.difference(before).copied().collect();
        *before = list;
        let _ = self.count.fetch_add(new.len() as u64, Ordering::Relaxed);
        new
    }

    /// Some of these instances, others each time until all have had their turn.
    fn turn(&self, all: &BTreeSet<InstanceId>) -> Vec<InstanceId> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let first = next.unwrap_or(InstanceId::NIL);
        let mut ahead = all.range(first..).chain(all.range(..first)).copied();
        let turn = ahead.by_ref().take(READ_AT_ONCE).collect();
        *next = ahead.next();
        turn
    }
}

impl Networks {
    /// Adds what the machine's kernel refused to a sandbox to the log of its user.
    pub(crate) async fn note_refused(&self, core: &Core, instance: InstanceId) {
        if self.egress.is_none() || !self.known().contains_key(&instance) {
            return;
        }
        let Some(user) = whose(core, instance).filter(Whose::is_user) else { return };
        let Some(sandbox) = core.runtimes.sandbox(instance) else { return };
        let Ok(Ok(list)) = timeout(PATIENCE, sandbox.refused_addresses()).await else { return };
        // In the meantime it may have its next user.
        if !whose(core, instance).is_some_and(|now| now.is_same(&user)) {
            return;
        }
        let new = {
            // What is forgotten meanwhile stays forgotten: both happen behind this lock, or after it.
            let attached = self.known();
            if !attached.contains_key(&instance) {
                return;
            }
            self.noted.new_ones(instance, list)
        };
        for (address, port) in new {
            let mut event = EgressEvent::of(instance, EventKind::Connection, Verdict::Refused);
            event.address = Some(address.into());
            event.port = port;
            event.reason = Some(REASON.to_owned());
            self.log.note(user, core.clock.now().wall, event);
        }
    }

    /// The same for the sandboxes that a question is about.
    pub(super) async fn note_refused_of(
        &self,
        core: &Core,
        sees: impl Fn(&Whose) -> bool,
        query: &NetworkLogQuery,
    ) {
        if self.egress.is_none() {
            return;
        }
        let attached: Vec<_> = self.known().keys().copied().collect();
        let asked = attached.into_iter().filter(|instance| {
            whose(core, *instance)
                .is_some_and(|whose| whose.is_user() && sees(&whose) && query.is_about(&whose))
        });
        let turn = self.noted.turn(&asked.collect());
        let noted = timeout(PATIENCE_FOR_ALL, async {
            for instance in turn {
                self.note_refused(core, instance).await;
            }
        });
        if noted.await.is_err() {
            tracing::warn!(
                "refused addresses are missing in the network log: reading them takes too long"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: InstanceId = InstanceId::from_u128(1);

    #[test]
    fn an_address_is_noted_once_until_it_has_left_the_list() {
        let (one, two) = ((Ipv4Addr::new(192, 0, 2, 1), 80), (Ipv4Addr::new(192, 0, 2, 2), 80));
        let noted = Noted::default();
        assert_eq!(noted.new_ones(A, vec![one]), BTreeSet::from([one]));
        assert_eq!(noted.new_ones(A, vec![one, two]), BTreeSet::from([two]));
        assert_eq!(noted.new_ones(A, vec![]), BTreeSet::new());
        assert_eq!(noted.new_ones(A, vec![one]), BTreeSet::from([one]));
        noted.forget(A);
        assert_eq!(noted.new_ones(A, vec![one]), BTreeSet::from([one]), "for its next user");
        assert_eq!(noted.count(), 4);
    }

    #[test]
    fn all_sandboxes_have_their_turn() {
        let noted = Noted::default();
        let all: BTreeSet<_> = (1..=600).map(InstanceId::from_u128).collect();
        let turns: Vec<_> = (0..3).flat_map(|_| noted.turn(&all)).collect();
        assert_eq!(turns.len(), 3 * READ_AT_ONCE);
        assert_eq!(turns.into_iter().collect::<BTreeSet<_>>(), all);
        let few = BTreeSet::from([A]);
        assert_eq!(noted.turn(&few), [A]);
        assert_eq!(noted.turn(&few), [A]);
    }
}
