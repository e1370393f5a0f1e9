//! The JSON types of the HTTP API, for the server and its clients: what requests and answers look
//! like, and nothing about how they are sent.
//!
//! Names are `snake_case`, ids are UUIDs, times are RFC 3339 in UTC with milliseconds, durations
//! are in the unit of their name. A request with a field that is not known is refused; a client
//! ignores fields that it does not know, so that a newer server may send more.

mod bytes;
pub mod deadline;
mod event;
pub mod exec;
pub mod file;
pub mod file_search;
pub mod harness;
pub mod image;
pub mod keep_alive;
pub mod key;
mod key_limits;
pub mod network;
pub mod node;
pub mod pool;
pub mod port;
pub mod problem;
pub mod process;
pub mod process_log;
pub mod sandbox;
pub mod secret;
pub mod session;
mod time;
pub mod turn;
pub mod usage;
pub mod why;

pub use bytes::{Base64Error, from_base64, to_base64};
pub use deadline::{DeadlineRequest, NewDeadline, SessionDeadline};
pub use event::{Event, EventBody, EventList, EventsReset};
pub use exec::{ExecEvent, ExecExit, ExecRequest, ExecResult, Output, STATE_LOST_HEADER};
pub use file::{
    AboutRequest, DirectoryRequest, FileEntry, FileKind, FileList, LinkRequest, MoveRequest,
    Unpacked, Uploaded,
};
pub use file_search::{
    ChangedFile, FileEvent, FileTree, FoundFile, FoundList, SearchResult, TextMatch, TreeEntry,
};
pub use image::{Image, ImageConfig, ImageLayer, ImageList, ImageRemoved};
pub use keep_alive::{StatusReport, StopRequest};
pub use key::{Key, KeyList, KeyRequest, NewKey};
pub use key_limits::{KeyChange, KeyLimitsChange, KeyUsed};
pub use model::Template;
pub use model::stats::{NodeStats, PoolCounters, PoolStats};
pub use network::{
    Network, NetworkChange, NetworkEntry, NetworkEntryKind, NetworkLog, NetworkVerdict,
};
pub use node::{Health, HealthStatus, MemoryLimits, SessionCounts, Stats};
pub use pool::{EffectiveTemplate, PoolList, PoolResize, TemplateList};
pub use port::{PortEntry, PortList};
pub use problem::Problem;
pub use process::{
    LogExtent, Process, ProcessList, ProcessOutput, ProcessRequest, SignalRequest, TerminalSize,
};
pub use process_log::{LogPiece, ProcessEvent, ProcessLog, TerminalWord};
pub use sandbox::{
    Checkout, CheckoutPath, CheckoutPolicy, CheckoutRequest, RenewRequest, Sandbox, SandboxList,
};
pub use secret::{Secret, SecretList, SecretRequest, SecretScope};
pub use session::{
    AbortRequest, Aborted, LogLine, LogList, LogStream, Session, SessionFile, SessionList,
    SessionRequest, SessionUpdate, SessionWorkspace,
};
pub use time::Time;
pub use turn::{
    Turn, TurnAnswer, TurnEnded, TurnError, TurnEvent, TurnEventList, TurnList, TurnOutput,
    TurnRequest, WhenBusy,
};
pub use usage::{Usage, UsageList};
pub use why::{Candidate, Eviction, Why, WhyAlive, WhyEnded};
