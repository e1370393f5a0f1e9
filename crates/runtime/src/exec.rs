//! Programs in a sandbox as their host handles them: what to start, its three streams, its exit.
//! A [`Process`] that is dropped before its program has ended kills the program and all its
//! descendants.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use guest_protocol::message::{
    CHANNEL_DESCRIPTOR, Command, ExitStatus, ProcessLimits, TerminalSize,
};
use tokio::io::AsyncWrite as _;

use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::files::{ByteReader, ByteWriter, Duplex};

/// The signal that cannot be caught.
const SIGKILL: i32 = 9;

/// Names the descriptor of its channel to a program that has one.
pub const CHANNEL_NAME: &str = "SHOAL_HARNESS_FD";

/// A program to start.
#[derive(Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// What to run.
    pub command: Command,
    /// Names and values on top of what is bound to the sandbox.
    pub env: Vec<(String, String)>,
    /// Where it starts; `/workspace` if not given.
    pub cwd: Option<String>,
    /// Where its input comes from.
    pub stdin: Stdin,
    /// Where its output goes.
    pub stdout: Sink,
    /// Where its error output goes.
    pub stderr: Sink,
    /// A terminal of this size instead of the three: its input is `stdin`, its output `stdout`.
    pub terminal: Option<TerminalSize>,
    /// What it may use, where it is less than the sandbox may.
    pub limits: ProcessLimits,
    /// A stream of bytes of its own, apart from the other three: the program finds it as descriptor
    /// 3, named by [`CHANNEL_NAME`] in its environment, the caller as [`Process::channel`]. Such a
    /// program has neither input nor terminal.
    pub channel: bool,
    /// Be started only when the program runs, and say its process id. It costs a message.
    pub confirm_start: bool,
}

impl ExecSpec {
    /// A program and its arguments, without input.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A line for the shell, without input.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Command::Shell(line.into()))
    }

    /// A program without input whose output is taken.
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: Vec::new(),
            cwd: None,
            stdin: Stdin::Null,
            stdout: Sink::Stream,
            stderr: Sink::Stream,
            terminal: None,
            limits: ProcessLimits::default(),
            channel: false,
            confirm_start: false,
        }
    }

    /// The same with one more value in its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The same with a channel.
    #[must_use]
    pub fn channel(mut self) -> Self {
        self.channel = true;
        self
    }

    /// Refuses contradictions, and names the channel to the program.
    pub(crate) fn validated(mut self) -> Result<Self, RuntimeError> {
        if !self.channel {
            return Ok(self);
        }
        if self.stdin != Stdin::Null || self.terminal.is_some() {
            let cause = "a program with a channel has neither input nor terminal";
            return Err(RuntimeError::new(RuntimeErrorCode::Invalid, "run a program", cause));
        }
        self.env.push((CHANNEL_NAME.to_owned(), CHANNEL_DESCRIPTOR.to_string()));
        Ok(self)
    }

    /// The same with this input.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }
}

impl fmt::Debug for ExecSpec {
    /// Values of the environment and the input may be secret: only their names and sizes show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSpec")
            .field("command", &self.command)
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("stdin", &self.stdin)
            .field("terminal", &self.terminal)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// Where the input of a program comes from.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Stdin {
    /// Nowhere.
    #[default]
    Null,
    /// These bytes, then the end. What does not fit into a pipe is written while the caller waits
    /// for the program.
    Bytes(Vec<u8>),
    /// The caller writes to [`Process::stdin`].
    Stream,
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Stream => f.write_str("Stream"),
        }
    }
}

/// Where the output of a program goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sink {
    /// Nowhere.
    Null,
    /// The caller reads it.
    #[default]
    Stream,
}

/// How a program exited and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// How.
    pub status: ExitStatus,
    /// Whether the Linux kernel killed something in its sandbox for want of memory, which explains
    /// the status.
    pub out_of_memory: bool,
    /// Processor time in its own code.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// The most memory it had at once.
    pub max_rss_kb: u64,
}

impl Exit {
    /// Whether it ended by itself with code 0.
    pub fn success(&self) -> bool {
        self.status == ExitStatus::Code(0)
    }

    /// Whether it was killed because its time was up, given whether the deadline has passed. No
    /// program survives SIGKILL: one that exited otherwise exited by itself just before.
    pub fn timed_out(&self, deadline_passed: bool) -> bool {
        deadline_passed && self.status == ExitStatus::Signal(SIGKILL)
    }
}

