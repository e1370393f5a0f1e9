//! Processes as they are stored: the program that was started in a sandbox, its status, and why it
//! ended. Their output is stored separately, in logs; environments are never stored.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{KeyId, ProcessId, SandboxId};
use crate::time::Wall;

/// A program that was started in a sandbox and outlives the request that started it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its id, the same over restarts.
    pub id: ProcessId,
    /// Its number among the processes of its sandbox, from 1.
    pub number: u64,
    /// Where it was started.
    pub sandbox: SandboxId,
    /// The key that the sandbox belongs to.
    pub tenant: KeyId,
    /// Its first process id inside, which it is known by over restarts.
    pub pid: u32,
    /// Its name; unique among the running processes of its sandbox.
    pub name: Arc<str>,
    /// The command line.
    pub command: Arc<str>,
    /// Its working directory as given; the workspace if not given.
    pub cwd: Option<Arc<str>>,
    /// Whether it keeps its sandbox alive. This ends with a stop of the keep-alive, or when a stop,
    /// a kill or its timeout ends the process.
    pub keep_alive: bool,
    /// When it is killed: after this much time during which its sandbox was not frozen; 0 is never.
    pub timeout_ms: u64,
    /// Whether it is started again when it fails.
    pub restart: Option<RestartPolicy>,
    /// How often it was restarted.
    pub restarts: u32,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether its input can be written.
    pub stdin: bool,
    /// When it was started, the last time.
    pub started_at: Wall,
    /// How it ended, for good.
    pub end: Option<ProcessEnd>,
    /// Which part of its output is stored.
    pub log: LogExtent,
}

impl ProcessRecord {
    /// Its status.
    pub const fn status(&self) -> ProcessStatus {
        match &self.end {
            Some(end) => end.status,
            None => ProcessStatus::Running,
        }
    }
}

impl fmt::Debug for ProcessRecord {
    /// The command line may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRecord")
            .field("id", &self.id)
            .field("sandbox", &self.sandbox)
            .field("pid", &self.pid)
            .field("name", &self.name)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// When a process is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// How often at most; any number of times if not given.
    pub max_restarts: Option<u32>,
}

/// The status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ProcessStatus {
    /// It runs, or is about to be started again.
    Running,
    /// It ended by itself with code 0.
    Completed,
    /// It ended by itself with another code, by a signal of its own, or could not be started again.
    Failed,
    /// It was killed: on request, at its timeout, or with its sandbox.
    Killed,
    /// It was asked to stop, and did.
    Stopped,
}

impl ProcessStatus {
    /// As text: in the API, the store and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// When.
    pub at: Wall,
    /// How.
    pub status: ProcessStatus,
    /// Its exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why.
    pub reason: ProcessEndReason,
    /// More about why, in words.
    pub detail: Option<Arc<str>>,
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ProcessEndReason {
    /// By itself.
    Exited,
    /// A caller stopped it.
    Stopped,
    /// A caller killed it.
    Killed,
    /// It reached its timeout.
    Timeout,
    /// The kernel of the machine killed it because memory ran out.
    Oom,
    /// It could not be started again.
    RestartFailed,
    /// Its sandbox ended.
    SandboxEnded,
    /// The server ended, and its sandbox with it.
    ServerEnded,
}

impl ProcessEndReason {
    /// As text: in the API, the store and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Timeout => "timeout",
            Self::Oom => "oom",
            Self::RestartFailed => "restart_failed",
            Self::SandboxEnded => "sandbox_ended",
            Self::ServerEnded => "server_ended",
        }
    }
}

/// How much a process wrote, and which part is stored. Offsets count the bytes of both streams
/// together, in the order in which they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogExtent {
    /// The first byte that is still kept.
    pub first: u64,
    /// One past the last.
    pub end: u64,
    /// Bytes of the output, all that there ever were.
    pub stdout_bytes: u64,
    /// Bytes of the error output, all that there ever were.
    pub stderr_bytes: u64,
}

/// A change of the stored processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessChange {
    /// A process as it is now, in place of what was stored of it. A small output is stored with it;
    /// without an output, the stored output stays.
    Put {
        /// The process.
        record: Arc<ProcessRecord>,
        /// Its output, in a format that only the writer knows.
        log: Option<Arc<[u8]>>,
    },
    /// The record of a process is deleted.
    Removed {
        /// Where it was started.
        sandbox: SandboxId,
        /// Its place among those of its sandbox.
        number: u64,
    },
}
