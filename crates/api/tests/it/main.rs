//! The API as its clients meet it: through sockets, on an engine with a runtime and a store in
//! memory.

mod access;
mod answer;
mod archives;
mod connections;
mod documents;
mod events;
mod exec;
mod files;
mod idempotency;
mod life;
mod refusals;
mod stage;
