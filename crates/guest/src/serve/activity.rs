//! What goes on in a channel: one of a few kinds of activity, each of which handles what arrives on
//! its lanes.

use super::dial::Dial;
use super::end_all::EndAll;
use super::family::FamilySignal;
use super::files::file_reader::FileReader;
use super::files::file_writer::FileWriter;
use super::files::listing::Listing;
use super::files::removal::Removal;
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
    /// A file is sent to the host.
    ReadFile(FileReader),
    /// A file is received from the host.
    WriteFile(FileWriter),
    /// A directory is read.
    Listing(Listing),
    /// A tree of files is being removed.
    Removal(Removal),
    /// A signal is sent to a family of processes. The guest does it, because it knows the other
    /// programs.
    FamilySignal(FamilySignal),
    /// All processes are being ended. The guest does that too.
    EndAll(EndAll),
}

impl Activity {
    /// Continues a part that can go on.
    pub(super) fn step(&mut self, part: Part, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.step(part, io),
            Self::Dial(dial) => dial.step(part, io),
            Self::ReadFile(reading) => reading.step(io),
            Self::Listing(listing) => listing.step(io),
            Self::Removal(removal) => removal.step(io),
            Self::WriteFile(_) | Self::FamilySignal(_) | Self::EndAll(_) => Progress::Wait,
        }
    }

    /// Bytes arrived on a lane.
    pub(super) fn take(&mut self, lane: u8, bytes: Vec<u8>, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.take(lane, bytes, io),
            Self::Dial(dial) => dial.take(lane, bytes, io),
            Self::WriteFile(writing) => writing.take(lane, &bytes, io),
            Self::ReadFile(_)
            | Self::Listing(_)
            | Self::Removal(_)
            | Self::FamilySignal(_)
            | Self::EndAll(_) => Progress::Wait,
        }
    }

    /// A lane is at its end.
    pub(super) fn end(&mut self, lane: u8, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.end(lane, io),
            Self::Dial(dial) => dial.end(lane, io),
            Self::WriteFile(writing) => writing.end(lane, io),
            Self::ReadFile(_)
            | Self::Listing(_)
            | Self::Removal(_)
            | Self::FamilySignal(_)
            | Self::EndAll(_) => Progress::Wait,
        }
    }

    /// The host has abandoned a lane.
    pub(super) fn reset(&mut self, lane: u8, io: &mut Io) -> Progress {
        match self {
            Self::Program(program) => program.reset(lane, io),
            Self::Dial(dial) => dial.reset(lane, io),
            Self::ReadFile(reading) => reading.reset(io),
            Self::WriteFile(writing) => writing.reset(io),
            Self::Listing(_) | Self::Removal(_) | Self::FamilySignal(_) | Self::EndAll(_) => {
                Progress::Wait
            }
        }
    }
}
