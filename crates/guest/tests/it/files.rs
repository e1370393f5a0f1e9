//! Files: written completely or not at all, read in pieces, and never a trap for the guest.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::Duration;

use guest_protocol::message::{Entry, EntryKind, FaultCode, Reply, Request, lane};

use crate::host::{Host, is_root, now};

fn read_part(path: &str, offset: u64, length: Option<u64>) -> Request {
    Request::ReadFile { path: path.into(), offset, length }
}

fn read(path: &str) -> Request {
    read_part(path, 0, None)
}

fn write(path: &str, mode: Option<u32>, parents: bool) -> Request {
    Request::WriteFile { path: path.into(), mode, parents }
}

fn stat(path: &str) -> Request {
    Request::Stat { path: path.into() }
}

impl Host {
    fn read_file(&mut self, request: &Request) -> (Entry, Vec<u8>) {
        let channel = self.ask(request);
        let Reply::Entry(entry) = self.reply(channel) else { panic!() };
        assert_eq!(self.reply(channel), Reply::Done);
        (entry, self.data(channel, lane::MAIN).to_vec())
    }

    fn write_file(&mut self, request: &Request, bytes: &[u8]) -> Reply {
        let channel = self.ask(request);
        self.send(channel, lane::MAIN, bytes);
        self.end(channel, lane::MAIN);
        self.reply(channel)
    }

    fn entry(&mut self, request: &Request) -> Entry {
        match self.call(request) {
            Reply::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.workspace).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }
}

#[test]
fn blocks_of_zeros_take_no_room() {
    let mut host = Host::start();
    let mut bytes = vec![0; 3_000_000];
    bytes[1_000_000] = 1;
    host.write_file(&write("f", None, false), &bytes);
    let found = fs::metadata(host.path("f")).unwrap();
    assert_eq!(found.len(), 3_000_000);
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    assert!(host.read_file(&read("f")).1 == bytes);
}

#[test]
fn files_are_read_back_as_written() {
    let mut host = Host::start();
    for size in [0, 1, 65_536, 3_000_001_u32] {
        let bytes: Vec<u8> = (0..size).map(|n| (n ^ (n >> 8)) as u8).collect();
        let Reply::Entry(entry) = host.write_file(&write("f", None, false), &bytes) else {
            panic!()
        };
        assert_eq!((entry.size, entry.mode), (u64::from(size), 0o644));
        assert!(entry.modified_ms > 1_600_000_000_000);
        let (entry, found) = host.read_file(&read("f"));
        assert_eq!(entry.name, b"f");
        assert_eq!(entry.size, u64::from(size));
        assert!(found == bytes);
    }
    assert_eq!(host.names(), ["f"]);
}

#[test]
fn parts_of_a_file_are_read() {
    let mut host = Host::start();
    fs::write(host.path("f"), "0123456789").unwrap();
    let mut part = |offset, length| host.read_file(&read_part("f", offset, length)).1;
    assert_eq!(part(3, None), b"3456789");
    assert_eq!(part(3, Some(4)), b"3456");
    assert_eq!(part(8, Some(100)), b"89");
    assert_eq!(part(10, None), b"");
    assert_eq!(part(1000, None), b"");
    assert_eq!(part(0, Some(0)), b"");
    assert_eq!(host.fault(&read_part("f", u64::MAX, None)).code, FaultCode::Invalid);
}

#[test]
fn file_permissions_are_given_or_kept() {
    let mut host = Host::start();
    host.write_file(&write("f", Some(0o755), false), b"1");
    assert_eq!(host.mode("f"), 0o755);
    host.write_file(&write("f", None, false), b"2");
    assert_eq!(host.mode("f"), 0o755, "kept");
    host.write_file(&write("f", Some(0o600), false), b"3");
    assert_eq!(host.mode("f"), 0o600);
    host.write_file(&write("g", None, false), b"4");
    assert_eq!(host.mode("g"), 0o644);
    assert_eq!(host.code(&write("g", Some(0o100_644), false)), FaultCode::Invalid);
}

#[test]
fn parent_directories_are_made_when_asked_for() {
    let mut host = Host::start();
    assert_eq!(host.code(&write("a/b/c", None, false)), FaultCode::NotFound);
    assert!(matches!(host.write_file(&write("a/b/c", None, true), b"x"), Reply::Entry(_)));
    assert_eq!(fs::read(host.path("a/b/c")).unwrap(), b"x");
    assert!(matches!(host.write_file(&write("a/b/d", None, true), b"x"), Reply::Entry(_)));
    assert_eq!(host.code(&write("a/b/c/d", None, true)), FaultCode::WrongKind);
}

