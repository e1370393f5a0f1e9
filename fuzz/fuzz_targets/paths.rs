//! File requests to the guest with arbitrary paths and links: each request is answered, nothing of
//! `/proc` is shown, nothing outside of where its user may write is changed, and what was made can
//! be removed again.
#![no_main]
#![allow(dead_code, reason = "the guest is more than its files")]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};

use arbitrary::Arbitrary;
use guest_protocol::message::{EntryKind, FaultCode, Reply, Request, lane};
use guest_protocol::{Endpoint, Incoming, decode};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/guest/src/contained.rs"]
mod contained;
#[path = "fuzz_root.rs"]
mod fuzz_root;
#[path = "../../crates/guest/src/serve/mod.rs"]
mod serve;

const UNPRIVILEGED: u32 = 65_534;
const OPERATIONS_AT_MOST: usize = 24;

/// A part of a path.
#[derive(Debug, Arbitrary)]
enum Part {
    Up,
    Here,
    Nothing,
    A,
    B,
    Link,
    Workspace,
    Proc,
    Itself,
    Root,
    Descriptors,
    Secret,
    Long(u16),
    Text(String),
}

#[derive(Debug, Arbitrary)]
struct Name {
    absolute: bool,
    parts: Vec<Part>,
}

impl Name {
    fn text(&self) -> String {
        let parts: Vec<String> = self.parts.iter().take(40).map(Part::text).collect();
        format!("{}{}", if self.absolute { "/" } else { "" }, parts.join("/"))
    }
}

