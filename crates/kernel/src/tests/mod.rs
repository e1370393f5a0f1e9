//! Tests of whole decisions, by what they are about. Each drives the kernel through [`rig::Rig`],
//! which audits it after every event.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test names the one variant it looks for")]

mod admission;
mod ash;
mod ash_sessions;
mod eviction;
mod moves;
mod rig;
mod situations;
mod smoke;
mod states;
mod storm;
mod void;