#[test]
fn a_file_that_is_given_up_leaves_nothing() {
    let mut host = Host::start();
    fs::write(host.path("f"), "old").unwrap();
    let channel = host.ask(&write("f", None, false));
    host.send(channel, lane::MAIN, &vec![1; 100_000]);
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert_eq!(host.names().len(), 2, "it has a name of its own meanwhile");
    host.endpoint.reset(channel, lane::MAIN);
    host.flush();
    assert!(matches!(host.reply(channel), Reply::Failed(_)));
    assert_eq!(host.names(), ["f"]);
    assert_eq!(fs::read(host.path("f")).unwrap(), b"old");

    let channel = host.ask(&write("f", None, false));
    host.send(channel, lane::MAIN, b"new");
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    host.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(host.ended().success());
    assert_eq!(host.names(), ["f"], "nor does one whose connection ended");
    assert_eq!(fs::read(host.path("f")).unwrap(), b"old");
}

#[test]
fn links_are_written_through_and_shown_as_links() {
    let mut host = Host::start();
    fs::create_dir(host.path("d")).unwrap();
    fs::write(host.path("d/target"), "old").unwrap();
    symlink("d/target", host.path("one")).unwrap();
    symlink("../one", host.path("d/two")).unwrap();
    symlink("loop", host.path("loop")).unwrap();
    symlink("nowhere", host.path("dangling")).unwrap();
    host.write_file(&write("d/two", None, false), b"new");
    assert_eq!(fs::read(host.path("d/target")).unwrap(), b"new");
    assert!(fs::symlink_metadata(host.path("one")).unwrap().is_symlink());
    let entry = host.entry(&stat("d/two"));
    assert_eq!(entry.kind, EntryKind::Link);
    assert_eq!(entry.target.as_deref(), Some(&b"../one"[..]));
    assert_eq!(host.code(&write("loop", None, false)), FaultCode::Denied);
    assert_eq!(host.code(&read("loop")), FaultCode::Denied);
    host.write_file(&write("dangling", None, false), b"made");
    assert_eq!(fs::read(host.path("nowhere")).unwrap(), b"made");
    assert_eq!(host.read_file(&read("one")).1, b"new");
}

#[test]
fn no_path_blocks_the_guest() {
    let mut host = Host::start();
    let fifo = host.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o666),
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(host.path("socket")).unwrap();
    let start = now();
    for path in ["fifo", "socket", "/dev/zero", "/dev/tty", "."] {
        assert!(matches!(host.call(&read(path)), Reply::Failed(_)), "{path}");
    }
    for path in ["fifo", "socket", "/dev/null"] {
        assert_eq!(host.code(&write(path, None, false)), FaultCode::WrongKind, "{path}");
    }
    assert_eq!(host.entry(&stat("fifo")).kind, EntryKind::Other);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(host.code(&read("fifo")), FaultCode::WrongKind);
    assert_eq!(host.code(&read(".")), FaultCode::WrongKind);
}

#[test]
fn the_guest_does_not_show_itself() {
    let mut host = Host::start();
    symlink("/proc/self/environ", host.path("sly")).unwrap();
    symlink("/proc/self/fd", host.path("slier")).unwrap();
    let denied = [
        read("/proc/self/environ"),
        read("/proc/self/mem"),
        read("sly"),
        read("/proc/self/exe"),
        read("/proc/self/fd/0"),
        read("/proc/self/root/etc/passwd"),
        read("slier/0"),
        stat("/proc/self/status"),
        stat("/proc/self"),
        write("/proc/self/comm", None, false),
        write("sly", None, false),
        Request::List { path: "/proc".into(), after: None, limit: 10 },
        Request::List { path: "slier".into(), after: None, limit: 10 },
        Request::Remove { path: "/proc/self".into(), recursive: true },
        Request::MakeDirectory { path: "/proc/x".into(), parents: true },
        Request::Move { from: "sly".into(), to: "/proc/x".into(), overwrite: true },
    ];
    for request in denied {
        assert_eq!(host.code(&request), FaultCode::Denied, "{request:?}");
    }
}

#[test]
fn missing_files_and_invalid_paths_are_refused() {
    let mut host = Host::start();
    fs::write(host.path("f"), "x").unwrap();
    assert_eq!(host.code(&read("no")), FaultCode::NotFound);
    assert_eq!(host.code(&stat("no")), FaultCode::NotFound);
    assert_eq!(host.code(&read("f/x")), FaultCode::WrongKind);
    assert_eq!(host.code(&read("a\0b")), FaultCode::Invalid);
    assert_eq!(host.code(&write("", None, false)), FaultCode::WrongKind);
    assert_eq!(host.code(&write(".", None, false)), FaultCode::Invalid);
    assert_eq!(host.code(&write("..", None, false)), FaultCode::Invalid);
    assert_eq!(host.code(&write("/", None, true)), FaultCode::Invalid);
    assert_eq!(host.code(&read(&"x".repeat(300))), FaultCode::Invalid);
    assert_eq!(host.code(&read(&"x/".repeat(3000))), FaultCode::Invalid);
    let endless = "x".repeat(500_000);
    let rename = Request::Move { from: endless.clone(), to: endless.clone(), overwrite: true };
    assert_eq!(host.code(&rename), FaultCode::Invalid);
    assert_eq!(host.code(&Request::Remove { path: endless, recursive: true }), FaultCode::Invalid);
    fs::create_dir(host.path("d")).unwrap();
    assert_eq!(host.code(&write("d", None, false)), FaultCode::WrongKind);
    let root = host.entry(&stat("/"));
    assert_eq!((root.name.as_slice(), root.kind), (&b"/"[..], EntryKind::Directory));
}

