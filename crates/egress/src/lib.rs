//! The way out of sandboxes: a process of its own that answers names, checks every connection against
//! the policy of the sandbox it came from, connects to checked addresses and copies bytes. The server
//! starts and supervises it. It must never hold a key of the API, and never decide what a policy is.

mod boundary;
mod control;
mod dns;
mod event;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod greeting;
mod http_head;
mod java_store;
mod limits;
#[cfg_attr(not(test), expect(dead_code, reason = "tests make some of their own"))]
mod node_addresses;
mod policy;
pub mod process;
mod relay;
mod resolver;
mod second_greeting;
#[expect(dead_code, reason = "the protocol has more answers than we need")]
mod socks;
pub mod supervisor;
mod synthetic;
mod target;

pub use boundary::{Authority, AuthorityError, check_authorities};
pub use control::{BoundarySecret, Sockets, UpstreamProxy};
pub use event::{EgressEvent, EventKind, Verdict};
pub use java_store::java_store;
pub use limits::EgressLimits;
pub use policy::Reach;
pub use supervisor::{
    Attachment, Egress, EgressConfig, EgressCounts, EgressError, Reported, Reservation,
};
