//! The API as its clients meet it: through sockets, on an engine with a runtime and a store in
//! memory.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod access;
mod answer;
mod archives;
mod ash;
mod blaxel;
mod connections;
mod conversations;
mod documents;
mod events;
mod exec;
mod files;
mod harness;
mod idempotency;
mod images;
mod life;
mod look;
mod mcp;
mod ports;
mod processes;
mod refusals;
mod sessions;
mod stage;
mod talk;
mod terminals;
mod turns;
