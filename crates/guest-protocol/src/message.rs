//! What host and guest say to each other on a channel. The host opens a channel with one
//! [`Request`]; the guest answers on it with [`Reply`]s, the last of which ends it. Bytes of
//! programs and files never travel in here but as data on a lane of the channel, so that output
//! can never be mistaken for a message.

use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::look::Look;

/// The version of these messages, said by the guest in [`Reply::Ready`].
pub const VERSION: u16 = 6;

/// The longest target of a link, as the kernel has it.
pub const MAX_LINK_TARGET_BYTES: usize = 4095;

/// The longest name of a Unix socket, as the kernel has it.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The descriptor at which a program that is given a channel finds it.
pub const CHANNEL_DESCRIPTOR: i32 = 3;

/// The channel on which the guest speaks unasked: ready, or why it could not become so.
pub const GUEST_CHANNEL: u32 = 0;

/// Lane of a channel: which of its byte streams.
pub mod lane {
    /// Towards a program's stdin; or its terminal or channel, or the bytes of a file or connection,
    /// either way.
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
    /// Replace what is bound to the sandbox: the environment of every program started from now
    /// on, beneath what `Spawn` itself says. Replied with `Done`.
    Claim {
        /// Names and values.
        env: Env,
    },
    /// Start a program. Replied with `Started` if asked for, then `Exited`; or `Failed`.
    Spawn(Box<Spawn>),
    /// Signal a program. Replied with `Done`; that it is over already is done too.
    Signal {
        /// The channel that started it.
        process: u32,
        /// Which signal.
        signal: i32,
        /// Everything that descends from it too, and when the signal is a kill, be done only when
        /// nothing of it is left.
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
        /// Which.
        path: String,
        /// From which byte.
        offset: u64,
        /// At most this many bytes; all if not given.
        length: Option<u64>,
    },
    /// Write a file from the main lane, to its end. Nobody sees half of it: it takes its name
    /// when it is whole. Replied with `Entry`.
    WriteFile {
        /// Which.
        path: String,
        /// Its permissions; those of the file it replaces, or 0644, if not given.
        mode: Option<u32>,
        /// Make directories above it that are missing.
        parents: bool,
    },
    /// List a directory in the order of names. Replied with `Entries`.
    List {
        /// Which.
        path: String,
        /// Only names after this one, in the order of their bytes.
        after: Option<Vec<u8>>,
        /// At most this many.
        limit: u32,
    },
    /// Describe one file without following a last link. Replied with `Entry`.
    Stat {
        /// Which.
        path: String,
    },
    /// Make a directory. Replied with `Done`; that it exists is done too if `parents`.
    MakeDirectory {
        /// Which.
        path: String,
        /// Make those above it that are missing.
        parents: bool,
    },
    /// Rename a file or directory. Replied with `Done`.
    Move {
        /// From.
        from: String,
        /// To.
        to: String,
        /// Replace what is there.
        overwrite: bool,
    },
    /// Remove a file or directory. Replied with `Done`.
    Remove {
        /// Which.
        path: String,
        /// Everything beneath it too.
        recursive: bool,
    },
    /// Connect to a port inside; then both directions are data on the main lane. Replied with
    /// `Started` when connected, `Done` when both directions have ended, or `Failed`.
    Dial {
        /// On the sandbox's loopback.
        port: u16,
    },
    /// Which ports are listened on inside. Replied with `Ports`.
    Ports,
    /// Which programs the host has started that are still alive. Replied with `Processes`.
    Processes,
    /// Make a symbolic link, and directories above it that are missing. Nothing needs to be where
    /// it points. Replied with `Done`; whatever has the name already is left as it is.
    MakeLink {
        /// Which.
        path: String,
        /// Where it points, as it is written into the link. Not empty, and at most
        /// [`MAX_LINK_TARGET_BYTES`].
        target: String,
    },
    /// Connect to a Unix socket inside, as programs would; then it is as with `Dial`.
    DialUnix {
        /// Which, at most [`MAX_SOCKET_PATH_BYTES`] long.
        path: String,
    },
    /// Give a file another name, a hard link, and make directories above it that are missing.
    /// Replied with `Done`; whatever has the name already is left as it is.
    LinkFile {
        /// The new name.
        path: String,
        /// A name that it has. A link is not followed.
        target: String,
    },
    /// Change what is said about a file or directory. A last link is not followed, and has no
    /// permissions of its own. Replied with `Done`.
    SetAbout {
        /// Which.
        path: String,
        /// Its permissions; as they are if not given.
        mode: Option<u32>,
        /// When it was last written, in milliseconds since 1970; as it is if not given.
        modified_ms: Option<i64>,
    },
    /// Look around as a program would: in a process of its own, which a `Signal` ends like any other.
    /// Replied with `Exited`, or `Failed`.
    Look {
        /// What for.
        look: Box<Look>,
        /// Where what it sees goes: a descriptor that came along, or the lane of standard output.
        output: Pipe,
    },
    /// A [`Reply::Scale`] was heard: the next may follow. Replied with `Done`.
    ScaleHeard {
        /// Which.
        seq: u64,
    },
    /// So many processes keep the sandbox awake besides what was written to the scale file. Replied
    /// with `Done`.
    ShowHolds {
        /// How many.
        processes: u32,
        /// The last [`Reply::Scale`] that was counted in; 0 if none was.
        seen: u64,
    },
    /// End everything that runs besides the guest, whoever started it, and forget all that goes on:
    /// whatever was asked for and not answered is `Failed`. Only of a guest that is alone with its
    /// programs, in a container. Replied with `Done` when nothing is left, or `Failed`.
    EndAll,
    /// Begin a new life, of which one descriptor that comes along is the connection: nothing that
    /// the guest knew remains. Only after `EndAll`. There is no answer here; the new connection says
    /// `Ready`, or why not.
    BeginAgain,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// What to run.
    pub command: Command,
    /// Names and values on top of what is bound to the sandbox.
    pub env: Env,
    /// Where it starts; `/workspace` if not given.
    pub cwd: Option<String>,
    /// Where its bytes go.
    pub stdio: Stdio,
    /// What it may use at most.
    pub limits: ProcessLimits,
    /// Say `Started` as soon as it runs.
    pub announce: bool,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A program and its arguments; the program is looked for in `PATH`.
    Argv(Vec<String>),
    /// A line for the shell.
    Shell(String),
}