/// What a runtime does for a program that it started.
#[async_trait]
pub(crate) trait ProcessControl: Send + Sync {
    /// How it exited, once it has. One caller at a time is woken.
    fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>>;

    /// Signals it. Succeeds also if it has ended.
    async fn signal(&self, signal: i32, tree: bool) -> Result<(), RuntimeError>;

    /// Changes the size of its terminal.
    async fn resize(&self, size: TerminalSize) -> Result<(), RuntimeError>;

    /// Kills it with all its descendants, without waiting.
    fn abandon(&self);
}

/// A handle that can signal a program while another task waits for it.
#[derive(Clone)]
pub struct ProcessHandle(Arc<dyn ProcessControl>);

impl ProcessHandle {
    /// Sends a signal to the program alone.
    pub async fn signal(&self, signal: i32) -> Result<(), RuntimeError> {
        self.0.signal(signal, false).await
    }

    /// Sends a signal to the program and everything that descends from it.
    pub async fn signal_tree(&self, signal: i32) -> Result<(), RuntimeError> {
        self.0.signal(signal, true).await
    }

    /// Kills the program and everything that descends from it; done when nothing of it is left.
    pub async fn kill(&self) -> Result<(), RuntimeError> {
        self.0.signal(SIGKILL, true).await
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), RuntimeError> {
        self.0.resize(size).await
    }
}

/// A program that was started. Its streams may be taken out and used elsewhere; they end when the
/// program does, also if something that descends from it keeps them open.
pub struct Process {
    /// Its input, if the caller writes it. Dropped, the program sees the end.
    pub stdin: Option<ByteWriter>,
    /// Its output, or that of its terminal.
    pub stdout: Option<ByteReader>,
    /// Its error output.
    pub stderr: Option<ByteReader>,
    /// The other end of its channel, if it has one. Dropped, the program sees the end.
    pub channel: Option<Box<dyn Duplex>>,
    pid: Option<u32>,
    control: Arc<dyn ProcessControl>,
    feed: Option<Feed>,
    exited: bool,
}

/// Input that did not fit at the start.
struct Feed {
    writer: ByteWriter,
    bytes: Vec<u8>,
    written: usize,
}

impl Process {
    pub(crate) fn new(control: Arc<dyn ProcessControl>) -> Self {
        Self {
            stdin: None,
            stdout: None,
            stderr: None,
            channel: None,
            pid: None,
            control,
            feed: None,
            exited: false,
        }
    }

    /// It runs, and has this process id.
    pub(crate) fn started(&mut self, pid: Option<u32>) {
        self.pid = pid;
    }

    /// Lets `wait` write what is left of the input from `written` on.
    pub(crate) fn feed(&mut self, writer: ByteWriter, bytes: Vec<u8>, written: usize) {
        self.feed = Some(Feed { writer, bytes, written });
    }

    /// Its process id inside, if it was asked for.
    pub const fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// A handle for tasks that do not wait for it.
    pub fn handle(&self) -> ProcessHandle {
        ProcessHandle(Arc::clone(&self.control))
    }

    /// Waits for its exit, and writes its input meanwhile if that was given as bytes. The caller
    /// must read its output at the same time, or it may never end. Dropping the future loses
    /// nothing; a second call gives the same answer.
    pub async fn wait(&mut self) -> Result<Exit, RuntimeError> {
        poll_fn(|cx| self.poll_wait(cx)).await
    }

    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>> {
        let exit = self.control.poll_exit(cx);
        if exit.is_ready() {
            self.exited = true;
            self.feed = None;
        } else if let Some(feed) = &mut self.feed
            && feed.poll(cx).is_ready()
        {
            self.feed = None;
        }
        exit
    }
}

impl Feed {
    /// Ready when all is written, or the program closed its input.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.written < self.bytes.len() {
            match Pin::new(&mut self.writer).poll_write(cx, &self.bytes[self.written..]) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(n)) => self.written += n,
                Poll::Pending => return Poll::Pending,
            }
        }
        // A lane sends its end only when it is shut down.
        Pin::new(&mut self.writer).poll_shutdown(cx).map(|_| ())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.exited {
            self.control.abandon();
        }
    }
}
