//! When something must be looked at again. Each thing has one alarm, which may ring early but never
//! late: a deadline that moves later is not moved here, it is found out when the alarm rings. That
//! keeps the common case, renewing a deadline, free.

use std::collections::BTreeSet;

use model::Mono;

use crate::entry::EntryIx;
use crate::pool::PoolIx;
use crate::request::RequestIx;
use crate::session::SessionIx;

/// What an alarm is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ringer {
    /// A sandbox.
    Entry(EntryIx),
    /// A session.
    Session(SessionIx),
    /// A pool.
    Pool(PoolIx),
    /// A request that waits.
    Request(RequestIx),
    /// Removals that are not of a sandbox: workspaces and orphans.
    Debts,
    /// Files of sessions without a sandbox that are to go into archives.
    Shelf,
    /// The end of the grace of a shutdown.
    Shutdown,
}

/// All alarms.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    set: BTreeSet<(Mono, Ringer)>,
}

impl Alarms {
    /// Sees to it that the alarm rings at `at` or before. `current` is when it is set to ring.
    pub(crate) fn at_latest(&mut self, ringer: Ringer, current: &mut Mono, at: Mono) {
        if at < *current {
            self.clear(ringer, current);
            self.set.insert((at, ringer));
            *current = at;
        }
    }

    pub(crate) fn clear(&mut self, ringer: Ringer, current: &mut Mono) {
        if *current != Mono::NEVER {
            self.set.remove(&(*current, ringer));
            *current = Mono::NEVER;
        }
    }

    pub(crate) fn next(&self) -> Option<Mono> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Takes the first alarm that is due.
    pub(crate) fn take_due(&mut self, now: Mono) -> Option<Ringer> {
        let (at, ringer) = *self.set.first()?;
        (at <= now).then(|| {
            self.set.pop_first();
            ringer
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.set.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_moves_earlier_but_not_later() {
        let mut alarms = Alarms::default();
        let mut current = Mono::NEVER;
        let ringer = Ringer::Shelf;
        alarms.at_latest(ringer, &mut current, Mono(50));
        alarms.at_latest(ringer, &mut current, Mono(80));
        assert_eq!((current, alarms.next(), alarms.len()), (Mono(50), Some(Mono(50)), 1));
        alarms.at_latest(ringer, &mut current, Mono(20));
        assert_eq!((current, alarms.next(), alarms.len()), (Mono(20), Some(Mono(20)), 1));
        assert_eq!(alarms.take_due(Mono(19)), None);
        assert_eq!(alarms.take_due(Mono(20)), Some(ringer));
        assert_eq!(alarms.next(), None);
    }

    #[test]
    fn a_cleared_alarm_does_not_ring() {
        let mut alarms = Alarms::default();
        let mut current = Mono::NEVER;
        alarms.clear(Ringer::Debts, &mut current);
        alarms.at_latest(Ringer::Debts, &mut current, Mono(1));
        alarms.clear(Ringer::Debts, &mut current);
        assert_eq!((current, alarms.take_due(Mono(9))), (Mono::NEVER, None));
    }
}
