//! A typed client of the HTTP API: every route a method, every answer a type, every failure either
//! the server's own words or what became of the connection. It decides nothing: what to do about a
//! failure is its caller's affair, except that a request which certainly did no harm is sent again
//! when the connection breaks.
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
//! A [`Lease`] that is dropped is returned, too, but nobody hears whether that worked.

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
mod ports;
mod process_log;
mod processes;
mod query;
mod routes;
mod sandbox;
mod session;
mod terminal;
mod transport;
mod turns;
mod web_socket;

// A future that is not boxed is compiled in every crate that awaits it, with everything beneath it.
// Public functions that are not in the way of a checkout or an exec are boxed, so that they are
// compiled here, once.
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
pub use crate::events::{EventStream, EventsQuery, Seen};
pub use crate::exec::ExecStream;
pub use crate::file_search::{FileFilter, WatchStream};
pub use crate::files::Download;
pub use crate::harness::{HarnessHears, HarnessSays, HeldHarness, Said};
pub use crate::inside::Inside;
pub use crate::lease::Lease;
pub use crate::mcp::{McpMessage, McpPlace};
pub use crate::ports::Forwarded;
pub use crate::process_log::{LogStream, Logged};
pub use crate::processes::{LogPart, ProcessFilter};
pub use crate::routes::{SandboxFilter, template};
pub use crate::sandbox::Handle;
pub use crate::session::{Conversation, SessionFilter};
pub use crate::terminal::{Shown, Terminal, TerminalRequest};
pub use crate::transport::{Client, Patience};
pub use crate::turns::TurnStream;
