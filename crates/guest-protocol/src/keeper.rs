//! The messages between the host and its keeper: one packet each way per request. Every request
//! carries a handle of the container's first process, because a process id may mean another process
//! by the time it is read.

use serde::{Deserialize, Serialize};

use crate::network::{NetworkFeature, NetworkRequest, RefusedAddress};

/// The most bytes a packet may have.
pub const MAX_PACKET_BYTES: usize = 64 * 1024;

/// The most writable mounts of a container.
pub const MAX_WRITABLE_MOUNTS: usize = 16;

/// To the keeper. One descriptor comes with it: the handle of the container's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToKeeper {
    /// Repeated in the answer. Not 0.
    pub ticket: u64,
    /// What to do.
    pub ask: Ask,
    /// All writable mounts of the container.
    pub places: Vec<WritableMountSpec>,
}

/// What the keeper can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Report the state that must be the same after every use. Answered with `Seen`.
    Look,
    /// Replace each writable mount by an empty one, remove the objects that programs can leave in
    /// shared memory, and take the network of a policy away. Answered with `Renewed`.
    Renew,
    /// Check that nothing of a use is left, and report the state that must be the same after it.
    /// Answered with `Seen`.
    Prove,
    /// Do something with the network of the container. Answered with `Networked`.
    Network(NetworkRequest),
}

/// A writable mount: a tmpfs of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableMountSpec {
    /// Its path in the container.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The permissions of its top directory.
    pub mode: u32,
    /// The owner of its top directory, as an id in the container: a user, and the group of the same
    /// number.
    pub uid: u32,
    /// Whether programs cannot be run from it.
    pub no_programs: bool,
}

/// From the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromKeeper {
    /// The keeper is ready.
    Up {
        /// How containers with a policy reach the network, as it was tried.
        network: NetworkFeature,
    },
    /// `Look` or `Prove` succeeded.
    Seen {
        /// That of the request.
        ticket: u64,
        /// The state that must be the same after every use, always in the same order.
        facts: Vec<Fact>,
    },
    /// `Renew` succeeded.
    Renewed {
        /// That of the request.
        ticket: u64,
    },
    /// `Network` succeeded. After `Arm` the sockets come with this: that for connections first.
    Networked {
        /// That of the request.
        ticket: u64,
        /// The refused addresses, if they were asked for: at most 256.
        refused: Vec<RefusedAddress>,
    },
    /// The request failed, or the proof did. With ticket 0: the keeper cannot work here at all.
    Refused {
        /// That of the request.
        ticket: u64,
        /// Why.
        refusal: KeeperRefusal,
    },
}

/// One part of the state that must be the same after every use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Why the keeper refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperRefusal {
    /// The kind of reason.
    pub code: KeeperRefusalCode,
    /// The step that failed, or what was found.
    pub step: String,
    /// The kernel's error number, 0 if there is none.
    pub errno: i32,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperRefusalCode {
    /// The process has ended.
    Gone,
    /// It is not the first process of a container with namespaces of its own, or its mounts are not
    /// as described.
    Foreign,
    /// Something of a use is left.
    Left,
    /// The keeper lacks privileges, or the kernel lacks what is asked for.
    Powerless,
    /// The kernel refused a step.
    System,
}