/// Where the bytes of a program go.
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
    /// No input, and one descriptor more: a stream of bytes of its own, carried on the main lane in
    /// both directions.
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
    /// A descriptor that came along with the request, in the order stdin, stdout, stderr.
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

/// What one program may use at most, where it is less than the sandbox may.
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
    /// The sandbox could not be made. Only on the guest's own channel, and its last word.
    SetupFailed {
        /// Which step, in words.
        step: String,
        /// What the kernel said.
        errno: i32,
    },
    /// It is done.
    Done,
    /// It runs.
    Started {
        /// Its process id inside, if it is a program.
        pid: Option<u32>,
    },
    /// A program is over.
    Exited(Exited),
    /// One file.
    Entry(Entry),
    /// Files of a directory.
    Entries {
        /// In the order of their names.
        entries: Vec<Entry>,
        /// Whether there are more.
        more: bool,
    },
    /// Ports that are listened on.
    Ports(Vec<Port>),
    /// Programs that are alive.
    Processes(Vec<RunningProcess>),
    /// It could not be done.
    Failed(Fault),
    /// Programs wrote to the scale file. Only on the guest's own channel, and not again before
    /// [`Request::ScaleHeard`].
    Scale {
        /// Counts these, from 1.
        seq: u64,
        /// What they want now.
        scale: u32,
        /// Whether they said that nothing else is to keep the sandbox awake either.
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

/// A program the host started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningProcess {
    /// The channel that started it.
    pub process: u32,
    /// Its process id inside.
    pub pid: u32,
}

/// A port that is listened on.
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
    /// Its last name. Bytes, because file names are.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its size.
    pub size: u64,
    /// Its permissions, without the kind.
    pub mode: u32,
    /// When it was last written, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a link points.
    pub target: Option<Vec<u8>>,
    /// The number by which a file that has more than one name is known in its file system.
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

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What kind of problem.
    pub code: FaultCode,
    /// What the kernel said, 0 if it was not asked.
    pub errno: i32,
    /// For people.
    pub message: String,
}

/// Kinds of problems that a caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultCode {
    /// The request makes no sense.
    Invalid,
    /// No such file, program, process or port.
    NotFound,
    /// It is there already.
    Exists,
    /// Not allowed.
    Denied,
    /// It is not of the kind that was expected: a directory where a file should be, say.
    WrongKind,
    /// A limit of the sandbox is reached: space, processes, memory, descriptors.
    Limit,
    /// Anything else the kernel may say.
    System,
}
