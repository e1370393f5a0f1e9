//! What all sandboxes in containers have in common, whoever makes the containers: the same guest in
//! them as everywhere, the same places to write to, the same way to be born, wiped and buried. A
//! [`Maker`] knows one kind of container; [`Containers`] makes a runtime of it. Nothing here knows
//! Docker or a bundle.

mod birth;
mod containers;
mod keeper;
mod life;
mod maker;
mod places;
mod sandbox;
#[cfg(test)]
mod tests;
mod wipe;

pub(crate) use self::containers::Containers;
use self::containers::Shared;
pub(crate) use self::maker::{End, Made, Maker};
pub(crate) use self::places::{GUEST_PATH, Place, places};
