//! Uses the program in a sandbox that answers turns: starts it, gives it one turn at a time, passes
//! on its output, stops it.
//!
//! Three kinds: the shell (a turn is a command line, nothing has to be started), our own JSON lines
//! on a channel of the program's own, and Ash's bridge protocol on a Unix socket. What comes from
//! inside is not trusted: every line has a limit, every wait an end, and a program that breaks its
//! protocol is killed. Nothing here decides about a turn; it reports what happened. Futures may be
//! dropped at any await: a dropped turn kills what it runs.

mod ash_bridge;
mod binding;
mod connection;
mod early_bridge;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod held_harness;
mod json;
mod jsonl;
mod lines;
mod link;
mod logs;
mod program;
mod program_turn;
mod protocol;
#[cfg(feature = "scripted")]
pub mod scripted;
mod shell;
mod start;
mod text;

pub use ash_bridge::bridge_variables;
pub use binding::Binding;
pub use error::{FailureCode, HarnessError, HarnessErrorCode};
pub use held_harness::{HELD_LINE_BYTES_MAX, HeldHarness, HeldInput, HeldOutput};
pub use link::{Cancelled, HarnessEnd, HarnessEvent, HarnessLink, Stream, Turn};
pub use logs::{LogStream, Logs};
pub use start::{StartedFor, start};
