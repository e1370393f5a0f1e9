//! The messages between host and guest on a channel. The host opens a channel with one [`Request`];
//! the guest answers on it with [`Reply`]s, the last of which ends it. Bytes of programs and files
//! are never part of a message but data on a lane of the channel, so that output can never be
//! mistaken for a message.

use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::look::Look;

/// The version of these messages, sent by the guest in [`Reply::Ready`].
pub const VERSION: u16 = 6;

/// The kernel's maximum length of a link target.
pub const MAX_LINK_TARGET_BYTES: usize = 4095;

/// The kernel's maximum length of a Unix socket path.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The descriptor at which a program finds its channel.
pub const CHANNEL_DESCRIPTOR: i32 = 3;

/// The channel for messages of the guest without a request: ready, or why it could not become so.
pub const GUEST_CHANNEL: u32 = 0;

/// Lane of a channel: one of its byte streams.
pub mod lane {
    /// To a program's stdin; or its terminal or channel, or the bytes of a file or connection, in
    /// both directions.
    pub const MAIN: u8 = 0;
    /// A program's stdout.
    pub const STDOUT: u8 = 1;
    /// A program's stderr.
    pub const STDERR: u8 = 2;
    /// How many lanes a channel has.
    pub const LANES: usize = 3;
}

/// From the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answer at once. Replied with `Done`.
    Ping,
    /// Replace the environment that is bound to the sandbox: that of every program started from now
    /// on; `Spawn` can override it. Replied with `Done`.
    Claim {
        /// Names and values.
        env: Env,
    },
    /// Start a program. Replied with `Started` if requested, then `Exited`; or `Failed`.
    Spawn(Box<Spawn>),
    /// Signal a program. Replied with `Done`, also if the program has ended already.
    Signal {
        /// The channel that started it.
        process: u32,
        /// Which signal.
        signal: i32,
        /// Whether to signal everything that descends from it too. A kill is then done only when no
        /// process of it is left.
        tree: bool,
    },
    /// Change the size of a program's terminal. Replied with `Done`.
    Resize {
        /// The channel that started it.
        process: u32,
        /// The new size.
        size: TerminalSize,
    },
    /// Send a file on the main lane. Replied with `Entry` first, then data, end, `Done`.
    ReadFile {
        /// The path.
        path: String,
        /// The first byte.
        offset: u64,
        /// At most this many bytes; all if not given.
        length: Option<u64>,
    },
    /// Write a file from the main lane, to its end. It gets its name when it is complete, so no
    /// program sees half of it. Replied with `Entry`.
    WriteFile {
        /// The path.
        path: String,
        /// Its permissions; if not given, those of the file it replaces, or 0644.
        mode: Option<u32>,
        /// Whether to make missing directories above it.
        parents: bool,
    },
    /// List a directory, sorted by name. Replied with `Entries`.
    List {
        /// The path.
        path: String,
        /// Only names after this one, sorted by their bytes.
        after: Option<Vec<u8>>,
        /// At most this many.
        limit: u32,
    },
    /// Describe one file without following a last link. Replied with `Entry`.
    Stat {
        /// The path.
        path: String,
    },
    /// Make a directory. Replied with `Done`, also if it exists and `parents` is set.
    MakeDirectory {
        /// The path.
        path: String,
        /// Whether to make missing directories above it.
        parents: bool,
    },
    /// Rename a file or directory. Replied with `Done`.
    Move {
        /// From.
        from: String,
        /// To.
        to: String,
        /// Whether to replace an existing file.
        overwrite: bool,
    },
    /// Remove a file or directory. Replied with `Done`.
    Remove {
        /// The path.
        path: String,
        /// Whether to remove everything beneath it too.
        recursive: bool,
    },
    /// Connect to a port inside; then both directions are data on the main lane. Replied with
    /// `Started` when connected, `Done` when both directions have ended, or `Failed`.
    Dial {
        /// On the sandbox's loopback.
        port: u16,
    },
    /// List the ports that programs listen on. Replied with `Ports`.
    Ports,
    /// List the live programs that the host started. Replied with `Processes`.
    Processes,
    /// Make a symbolic link, and missing directories above it. Its target need not exist. Replied
    /// with `Done`; an existing file of that name is left as it is.
    MakeLink {
        /// The path of the link.
        path: String,
        /// Its target, stored as given. Not empty, and at most [`MAX_LINK_TARGET_BYTES`].
        target: String,
    },
    /// Connect to a Unix socket inside, as programs would; then as with `Dial`.
    DialUnix {
        /// Its path, at most [`MAX_SOCKET_PATH_BYTES`] long.
        path: String,
    },
    /// Make a hard link to a file, and missing directories above it. Replied with `Done`; an
    /// existing file of that name is left as it is.
    LinkFile {
        /// The new name.
        path: String,
        /// An existing name of the file. A link is not followed.
        target: String,
    },
    /// Change the metadata of a file or directory. A last link is not followed, and has no
    /// permissions of its own. Replied with `Done`.
    SetAbout {
        /// The path.
        path: String,
        /// Its permissions; unchanged if not given.
        mode: Option<u32>,
        /// Its modification time in milliseconds since 1970; unchanged if not given.
        modified_ms: Option<i64>,
    },
    /// Run a query as a program would: in a process of its own, which a `Signal` ends like any
    /// other. Replied with `Exited`, or `Failed`.
    Look {
        /// The query.
        look: Box<Look>,
        /// Where its records go: a descriptor that came with the request, or the lane of standard
        /// output.
        output: Pipe,
    },
    /// Acknowledges a [`Reply::Scale`]: the next may follow. Replied with `Done`.
    ScaleHeard {
        /// Its number.
        seq: u64,
    },
    /// How many processes keep the sandbox alive besides the scale file. Replied with `Done`.
    ShowHolds {
        /// The number of processes.
        processes: u32,
        /// The last [`Reply::Scale`] that was counted in; 0 if none was.
        seen: u64,
    },
    /// Kill every process besides the guest, whatever started it, and forget all activities: every
    /// unanswered request is `Failed`. Only for a guest that is the first process of a container.
    /// Replied with `Done` when no process is left, or `Failed`.
    EndAll,
    /// Start the guest again with a new connection, a descriptor that comes with the request; the
    /// guest forgets everything. Only after `EndAll`. There is no reply here; the new connection
    /// gets `Ready`, or why not.
    BeginAgain,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// The program.
    pub command: Command,
    /// Environment variables in addition to those bound to the sandbox.
    pub env: Env,
    /// Its working directory; `/workspace` if not given.
    pub cwd: Option<String>,
    /// Its standard streams.
    pub stdio: Stdio,
    /// Its limits.
    pub limits: ProcessLimits,
    /// Whether to send `Started` as soon as it runs.
    pub announce: bool,
}

