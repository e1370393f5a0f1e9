//! Links: made as requested, never over anything, and never into `/proc`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use guest_protocol::message::{FaultCode, MAX_LINK_TARGET_BYTES, Reply, Request};

use crate::host::{Host, is_root};

fn link(path: &str, target: &str) -> Request {
    Request::MakeLink { path: path.into(), target: target.into() }
}

impl Host {
    fn target(&self, name: &str) -> String {
        let target = fs::read_link(self.path(name)).unwrap();
        target.into_os_string().into_string().unwrap()
    }
}

#[test]
fn a_link_is_made_as_it_was_asked_for() {
    let mut host = Host::start();
    let longest = "x".repeat(MAX_LINK_TARGET_BYTES);
    for (path, target) in [
        ("plain", "nowhere"),
        ("a/b//c/", "../../d"),
        ("outside", "/proc/self/environ"),
        ("self", "self"),
        ("longest", &longest),
    ] {
        assert_eq!(host.call(&link(path, target)), Reply::Done, "{path}");
        assert_eq!(host.target(path.trim_end_matches('/')), target);
    }
    fs::create_dir(host.path("dir")).unwrap();
    symlink("dir", host.path("to-dir")).unwrap();
    assert_eq!(host.call(&link("to-dir/new/l", "x")), Reply::Done);
    assert_eq!(host.target("dir/new/l"), "x", "directories are made where a path leads");
}

#[test]
fn a_link_replaces_no_existing_file() {
    let mut host = Host::start();
    fs::write(host.path("file"), "old").unwrap();
    fs::create_dir(host.path("dir")).unwrap();
    symlink("dir", host.path("to-dir")).unwrap();
    symlink("nowhere", host.path("dangling")).unwrap();
    for path in ["file", "dir", "dir/", "to-dir", "to-dir/", "dangling"] {
        assert_eq!(host.code(&link(path, "x")), FaultCode::Exists, "{path}");
    }
    assert_eq!(fs::read(host.path("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(host.path("dir")).unwrap().count(), 0);
    assert_eq!(
        (host.target("to-dir").as_str(), host.target("dangling").as_str()),
        ("dir", "nowhere")
    );
}

#[test]
fn an_invalid_link_is_refused_and_leaves_nothing() {
    let mut host = Host::start();
    fs::write(host.path("file"), "").unwrap();
    symlink("loop", host.path("loop")).unwrap();
    let too_long = "x".repeat(MAX_LINK_TARGET_BYTES + 1);
    for target in ["", "a\0b", &too_long] {
        assert_eq!(host.code(&link("new/l", target)), FaultCode::Invalid);
    }
    assert!(!host.path("new").exists());
    for (path, code) in [
        ("a\0b", FaultCode::Invalid),
        (".", FaultCode::Invalid),
        ("..", FaultCode::Invalid),
        ("/", FaultCode::Invalid),
        ("file/l", FaultCode::WrongKind),
        ("loop/l", FaultCode::Denied),
        ("/proc/l", FaultCode::Denied),
        ("/proc/self/l", FaultCode::Denied),
    ] {
        assert_eq!(host.code(&link(path, "x")), code, "{path:?}");
    }
}

#[test]
fn a_link_is_made_only_where_the_user_may() {
    if !is_root() {
        super::host::skip("only root can become another user");
        return;
    }
    let mut host = Host::start_with(&["1000", "1000"]);
    fs::create_dir(host.path("theirs")).unwrap();
    assert_eq!(host.code(&link("theirs/l", "x")), FaultCode::Denied);
    assert_eq!(host.code(&link("theirs/new/l", "x")), FaultCode::Denied);
}

#[test]
fn a_file_can_have_another_name() {
    let mut host = Host::start();
    fs::write(host.path("file"), "text").unwrap();
    let named =
        |path: &str, target: &str| Request::LinkFile { path: path.into(), target: target.into() };
    assert_eq!(host.call(&named("d/other", "file")), Reply::Done);
    fs::write(host.path("file"), "changed").unwrap();
    assert_eq!(fs::read(host.path("d/other")).unwrap(), b"changed");
    let shared = |host: &mut Host, path: &str| match host.call(&Request::Stat { path: path.into() })
    {
        Reply::Entry(entry) => entry.shared,
        other => panic!("{other:?}"),
    };
    assert!(shared(&mut host, "file").is_some());
    assert_eq!(shared(&mut host, "file"), shared(&mut host, "d/other"));
    assert_eq!(shared(&mut host, "d"), None);
    for (path, target, code) in [
        ("d/other", "file", FaultCode::Exists),
        ("new", "nothing", FaultCode::NotFound),
        ("new", "d", FaultCode::Denied),
        ("new", "/proc/self/environ", FaultCode::Denied),
        ("/proc/new", "file", FaultCode::Denied),
    ] {
        assert_eq!(host.code(&named(path, target)), code, "{path} {target}");
    }
}

#[test]
fn metadata_is_changed_and_never_through_a_link() {
    let mut host = Host::start();
    fs::create_dir(host.path("dir")).unwrap();
    fs::write(host.path("file"), "").unwrap();
    symlink("file", host.path("link")).unwrap();
    let about =
        |path: &str, mode, modified_ms| Request::SetAbout { path: path.into(), mode, modified_ms };
    for (path, mode) in [("dir", 0o2750), ("file", 0), ("file", 0o644)] {
        assert_eq!(host.call(&about(path, Some(mode), Some(1_500))), Reply::Done);
        let found = fs::symlink_metadata(host.path(path)).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (mode, 1), "{path}");
        assert_eq!(found.mtime_nsec(), 500_000_000, "{path}");
    }
    assert_eq!(host.call(&about("link", None, Some(-1))), Reply::Done);
    assert_eq!(fs::symlink_metadata(host.path("link")).unwrap().mtime(), -1);
    assert_eq!(fs::symlink_metadata(host.path("file")).unwrap().mtime(), 1);
    for (path, mode, code) in [
        ("file", 0o4755, FaultCode::Invalid),
        ("file", 0o2755, FaultCode::Invalid),
        ("link", 0o700, FaultCode::Invalid),
        ("nothing", 0o700, FaultCode::NotFound),
        ("/proc/self", 0o700, FaultCode::Denied),
    ] {
        assert_eq!(host.code(&about(path, Some(mode), None)), code, "{path}");
    }
}
