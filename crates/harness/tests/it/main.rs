//! Harnesses as their users meet them: on a fake runtime, where every way to go wrong can be tried,
//! and on a native one with real programs.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod bridge;
mod drops;
mod held_harness;
mod jsonl;
mod native;
mod shell;
mod stage;
