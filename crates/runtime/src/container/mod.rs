//! What all sandboxes in containers have in common, whoever makes the containers: the same guest in
//! them as everywhere, the same places to write to, the same way to be born, wiped and buried. A
//! [`Maker`] knows one kind of container; [`Containers`] makes a runtime of it. Nothing here knows
//! Docker or a bundle.

mod containers;
mod instance;
mod keeper;
mod launch;
mod maker;
mod sandbox;
#[cfg(test)]
mod tests;
mod wipe;
mod writable_mounts;

pub(crate) use self::containers::Containers;
use self::containers::Shared;
pub(crate) use self::maker::{End, Made, Maker};
pub(crate) use self::writable_mounts::{GUEST_PATH, Place, places};
