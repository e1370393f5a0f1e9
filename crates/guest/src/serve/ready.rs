//! The work that can go on now: parts of channels that have something to do. Parts take turns, so
//! that a busy one delays the others by at most one piece of work.

use std::collections::BTreeSet;
use std::ops::Bound;

use guest_protocol::message::lane;

/// A part of an activity that can go on independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Part {
    /// From the main lane inwards: standard input, a terminal, a connection.
    Input = 0,
    /// A program's standard output.
    Stdout = 1,
    /// A program's standard error.
    Stderr = 2,
    /// Outwards on the main lane: a terminal, a connection, a file.
    Output = 3,
    /// Work without a lane.
    Work = 4,
}

impl Part {
    /// The part that sends on a lane.
    pub(super) fn sending_on(lane: u8) -> Self {
        match lane {
            lane::STDOUT => Self::Stdout,
            lane::STDERR => Self::Stderr,
            _ => Self::Output,
        }
    }
}

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The connection to the host.
    Connection,
    /// The descriptor for bytes to the host, if it is a separate one.
    Outlet,
    /// A child has ended.
    Children,
    /// A part of a channel.
    Part(u32, Part),
}

impl Source {
    /// As a number for epoll. The guest's own channel stands for sources that have no channel.
    pub(super) fn to_number(self) -> u64 {
        match self {
            Self::Connection => 0,
            Self::Children => 1,
            Self::Outlet => 2,
            Self::Part(channel, part) => u64::from(channel) << 8 | u64::from(part as u8),
        }
    }

    /// The source of a number.
    pub(super) fn from_number(number: u64) -> Self {
        let part = match number & 0xff {
            0 => Part::Input,
            1 => Part::Stdout,
            2 => Part::Stderr,
            3 => Part::Output,
            _ => Part::Work,
        };
        match number {
            0 => Self::Connection,
            1 => Self::Children,
            2 => Self::Outlet,
            _ => Self::Part((number >> 8) as u32, part),
        }
    }
}

/// The parts that can go on.
#[derive(Debug, Default)]
pub(super) struct Ready {
    parts: BTreeSet<(u32, Part)>,
    last: Option<(u32, Part)>,
}

impl Ready {
    pub(super) fn add(&mut self, channel: u32, part: Part) {
        self.parts.insert((channel, part));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The next part whose turn it is. It leaves the set until it is added again.
    pub(super) fn next(&mut self) -> Option<(u32, Part)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.parts.range((after, Bound::Unbounded)).next().or(self.parts.first());
        self.last = next.copied();
        if let Some(next) = &self.last {
            self.parts.remove(next);
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_sources_round_trip_as_numbers() {
        let parts = [Part::Input, Part::Stdout, Part::Stderr, Part::Output, Part::Work];
        for channel in [1, 7, u32::MAX] {
            for source in parts.map(|part| Source::Part(channel, part)) {
                assert_eq!(Source::from_number(source.to_number()), source);
            }
        }
        for source in [Source::Connection, Source::Children, Source::Outlet] {
            assert_eq!(Source::from_number(source.to_number()), source);
        }
    }

    #[test]
    fn ready_parts_take_turns() {
        let mut ready = Ready::default();
        for channel in [1, 2, 3] {
            ready.add(channel, Part::Stdout);
        }
        let mut turns = Vec::new();
        for _ in 0..6 {
            let (channel, part) = ready.next().unwrap();
            ready.add(channel, part);
            turns.push(channel);
        }
        assert_eq!(turns, [1, 2, 3, 1, 2, 3]);
    }
}
