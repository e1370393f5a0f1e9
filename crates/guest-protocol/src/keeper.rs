//! What the host and its keeper say to each other: one packet each way for each thing. The keeper
//! is told of a container by a handle of its first process, which comes along with every request,
//! because a number may mean another process by the time it is read.

use serde::{Deserialize, Serialize};

/// The most bytes a packet may have.
pub const MAX_PACKET_BYTES: usize = 64 * 1024;

/// The most places a container may have.
pub const MAX_PLACES: usize = 16;

/// To the keeper. One descriptor comes along: the handle of the container's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToKeeper {
    /// Named by the answer. Not 0.
    pub ticket: u64,
    /// What is to be done.
    pub ask: Ask,
    /// Everything in the container that programs can write to.
    pub places: Vec<Place>,
}

/// What the keeper can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Tell what is to be the same after every use. Answered with `Seen`.
    Look,
    /// Put something fresh and empty into each place, and remove what programs can leave in memory
    /// that they share. Answered with `Renewed`.
    Renew,
    /// Make sure that nothing of a use is left, and tell what is to be the same after it. Answered
    /// with `Seen`.
    Prove,
}

/// A place that programs can write to: a file system in memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where it is mounted, as the container sees it.
    pub path: String,
    /// How much fits.
    pub bytes: u64,
    /// Permissions of its top.
    pub mode: u32,
    /// Whose its top is, as the container sees it: a user, and the group of the same number.
    pub uid: u32,
    /// Whether programs cannot be run from there.
    pub no_programs: bool,
}

/// From the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromKeeper {
    /// It listens.
    Up,
    /// `Look` or `Prove` are done.
    Seen {
        /// Of the request.
        ticket: u64,
        /// What is to be the same after every use, always in the same order.
        facts: Vec<Fact>,
    },
    /// `Renew` is done.
    Renewed {
        /// Of the request.
        ticket: u64,
    },
    /// It could not be done, or is not so. With ticket 0: it cannot work here at all.
    Refused {
        /// Of the request.
        ticket: u64,
        /// Why.
        refusal: KeeperRefusal,
    },
}

/// Something that is to be the same after every use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is about.
    pub name: String,
    /// How it is.
    pub value: String,
}

/// Why the keeper did not do something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperRefusal {
    /// What kind of reason.
    pub code: KeeperRefusalCode,
    /// What was being done, or what was found.
    pub step: String,
    /// What the kernel said, 0 if it was not asked.
    pub errno: i32,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperRefusalCode {
    /// The process is over.
    Gone,
    /// It is not the first process of a container that has its namespaces for itself, or the places
    /// are not as they were said to be.
    Foreign,
    /// Something of a use is left.
    Left,
    /// The keeper may not do what it is for.
    Powerless,
    /// The kernel refused a step.
    System,
}
