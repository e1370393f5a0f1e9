//! Native sandboxes as their users meet them: real programs, real limits, real attackers, real
//! crashes. They run in the mode of the user who starts them; as root, [`rootless`] runs the
//! attacks again as an ordinary user.

mod between_users;
mod bypass;
mod cgroup_v2;
mod concurrent_launches;
mod crash;
mod density;
mod disk;
mod escapes;
mod freezing;
mod hostile_trees;
mod isolation;
mod limits;
mod modes;
mod mounts;
mod network;
mod node;
mod programs;
mod rootless;
mod system_calls;
mod terminals;
mod tools_at_work;
mod workspaces;

/// What sandboxes of other runtimes are tried by, too.
pub(crate) use self::isolation::bait::{Bait, Seen};
pub(crate) use self::isolation::{FILES, KERNEL, LISTENER, NETWORK, OWN_API, PROBE, PROCESSES};
pub(crate) use self::limits::BUFFER_FLOOD;
pub(crate) use self::network::{INSIDE, Served, allow};
pub(crate) use self::node::skip;
pub(crate) const BETWEEN_USERS: &str = include_str!("between_users.py");

/// Prints the network interfaces that a program sees.
pub(crate) const INTERFACES: &str = "import socket; print(socket.if_nameindex())";
