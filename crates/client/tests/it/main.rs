//! The client against servers that behave, misbehave and vanish.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod failures;
mod leases;
mod script;
mod streams;
mod turns;