impl Part {
    fn text(&self) -> String {
        match self {
            Self::Up => "..".into(),
            Self::Here => ".".into(),
            Self::Nothing => String::new(),
            Self::A => "a".into(),
            Self::B => "b".into(),
            Self::Link => "link".into(),
            Self::Workspace => "workspace".into(),
            Self::Proc => "proc".into(),
            Self::Itself => "self".into(),
            Self::Root => "root".into(),
            Self::Descriptors => "fd".into(),
            Self::Secret => "secret".into(),
            Self::Long(length) => "x".repeat(usize::from(*length % 400)),
            Self::Text(text) => text.clone(),
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Operation {
    Stat(Name),
    Read { path: Name, offset: u64, length: Option<u16> },
    Write { path: Name, mode: Option<u32>, parents: bool, bytes: Vec<u8> },
    List { path: Name, after: Option<Vec<u8>>, limit: u32 },
    MakeDirectory { path: Name, parents: bool },
    Move { from: Name, to: Name, overwrite: bool },
    Remove { path: Name, recursive: bool },
    Link { path: Name, target: Name },
}

impl Operation {
    fn request(&self) -> (Request, Option<&[u8]>) {
        let request = match self {
            Self::Stat(path) => Request::Stat { path: path.text() },
            Self::Read { path, offset, length } => Request::ReadFile {
                path: path.text(),
                offset: *offset,
                length: length.map(u64::from),
            },
            Self::Write { path, mode, parents, bytes } => {
                let path = path.text();
                let request = Request::WriteFile { path, mode: *mode, parents: *parents };
                return (request, Some(bytes));
            }
            Self::List { path, after, limit } => {
                Request::List { path: path.text(), after: after.clone(), limit: *limit }
            }
            Self::MakeDirectory { path, parents } => {
                Request::MakeDirectory { path: path.text(), parents: *parents }
            }
            Self::Move { from, to, overwrite } => {
                Request::Move { from: from.text(), to: to.text(), overwrite: *overwrite }
            }
            Self::Remove { path, recursive } => {
                Request::Remove { path: path.text(), recursive: *recursive }
            }
            Self::Link { path, target } => {
                Request::MakeLink { path: path.text(), target: target.text() }
            }
        };
        (request, None)
    }
}

/// The host's end of the guest's connection.
struct Host {
    endpoint: Endpoint,
    stream: UnixStream,
    channel: u32,
}

impl Host {
    /// Starts a guest.
    fn start() -> Self {
        let (stream, theirs) = UnixStream::pair().expect("a connection");
        let settings = serve::Settings {
            workload: None,
            workspace: "/workspace".into(),
            scale: None,
            contained: None,
        };
        // Only the guest's thread is another user: this thread writes findings as root.
        std::thread::spawn(move || {
            drop_privileges();
            let reason = serve::serve(serve::Link::Socket(theirs.into()), settings);
            panic!("the guest has ended: {reason}");
        });
        let mut host = Self { endpoint: Endpoint::new(), stream, channel: 0 };
        let (ready, _) = host.hear(0, true);
        assert!(matches!(ready, Reply::Ready { .. }), "{ready:?}");
        host
    }

    /// Sends a request and returns the last reply, with the bytes that came.
    fn ask(&mut self, request: &Request, bytes: Option<&[u8]>) -> (Reply, Vec<u8>) {
        self.channel += 1;
        let channel = self.channel;
        self.endpoint.send(channel, request).expect("it fits");
        if let Some(bytes) = bytes {
            let sent = self.endpoint.send_data(channel, lane::MAIN, bytes);
            assert_eq!(sent, bytes.len(), "a little is always taken");
            self.endpoint.end(channel, lane::MAIN);
        }
        let heard = self.hear(channel, !matches!(request, Request::ReadFile { .. }));
        self.endpoint.close(channel);
        heard
    }

    /// Reads until the last reply on a channel, which is the first one if there is only one.
    fn hear(&mut self, wanted: u32, is_only_one: bool) -> (Reply, Vec<u8>) {
        let mut data = Vec::new();
        let mut buffer = [0; 8192];
        loop {
            self.flush();
            while let Some(incoming) = self.endpoint.next() {
                match incoming {
                    Incoming::Message { channel, payload } => {
                        assert_eq!(channel, wanted, "a reply without a request");
                        let reply = decode(&payload).expect("it is a reply");
                        let is_last = matches!(reply, Reply::Done | Reply::Failed(_));
                        if is_only_one || is_last {
                            return (reply, data);
                        }
                    }
                    Incoming::Data { channel, lane, bytes } => {
                        self.endpoint.consumed(channel, lane, bytes.len());
                        data.extend(bytes);
                    }
                    Incoming::End { .. } | Incoming::Reset { .. } | Incoming::Writable { .. } => {}
                }
            }
            self.flush();
            let length = match self.stream.read(&mut buffer) {
                // libFuzzer uses a timer signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.expect("the guest is there"),
            };
            assert!(length > 0, "the guest has hung up");
            self.endpoint.feed(&buffer[..length]).expect("the guest keeps to the protocol");
        }
    }

    fn flush(&mut self) {
        let length = self.endpoint.outgoing().len();
        self.stream.write_all(self.endpoint.outgoing()).expect("the guest is there");
        self.endpoint.sent(length);
    }
}

/// For the thread that calls it.
fn drop_privileges() {
    rustix::thread::set_thread_groups(&[]).expect("no groups");
    let (user, group) =
        (rustix::fs::Uid::from_raw(UNPRIVILEGED), rustix::fs::Gid::from_raw(UNPRIVILEGED));
    rustix::thread::set_thread_res_gid(group, group, group).expect("another group");
    rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
}

/// Whether a path always leads into `/proc`. The name `/proc` itself is in the root.
fn is_in_proc(path: &str) -> bool {
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    path.starts_with('/') && matches!(parts[..], ["proc", _, ..]) && !parts.contains(&"..")
}

fn check(operation: &Operation, reply: &Reply, data: &[u8]) {
    let secret = fuzz_root::SECRET.as_bytes();
    assert!(!data.windows(secret.len()).any(|part| part == secret), "{operation:?}");
    let (Operation::Stat(path)
    | Operation::Read { path, .. }
    | Operation::Write { path, .. }
    | Operation::List { path, .. }
    | Operation::MakeDirectory { path, .. }
    | Operation::Move { from: path, .. }
    | Operation::Remove { path, .. }
    | Operation::Link { path, .. }) = operation;
    let refused = matches!(reply, Reply::Failed(_));
    assert!(refused || !is_in_proc(&path.text()), "{operation:?}: {reply:?}");
    if let Reply::Entry(entry) = reply {
        assert_eq!(entry.target.is_some(), entry.kind == EntryKind::Link, "{reply:?}");
        assert!(!entry.name.contains(&0), "{reply:?}");
    }
}

static HOST: OnceLock<Mutex<Host>> = OnceLock::new();

fuzz_target!(
    init: {
        // Before anything is read: the input lies in the new root.
        if fuzz_root::enter() {
            let _ = HOST.set(Mutex::new(Host::start()));
        }
    },
    |operations: Vec<Operation>| {
        let mut host = HOST.get().expect("it was started").lock().expect("the lock is free");
        for operation in operations.iter().take(OPERATIONS_AT_MOST) {
            let (request, bytes) = operation.request();
            let (reply, data) = host.ask(&request, bytes.map(|all| &all[..all.len().min(2048)]));
            check(operation, &reply, &data);
        }
        for entry in fs::read_dir("/workspace").expect("a workspace").flatten() {
            let path = entry.path().into_os_string().into_string().expect("names came as text");
            let (reply, _) = host.ask(&Request::Remove { path, recursive: true }, None);
            let is_gone = match &reply {
                Reply::Failed(fault) => fault.code == FaultCode::NotFound,
                _ => true,
            };
            assert!(is_gone, "it cannot be removed: {reply:?}");
        }
    }
);
