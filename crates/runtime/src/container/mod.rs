//! What all sandboxes in containers share: the same guest, the same writable mounts, the same steps
//! from launch to wipe, exit and removal. A [`Maker`] knows one kind of container; [`Containers`]
//! makes a runtime of it. Nothing here may know Docker or an OCI bundle.

mod containers;
mod instance;
mod keeper;
mod launch;
mod maker;
mod network;
mod sandbox;
#[cfg(test)]
mod tests;
mod wipe;
mod writable_mounts;

pub(crate) use self::containers::Containers;
use self::containers::Shared;
pub(crate) use self::keeper::tried_network;
pub(crate) use self::maker::{ContainerExit, MadeContainer, Maker};
pub(crate) use self::writable_mounts::{GUEST_PATH, WritableMount, writable_mounts};
