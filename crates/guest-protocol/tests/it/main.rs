//! The protocol as both sides see it: its bytes, and how it behaves however they are split.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod garbage;
mod golden_frames;
mod golden_keeper;
mod golden_launcher;
mod golden_looks;
mod golden_messages;
mod lanes;
mod splits;
mod streams;
