//! The store of the kernel's journal and of the history: the trait [`Store`], its implementations,
//! and the suite that each of them must pass.
//!
//! A store decides nothing. It takes whole batches, has all of one or nothing of it, and returns
//! what was stored. Everything in it is bounded: records by the kernel, the history by
//! [`Retention`].

#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
pub mod error;
mod event_shares;
pub mod memory;
mod node_key;
mod processes;
mod retention;
mod retention_selection;
pub mod sqlite;
mod turns;

pub use contract::{
    Batch, Condition, DocumentQuery, DocumentsSize, EventPage, EventQuery, Loaded, ProcessBy,
    ProcessKey, ProcessesQuery, Store, TurnQuery,
};
pub use error::{StoreError, StoreErrorCode};
pub use node_key::{NODE_KEY_FILE, read_node_key};
pub use retention::Retention;
pub use turns::{FORKED_BYTES_MAX, FORKED_TURNS_MAX};
