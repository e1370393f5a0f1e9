//! Harnesses as callers use them: on a fake runtime, where every failure can be tried, and on a
//! native one with real programs.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod bridge;
mod drops;
mod held_harness;
mod jsonl;
mod native;
mod shell;
mod stage;
