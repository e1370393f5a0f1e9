//! When the kernel must look at something again. Each thing has one alarm, which may ring early but
//! never late: a deadline that moves later is not moved here, the kernel finds that out when the
//! alarm rings. That keeps the common case, renewing a deadline, free.

use std::collections::BTreeSet;

use model::{Mono, Now};

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
    /// Pending removals: workspaces and orphans.
    PendingRemovals,
    /// Files of shelved sessions that must be archived.
    ShelvedArchives,
    /// The end of the grace period of a shutdown.
    Shutdown,
}

/// The wall clock may run ahead by this much before all alarms are set again.
const CLOCK_JUMP_MS: u64 = 1_000;

/// All alarms.
#[derive(Debug)]
pub(crate) struct Alarms {
    set: BTreeSet<(Mono, Ringer)>,
    /// The least by which the wall clock was ahead of the monotonic clock since all alarms were
    /// last set.
    lowest_offset: i64,
}

impl Alarms {
    pub(crate) const fn new(now: Now) -> Self {
        Self { set: BTreeSet::new(), lowest_offset: offset(now) }
    }

    /// Whether all alarms for wall-clock times must be set again: the machine slept, or its clock
    /// was set, and they would ring late. A clock that is set back only makes them ring early.
    pub(crate) fn clock_jumped(&mut self, now: Now) -> bool {
        let offset = offset(now);
        self.lowest_offset = self.lowest_offset.min(offset);
        let jumped = offset.abs_diff(self.lowest_offset) > CLOCK_JUMP_MS;
        if jumped {
            self.lowest_offset = offset;
        }
        jumped
    }

    /// Makes the alarm ring at `at` or before. `current` is when it is set to ring.
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

const fn offset(now: Now) -> i64 {
    now.wall.0.cast_signed() - now.mono.0.cast_signed()
}

#[cfg(test)]
mod tests {
    use model::Wall;

    use super::*;

    const START: Now = Now { mono: Mono(0), wall: Wall(0) };

    #[test]
    fn an_alarm_moves_earlier_but_not_later() {
        let mut alarms = Alarms::new(START);
        let mut current = Mono::NEVER;
        let ringer = Ringer::ShelvedArchives;
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
        let mut alarms = Alarms::new(START);
        let mut current = Mono::NEVER;
        alarms.clear(Ringer::PendingRemovals, &mut current);
        alarms.at_latest(Ringer::PendingRemovals, &mut current, Mono(1));
        alarms.clear(Ringer::PendingRemovals, &mut current);
        assert_eq!((current, alarms.take_due(Mono(9))), (Mono::NEVER, None));
    }
}
