//! The host's side of the connection, for tests: it starts a guest, sends requests, and keeps all
//! replies. No wait is longer than a deadline.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus as ProcessStatus, Stdio as ProcessStdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use guest_protocol::message::{
    Command, ExitStatus, Exited, Fault, FaultCode, GUEST_CHANNEL, Pipe, ProcessLimits, Reply,
    Request, Spawn, Stdio, VERSION, lane,
};
use guest_protocol::{Endpoint, Env, Incoming, decode};
use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const DEADLINE: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "a test has to give up some time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What happened on a channel, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Data(u8),
    End(u8),
    Reset(u8),
    Reply,
}

/// A guest, and the host's side of its connection.
pub(crate) struct Host {
    pub(crate) guest: Child,
    pub(crate) socket: UnixStream,
    pub(crate) endpoint: Endpoint,
    pub(crate) workspace: PathBuf,
    next_channel: u32,
    replies: BTreeMap<u32, VecDeque<Reply>>,
    data: BTreeMap<(u32, u8), Vec<u8>>,
    pub(crate) seen: BTreeMap<u32, Vec<Seen>>,
    /// Lanes that are not consumed.
    pub(crate) unread: BTreeSet<(u32, u8)>,
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments for the guest.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_under(&[], arguments)
    }

    /// As a child of another program, which gets the guest's command line.
    pub(crate) fn start_under(wrapper: &[&str], arguments: &[&str]) -> Self {
        let workspace = new_directory();
        let (socket, theirs) = UnixStream::pair().unwrap();
        let workspace_name = workspace.to_str().unwrap();
        let mut line =
            [wrapper, &[env!("CARGO_BIN_EXE_guest"), "serve", workspace_name], arguments]
                .concat()
                .into_iter();
        let guest = Process::new(line.next().unwrap())
            .args(line)
            .env_clear()
            .stdin(ProcessStdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        Self::greeted(guest, socket, workspace)
    }

    /// For a guest that is already started, at the other end of this socket.
    pub(crate) fn greeted(guest: Child, socket: UnixStream, workspace: PathBuf) -> Self {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut host = Self {
            guest,
            socket,
            endpoint: Endpoint::new(),
            workspace,
            next_channel: 1,
            replies: BTreeMap::new(),
            data: BTreeMap::new(),
            seen: BTreeMap::new(),
            unread: BTreeSet::new(),
        };
        assert_eq!(host.reply(GUEST_CHANNEL), Reply::Ready { version: VERSION });
        host
    }

    /// Continues with another connection to the same guest, and returns its first message there.
    pub(crate) fn switch(&mut self, socket: UnixStream) -> Reply {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        self.socket = socket;
        self.endpoint = Endpoint::new();
        self.next_channel = 1;
        self.replies.clear();
        self.data.clear();
        self.seen.clear();
        self.reply(GUEST_CHANNEL)
    }

    /// Sends a request on a new channel.
    pub(crate) fn ask(&mut self, request: &Request) -> u32 {
        self.ask_with(request, &[])
    }

    /// Sends a request with descriptors.
    pub(crate) fn ask_with(&mut self, request: &Request, passed: &[BorrowedFd<'_>]) -> u32 {
        self.flush();
        let channel = self.next_channel;
        self.next_channel += 1;
        self.endpoint.send(channel, request).unwrap();
        if !passed.is_empty() {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(passed)));
            let bytes = [IoSlice::new(self.endpoint.outgoing())];
            let sent = sendmsg(&self.socket, &bytes, &mut control, SendFlags::empty()).unwrap();
            self.endpoint.sent(sent);
        }
        self.flush();
        channel
    }

    /// Writes what is queued; reads meanwhile if the guest accepts nothing.
    pub(crate) fn flush(&mut self) {
        let start = now();
        while !self.endpoint.outgoing().is_empty() {
            assert!(start.elapsed() < DEADLINE, "the guest takes nothing");
            self.socket.set_nonblocking(true).unwrap();
            let written = self.socket.write(self.endpoint.outgoing());
            self.socket.set_nonblocking(false).unwrap();
            match written {
                Ok(count) => self.endpoint.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.receive(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads once, for a moment.
    pub(crate) fn receive(&mut self) {
        let mut buffer = vec![0; 128 * 1024];
        match self.socket.read(&mut buffer) {
            Ok(0) => panic!("the guest is gone: {:?}", self.guest.wait()),
            Ok(count) => self.endpoint.feed(&buffer[..count]).unwrap(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        while let Some(incoming) = self.endpoint.next() {
            self.keep(incoming);
        }
    }

    fn keep(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Message { channel, payload } => {
                self.seen.entry(channel).or_default().push(Seen::Reply);
                self.replies.entry(channel).or_default().push_back(decode(&payload).unwrap());
            }
            Incoming::Data { channel, lane, bytes } => {
                self.seen.entry(channel).or_default().push(Seen::Data(lane));
                if !self.unread.contains(&(channel, lane)) {
                    self.endpoint.consumed(channel, lane, bytes.len());
                }
                self.data.entry((channel, lane)).or_default().extend(bytes);
            }
            Incoming::End { channel, lane } => {
                self.seen.entry(channel).or_default().push(Seen::End(lane));
            }
            Incoming::Reset { channel, lane } => {
                self.seen.entry(channel).or_default().push(Seen::Reset(lane));
            }
            Incoming::Writable { .. } => {}
        }
    }

    /// Reads a lane that was not read so far.
    pub(crate) fn read_again(&mut self, channel: u32, lane: u8) {
        self.unread.remove(&(channel, lane));
        let held = self.data.get(&(channel, lane)).map_or(0, Vec::len);
        self.endpoint.consumed(channel, lane, held);
        self.flush();
    }

    /// Reads until a condition holds.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = now();
        while !is_so(self) {
            assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
            self.receive();
            self.flush();
        }
    }

    /// The next reply on a channel.
    pub(crate) fn reply(&mut self, channel: u32) -> Reply {
        let mut reply = None;
        self.until(&format!("a reply on channel {channel}"), |host| {
            reply = host.replies.get_mut(&channel).and_then(VecDeque::pop_front);
            reply.is_some()
        });
        reply.unwrap()
    }

    /// Whether a reply has come already.
    pub(crate) fn has_reply(&self, channel: u32) -> bool {
        self.replies.get(&channel).is_some_and(|replies| !replies.is_empty())
    }

    /// Sends a request and returns its only reply.
    pub(crate) fn call(&mut self, request: &Request) -> Reply {
        let channel = self.ask(request);
        let reply = self.reply(channel);
        self.endpoint.close(channel);
        reply
    }

    /// Sends a request that must fail.
    pub(crate) fn fault(&mut self, request: &Request) -> Fault {
        match self.call(request) {
            Reply::Failed(fault) => fault,
            other => panic!("{request:?} should fail and gives {other:?}"),
        }
    }

    /// Sends a request that must fail, and returns the code.
    pub(crate) fn code(&mut self, request: &Request) -> FaultCode {
        self.fault(request).code
    }

    /// How a program ended.
    pub(crate) fn exited(&mut self, channel: u32) -> Exited {
        match self.reply(channel) {
            Reply::Exited(exited) => exited,
            other => panic!("{other:?}"),
        }
    }

    /// Sends all of this on a lane, as the guest accepts it, then its end.
    pub(crate) fn send(&mut self, channel: u32, lane: u8, bytes: &[u8]) {
        let mut rest = bytes;
        self.until("the guest takes input", |host| {
            let taken = host.endpoint.send_data(channel, lane, rest);
            rest = &rest[taken..];
            host.flush();
            rest.is_empty()
        });
    }

    pub(crate) fn end(&mut self, channel: u32, lane: u8) {
        self.endpoint.end(channel, lane);
        self.flush();
    }

    /// The bytes that came on a lane so far.
    pub(crate) fn data(&self, channel: u32, lane: u8) -> &[u8] {
        self.data.get(&(channel, lane)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn text(&self, channel: u32, lane: u8) -> String {
        String::from_utf8_lossy(self.data(channel, lane)).into_owned()
    }

    /// Runs a line of shell to its end.
    pub(crate) fn run(&mut self, line: &str) -> Ran {
        let channel = self.ask(&shell(line));
        let exited = self.exited(channel);
        let (stdout, stderr) = (self.text(channel, lane::STDOUT), self.text(channel, lane::STDERR));
        Ran { status: exited.status, stdout, stderr }
    }

    /// Waits until the guest has ended by itself.
    pub(crate) fn ended(&mut self) -> ProcessStatus {
        let start = now();
        loop {
            if let Some(status) = self.guest.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "the guest does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.workspace.join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.guest.kill();
        let _ = self.guest.wait();
        let _ = fs::remove_dir_all(&self.workspace);
    }
}

/// An empty directory that belongs to the caller.
pub(crate) fn new_directory() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("shoal-guest-{}-{count}", std::process::id());
    let directory = scratch_directory().join(name);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

/// In memory where possible: these tests make many small files.
pub(crate) fn scratch_directory() -> PathBuf {
    let in_memory = PathBuf::from("/dev/shm");
    if in_memory.is_dir() { in_memory } else { std::env::temp_dir() }
}

/// A program that ran to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) const LANES: Stdio =
    Stdio::Pipes { stdin: Pipe::Lane, stdout: Pipe::Lane, stderr: Pipe::Lane };

pub(crate) const OUTPUT: Stdio =
    Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Lane, stderr: Pipe::Lane };

/// A program with default settings.
pub(crate) fn program(command: Command, stdio: Stdio) -> Spawn {
    Spawn {
        command,
        env: Env::default(),
        cwd: None,
        stdio,
        limits: ProcessLimits::default(),
        announce: false,
    }
}

pub(crate) fn argv(argv: &[&str]) -> Command {
    Command::Argv(argv.iter().map(|&argument| argument.to_owned()).collect())
}

/// A line of shell whose output comes on lanes.
pub(crate) fn shell(line: &str) -> Request {
    shell_on(line, OUTPUT)
}

pub(crate) fn shell_on(line: &str, stdio: Stdio) -> Request {
    spawn(program(Command::Shell(line.to_owned()), stdio))
}

pub(crate) fn spawn(program: Spawn) -> Request {
    Request::Spawn(Box::new(program))
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Both ends of a pipe.
pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// Reads a pipe until its other end is closed everywhere.
pub(crate) fn read_all(pipe: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs::File::from(pipe).read_to_end(&mut bytes).unwrap();
    bytes
}

pub(crate) fn borrow(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(OwnedFd::as_fd).collect()
}

/// Prints that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stderr, reason = "a reader of the test output must see it")]
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    eprintln!("!!!! skipped: {reason} !!!!");
}
