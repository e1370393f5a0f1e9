//! Links that are made: as they were asked for, never over anything, and never into `/proc`.

use std::fs;
use std::os::unix::fs::symlink;

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
fn whatever_has_the_name_is_left_as_it_is() {
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
fn what_makes_no_sense_is_refused_and_leaves_nothing() {
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
        super::host::skip("only root can become somebody else");
        return;
    }
    let mut host = Host::start_with(&["1000", "1000"]);
    fs::create_dir(host.path("theirs")).unwrap();
    assert_eq!(host.code(&link("theirs/l", "x")), FaultCode::Denied);
    assert_eq!(host.code(&link("theirs/new/l", "x")), FaultCode::Denied);
}
