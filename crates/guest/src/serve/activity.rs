//! What goes on in a channel: one of a few kinds of things, each of which knows what to do with
//! what arrives on its lanes.

use super::clearing::Clearing;
use super::dial::Dial;
use super::family::Ending;
use super::files::listing::Listing;
use super::files::reading::Reading;
use super::files::removal::Removal;
use super::files::writing::Writing;
use super::io::Io;
use super::program::Program;
use super::ready::Part;
use super::stream::Progress;

/// What goes on in a channel.
#[derive(Debug)]
pub(super) enum Activity {
    /// A program runs.
    Program(Program),
    /// A connection inside.
    Dial(Dial),
    /// A file goes out.
    Reading(Reading),
    /// A file comes in.
    Writing(Writing),
    /// A directory is read.
    Listing(Listing),
    /// A tree of files is being removed.
    Removal(Removal),
    /// A family of processes is being signalled. The guest does it: it knows the others.
    Ending(Ending),
    /// Everything is being ended, by the guest too.
    Clearing(Clearing),
}

impl Activity {
    /// Goes on with a part of it that can.
    pub(super) fn step(&mut self, part: Part, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.step(part, io),
            Self::Dial(dial) => dial.step(part, io),
            Self::Reading(reading) => reading.step(io),
            Self::Listing(listing) => listing.step(io),
            Self::Removal(removal) => removal.step(io),
            Self::Writing(_) | Self::Ending(_) | Self::Clearing(_) => Progress::Wait,
        }
    }

    /// Bytes arrived on a lane.
    pub(super) fn take(&mut self, lane: u8, bytes: Vec<u8>, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.take(lane, bytes, io),
            Self::Dial(dial) => dial.take(lane, bytes, io),
            Self::Writing(writing) => writing.take(lane, &bytes, io),
            Self::Reading(_)
            | Self::Listing(_)
            | Self::Removal(_)
            | Self::Ending(_)
            | Self::Clearing(_) => Progress::Wait,
        }
    }

    /// A lane is at its end.
    pub(super) fn end(&mut self, lane: u8, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.end(lane, io),
            Self::Dial(dial) => dial.end(lane, io),
            Self::Writing(writing) => writing.end(lane, io),
            Self::Reading(_)
            | Self::Listing(_)
            | Self::Removal(_)
            | Self::Ending(_)
            | Self::Clearing(_) => Progress::Wait,
        }
    }

    /// The host has abandoned a lane.
    pub(super) fn reset(&mut self, lane: u8, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.reset(lane, io),
            Self::Dial(dial) => dial.reset(lane, io),
            Self::Reading(reading) => reading.reset(io),
            Self::Writing(writing) => writing.reset(io),
            Self::Listing(_) | Self::Removal(_) | Self::Ending(_) | Self::Clearing(_) => {
                Progress::Wait
            }
        }
    }
}
