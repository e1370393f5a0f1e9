//! The imperative shell around the kernel. It turns requests into events, commits what the kernel
//! decides, then carries out the effects and sends the answers; it runs the timer and reports
//! deaths. It decides nothing about a sandbox's life, and never names a concrete runtime or store.
//!
//! Data flows one way: a request becomes an event ([`Engine`]), the kernel decides (`core`), the
//! decision is committed (`commit`), its effects are carried out in order (`lanes`, `effects`), and
//! their outcomes are events again.

mod answers;
pub mod archive;
mod backup;
mod claim;
mod clock;
mod commit;
mod core;
mod deaths;
mod decision_log;
mod disk_guard;
mod disk_usage;
mod documents;
mod effects;
mod ended_sessions;
mod events;
mod harnesses;
mod ids;
mod image_pins;
mod images;
mod instance_ends;
mod journal_health;
mod keep_alive_observers;
mod keep_alive_status;
mod keys;
mod known_bridges;
mod lanes;
mod leases;
mod lost_found;
mod metering;
mod metrics;
mod mounts;
mod named_documents;
mod named_sessions;
mod network;
mod node_health;
mod pools;
mod processes;
mod roots;
mod runtimes;
mod sandboxes;
mod scale_file;
mod secrets;
mod seed_archives;
mod session_creation;
mod session_names;
mod sessions;
mod shutdown;
mod start;
mod state_loss;
mod templates;
mod timer;
mod transitions;
mod turns;
mod uploads;
mod uses;
mod workspace_disk;
mod workspace_location;
mod workspace_locks;
mod workspace_persistence;
mod workspace_transfer;

#[cfg(test)]
mod tests;

// A future that is not boxed is compiled in every crate that awaits it, with everything beneath it.
// Public functions that are not in the way of a checkout or an exec are boxed, so that they are
// compiled here, once.
use async_recursion::async_recursion as boxed;

use std::sync::Arc;

pub use crate::backup::{Backup, StoppedNode};
pub use crate::clock::WallClock;
pub use crate::events::EventWatch;
pub use crate::harnesses::LogLine;
pub use crate::images::{ImageRemoved, ImageRequest};
pub use crate::keep_alive_observers::KeepAliveChange;
pub use crate::keep_alive_status::SandboxStatusReport;
pub use crate::keys::{Caller, NewKey};
pub use crate::leases::{CheckoutRequest, HandedOut};
pub use crate::metering::KeyUsage;
pub use crate::metrics::Metrics;
pub use crate::mounts::Mounts;
pub use crate::named_documents::{NAMED_BYTES_MAX, NAMED_MAX, NamedDocumentsLock, NamedError};
pub use crate::named_sessions::NamedSession;
pub use crate::network::{NetworkLogEntry, NetworkLogPage, NetworkLogQuery, NetworkReport, Wanted};
pub use crate::node_health::{Degraded, Health};
pub use crate::processes::{
    LogFollow, LogPage, LogPiece, LogQuery, OutputSelection, ProcessInput, ProcessLogs,
    ProcessPage, ProcessQuery, ProcessRef, ProcessRequest,
};
pub use crate::roots::Roots;
pub use crate::runtimes::Runtimes;
pub use crate::secrets::{ReadVariable, SecretPut, secret_missing};
pub use crate::sessions::{
    Aborted, INPUT_BYTES_MAX, SessionPage, SessionQuery, SessionRequest, SessionUpdate,
    StartedTurn, TurnRequest,
};
pub use crate::start::{EngineConfig, StartError, Started, Strays};
pub use crate::state_loss::collect_losses;
pub use crate::templates::{Put, check_settings_of_template};
pub use crate::transitions::{TransitionPage, TransitionQuery, TransitionWatch};
pub use crate::turns::{TurnFollow, turn_error};
pub use crate::uploads::{UPLOAD_PARTS_MAX, Upload, UploadError, UploadPart, UploadPartWriter};
pub use crate::uses::Use;
pub use crate::workspace_location::{SessionWorkspace, WorkspaceLocation};
pub use ::images::Image;
pub use egress::{Egress, EventKind as NetworkEventKind, Verdict as NetworkVerdict};
pub use harness::{
    HarnessError, HarnessErrorCode, HeldHarness, HeldInput, HeldOutput, LogStream, bridge_variables,
};
pub use kernel::{
    CheckedOut, CheckoutPath, CheckoutPolicy, DeadlineChange, FreezeStatus, Grant, KeepAliveCounts,
    KeepAliveProcess, KeepAliveReport, Loss, Recovery, SandboxView, SessionView, UseKind, WhenBusy,
};
pub use runtime::output_room;
pub use runtime::{
    ChangeKind, Collected, Command, Duplex, Entry, EntryKind, ExecSpec, Exit, ExitStatus,
    FileChange, FileReader, FileWatch, FileWriter, FindQuery, Found, FoundEntry, Page, Port,
    Process, ProcessHandle, Reaped, RunLimits, SearchQuery, Searched, Sink, Socket, Stdin,
    TerminalSize, TextMatch, WatchQuery,
};
pub use store::{EventPage, EventQuery};
pub use workspaces::{Archives, LostFound, SeedFile, Seeds, Workspaces};

use crate::core::Core;

/// A node: its kernel, and everything that carries out what it decides. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
    /// The engine stops when the last handle is dropped.
    _alive: Arc<Alive>,
}

struct Alive(Arc<Core>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.halt();
    }
}

impl Engine {
    fn of(core: Arc<Core>) -> Self {
        let alive = Arc::new(Alive(Arc::clone(&core)));
        Self { core, _alive: alive }
    }
}
