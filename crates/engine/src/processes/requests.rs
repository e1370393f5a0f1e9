//! Requests about processes, and their answers.

use std::fmt;

use bytes::Bytes;
use model::{ProcessId, ProcessRecord, Wall};
use runtime::{Command, TerminalSize};

/// A process to start.
#[derive(Clone)]
pub struct ProcessRequest {
    /// What to run.
    pub command: Command,
    /// Its name; generated if not given. No running process may have it; at most 128 characters, no
    /// `/` or control character, and not only digits.
    pub name: Option<String>,
    /// Its working directory; the workspace if not given.
    pub cwd: Option<String>,
    /// Environment on top of that of the sandbox.
    pub env: Vec<(String, String)>,
    /// Its input.
    pub stdin: ProcessInput,
    /// A terminal of this size. Its input can be written.
    pub terminal: Option<TerminalSize>,
    /// Whether it keeps its sandbox awake.
    pub keep_alive: bool,
    /// When it is killed: not given is never, or the node's default if it keeps its sandbox awake;
    /// 0 is never.
    pub timeout_ms: Option<u64>,
    /// Whether it is restarted when it fails.
    pub restart: Option<model::process::RestartPolicy>,
}

impl ProcessRequest {
    /// A process with every default.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            name: None,
            cwd: None,
            env: Vec::new(),
            stdin: ProcessInput::Null,
            terminal: None,
            keep_alive: false,
            timeout_ms: None,
            restart: None,
        }
    }
}

impl fmt::Debug for ProcessRequest {
    /// Commands, environments and inputs may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The input of a process.
#[derive(Clone, Default)]
pub enum ProcessInput {
    /// None.
    #[default]
    Null,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// It is written later.
    Open,
}

/// How a caller names a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessRef {
    /// By its id.
    Id(ProcessId),
    /// By its process id in the sandbox; the one that was started last.
    Pid(u32),
    /// By its name; the one that was started last.
    Name(String),
}

impl ProcessRef {
    /// An id is a UUID, a process id has only digits, everything else is a name.
    pub fn parse(text: &str) -> Self {
        if let Ok(id) = text.parse() {
            return Self::Id(id);
        }
        match text.parse() {
            Ok(pid) if text.bytes().all(|byte| byte.is_ascii_digit()) => Self::Pid(pid),
            Ok(_) | Err(_) => Self::Name(text.to_owned()),
        }
    }
}

/// Which processes to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessQuery {
    /// Only those with a lower number.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
    /// Only running ones.
    pub running: bool,
}

/// A page of processes, latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessPage {
    /// The processes.
    pub processes: Vec<ProcessRecord>,
    /// Whether there are earlier ones.
    pub more: bool,
}

/// Which of the two outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputSelection {
    /// Both, in the order in which they came.
    #[default]
    Both,
    /// The output.
    Stdout,
    /// The error output.
    Stderr,
}

/// Which part of a log. Offsets count the bytes of both outputs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogQuery {
    /// Of which output.
    pub wanted: OutputSelection,
    /// From this offset on; deleted bytes are skipped. Not given: the last `max_bytes`.
    pub offset: Option<u64>,
    /// At most so many bytes.
    pub max_bytes: u64,
}

/// Part of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The pieces, in order.
    pub pieces: Vec<LogPiece>,
    /// The offset of the next page.
    pub next_offset: u64,
    /// The offset of the first byte that still exists.
    pub first: u64,
    /// Whether there is more right now.
    pub more: bool,
    /// Whether the process has ended.
    pub over: bool,
}

/// A piece of a log, of one of the outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// Its offset.
    pub offset: u64,
    /// Whether it is of the error output.
    pub stderr: bool,
    /// When it came.
    pub at: Wall,
    /// The bytes.
    pub bytes: Bytes,
}
