//! A typed client of the HTTP API: a method for every route, a type for every answer. An error is
//! either a refusal of the server or a failed connection. The client decides nothing: the caller
//! handles errors, except that idempotent requests are sent again when the connection breaks.
//!
//! ```no_run
//! use client::{Client, ExecRequest};
//!
//! # async fn example() -> Result<(), client::ClientError> {
//! let client = Client::discover()?;
//! let lease = client.checkout(client::template("default")?).await?;
//! let ran = lease.exec(ExecRequest::shell("echo hi")).await?;
//! assert_eq!(ran.stdout.as_deref(), Some("hi\n"));
//! lease.give_back().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Dropping a [`Lease`] returns it, too, but does not report whether that worked.

mod address;
mod backup;
mod body;
mod call;
mod discover;
mod error;
mod events;
mod exec;
mod file_search;
mod files;
mod harness;
mod images;
mod inside;
mod lease;
mod lines;
mod mcp;
mod network;
mod ports;
mod process_log;
mod processes;
mod query;
mod routes;
mod sandbox;
mod secrets;
mod session;
mod terminal;
mod transport;
mod turns;
mod usage;
mod web_socket;

// An unboxed future is compiled again in every crate that awaits it. Public functions are boxed,
// except in the hot path of checkout and exec, so that they are compiled once, in this crate.
use async_recursion::async_recursion as boxed;

pub use model::{KeyId, LeaseId, Role, SandboxId, SessionId, TemplateName, TurnId};
pub use wire::harness::HarnessClosed;
pub use wire::{
    CheckoutRequest, ExecEvent, ExecRequest, ExecResult, ProcessRequest, SessionRequest, Template,
    TurnAnswer, TurnEvent, TurnRequest,
};

pub use crate::body::Upload;
pub use crate::discover::{
    ADDRESS_FILE, ADMIN_KEY_FILE, DEFAULT_ADDRESS, Discovery, default_data_dir,
};
pub use crate::error::ClientError;
pub use crate::events::{EventStream, EventUpdate, EventsQuery};
pub use crate::exec::ExecStream;
pub use crate::file_search::{FileFilter, WatchStream};
pub use crate::files::Download;
pub use crate::harness::{HarnessConnection, HarnessOutput, HarnessReader, HarnessWriter};
pub use crate::inside::Inside;
pub use crate::lease::Lease;
pub use crate::mcp::{McpMessage, McpTarget};
pub use crate::network::NetworkLogFilter;
pub use crate::ports::Forwarded;
pub use crate::process_log::{LogEvent, LogStream};
pub use crate::processes::{LogPart, ProcessFilter};
pub use crate::routes::{SandboxFilter, template};
pub use crate::sandbox::Handle;
pub use crate::session::{Conversation, SessionFilter};
pub use crate::terminal::{Terminal, TerminalEvent, TerminalRequest};
pub use crate::transport::{Client, Patience};
pub use crate::turns::TurnStream;
