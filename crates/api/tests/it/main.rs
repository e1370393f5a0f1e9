//! The API as its clients meet it: through sockets, on an engine with a runtime and a store in
//! memory.
#![expect(clippy::unwrap_used, reason = "a test that panics has done its work")]

mod access;
mod archives;
mod ash;
mod blaxel;
mod connections;
mod conversation_client;
mod conversations;
mod documents;
mod events;
mod exec;
mod fairness;
mod file_search;
mod files;
mod harness;
mod idempotency;
mod images;
mod lifecycle;
mod mcp;
mod ports;
mod processes;
mod raw_client;
mod refusals;
mod request_log;
mod secrets;
mod sessions;
mod stage;
mod terminals;
mod turns;
mod usage;