/// The program of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A program and its arguments; the program is searched in `PATH`.
    Argv(Vec<String>),
    /// A line for the shell.
    Shell(String),
}

/// The standard streams of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    /// Three descriptors.
    Pipes {
        /// Standard input.
        stdin: Pipe,
        /// Standard output.
        stdout: Pipe,
        /// Standard error.
        stderr: Pipe,
    },
    /// A terminal, carried on the main lane in both directions.
    Terminal(TerminalSize),
    /// No standard input, and one more descriptor: a byte stream of its own, carried on the main
    /// lane in both directions.
    Channel {
        /// Standard output.
        stdout: Pipe,
        /// Standard error.
        stderr: Pipe,
    },
}

/// One of a program's three descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pipe {
    /// `/dev/null`.
    Null,
    /// A descriptor that came with the request, in the order stdin, stdout, stderr.
    Passed,
    /// A lane of the channel.
    Lane,
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// Limits of one program, where they are below those of the sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Seconds of processor time.
    pub cpu_s: Option<u64>,
    /// Size of a file it writes.
    pub file_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Size of its address space.
    pub address_space_bytes: Option<u64>,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The sandbox is made and the guest listens. Only on the guest's own channel.
    Ready {
        /// The version of this protocol.
        version: u16,
    },
    /// The sandbox could not be made. Only on the guest's own channel, and its last message.
    SetupFailed {
        /// The step that failed, in words.
        step: String,
        /// The kernel's error number.
        errno: i32,
    },
    /// The request succeeded.
    Done,
    /// The program runs, or the connection is made.
    Started {
        /// Its process id inside, if it is a program.
        pid: Option<u32>,
    },
    /// A program has ended.
    Exited(Exited),
    /// One file.
    Entry(Entry),
    /// Files of a directory.
    Entries {
        /// Sorted by name.
        entries: Vec<Entry>,
        /// Whether there are more.
        more: bool,
    },
    /// Ports that programs listen on.
    Ports(Vec<Port>),
    /// Live programs.
    Processes(Vec<RunningProcess>),
    /// The request failed.
    Failed(Fault),
    /// Programs wrote to the scale file. Only on the guest's own channel, and not again before
    /// [`Request::ScaleHeard`].
    Scale {
        /// The number of this report, from 1.
        seq: u64,
        /// The new value of the counter.
        scale: u32,
        /// Whether the programs said that nothing else keeps the sandbox alive either.
        drops: bool,
    },
}

/// How a program ended and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// How.
    pub status: ExitStatus,
    /// Processor time in its own code.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// The most memory it had at once.
    pub max_rss_kb: u64,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A program that the host started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningProcess {
    /// The channel that started it.
    pub process: u32,
    /// Its process id inside.
    pub pid: u32,
}

/// A port that a program listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// Whether it can be reached on loopback only.
    pub loopback_only: bool,
}

/// One file as it is described to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its last name, as bytes.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its size.
    pub size: u64,
    /// Its permissions, without the kind.
    pub mode: u32,
    /// When it was last written, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The target of a link.
    pub target: Option<Vec<u8>>,
    /// The inode of a file with more than one name.
    pub shared: Option<u64>,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of problem.
    pub code: FaultCode,
    /// The kernel's error number, 0 if there is none.
    pub errno: i32,
    /// For people.
    pub message: String,
}

/// Kinds of problems that a caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultCode {
    /// The request is invalid.
    Invalid,
    /// No such file, program, process or port.
    NotFound,
    /// It exists already.
    Exists,
    /// Not allowed.
    Denied,
    /// The file is of another kind than expected, for example a directory instead of a file.
    WrongKind,
    /// A limit of the sandbox is reached: space, processes, memory, descriptors.
    Limit,
    /// Any other error of the kernel.
    System,
}