#[test]
fn directories_are_made() {
    let mut host = Host::start();
    let make = |path: &str, parents| Request::MakeDirectory { path: path.into(), parents };
    assert_eq!(host.call(&make("a", false)), Reply::Done);
    assert_eq!(host.mode("a"), 0o755);
    assert_eq!(host.code(&make("a", false)), FaultCode::Exists);
    assert_eq!(host.call(&make("a", true)), Reply::Done);
    assert_eq!(host.code(&make("x/y/z", false)), FaultCode::NotFound);
    assert_eq!(host.call(&make("x//y/z/", true)), Reply::Done);
    assert!(host.path("x/y/z").is_dir());
    fs::write(host.path("f"), "").unwrap();
    assert_eq!(host.code(&make("f", true)), FaultCode::WrongKind);
    assert_eq!(host.code(&make("f/x", true)), FaultCode::WrongKind);
    symlink("x", host.path("link")).unwrap();
    assert_eq!(host.call(&make("link/new/one", true)), Reply::Done);
    assert!(host.path("x/new/one").is_dir());
}

#[test]
fn files_are_moved() {
    let mut host = Host::start();
    let rename = |from: &str, to: &str, overwrite| Request::Move {
        from: from.into(),
        to: to.into(),
        overwrite,
    };
    fs::write(host.path("a"), "a").unwrap();
    fs::write(host.path("b"), "b").unwrap();
    assert_eq!(host.code(&rename("a", "b", false)), FaultCode::Exists);
    assert_eq!(fs::read(host.path("b")).unwrap(), b"b");
    assert_eq!(host.call(&rename("a", "b", true)), Reply::Done);
    assert_eq!(fs::read(host.path("b")).unwrap(), b"a");
    assert_eq!(host.call(&rename("b", "c", false)), Reply::Done);
    assert_eq!(host.code(&rename("b", "d", true)), FaultCode::NotFound);
    assert_eq!(host.code(&rename("c", "no/where", true)), FaultCode::NotFound);
    fs::create_dir(host.path("d")).unwrap();
    assert_eq!(host.call(&rename("d", "e", false)), Reply::Done);
    assert_eq!(host.code(&rename("e", "e/f", false)), FaultCode::Invalid);
    assert_eq!(host.code(&rename("c", "e", true)), FaultCode::WrongKind);
}

#[test]
fn a_big_file_does_not_delay_other_requests() {
    let mut host = Host::start();
    let big = fs::File::create(host.path("big")).unwrap();
    big.set_len(64 << 20).unwrap();
    let unread = host.ask(&read("big"));
    host.unread.insert((unread, lane::MAIN));
    let reading = host.ask(&read("big"));
    let writing = host.ask(&write("copy", None, false));
    for _ in 0..20 {
        host.send(writing, lane::MAIN, &vec![7; 100_000]);
        assert_eq!(host.call(&Request::Ping), Reply::Done);
        assert!(!host.has_reply(reading) || host.data(reading, lane::MAIN).len() <= 64 << 20);
    }
    host.end(writing, lane::MAIN);
    assert!(matches!(host.reply(writing), Reply::Entry(_)));
    assert!(matches!(host.reply(reading), Reply::Entry(_)));
    assert_eq!(host.reply(reading), Reply::Done);
    assert_eq!(host.data(reading, lane::MAIN).len(), 64 << 20);
    assert!(matches!(host.reply(unread), Reply::Entry(_)));
    assert_eq!(host.data(unread, lane::MAIN).len(), 256 * 1024);
    host.endpoint.reset(unread, lane::MAIN);
    host.flush();
    assert_eq!(host.reply(unread), Reply::Done, "the host does not want the rest");
}

#[test]
fn files_of_other_users_are_denied() {
    if !is_root() {
        super::host::skip("only root can become another user");
        return;
    }
    let mut host = Host::start_with(&["1000", "1000"]);
    fs::create_dir(host.path("theirs")).unwrap();
    fs::write(host.path("theirs/f"), "x").unwrap();
    assert_eq!(host.code(&write("theirs/new", None, false)), FaultCode::Denied);
    assert_eq!(host.code(&write("theirs/f", None, false)), FaultCode::Denied);
    let remove = Request::Remove { path: "theirs".into(), recursive: true };
    assert_eq!(host.code(&remove), FaultCode::Denied);
    assert_eq!(host.read_file(&read("theirs/f")).1, b"x");
}
