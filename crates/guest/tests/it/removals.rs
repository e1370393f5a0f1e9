//! Removing trees: deep ones, wide ones, and ones with links to elsewhere.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use guest_protocol::message::{FaultCode, Reply, Request};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::host::Host;

fn remove(path: &str, recursive: bool) -> Request {
    Request::Remove { path: path.into(), recursive }
}

#[test]
fn files_and_empty_directories_are_removed() {
    let mut host = Host::start();
    fs::write(host.path("f"), "").unwrap();
    fs::create_dir(host.path("d")).unwrap();
    fs::create_dir(host.path("full")).unwrap();
    fs::write(host.path("full/f"), "").unwrap();
    assert_eq!(host.call(&remove("f", false)), Reply::Done);
    assert_eq!(host.call(&remove("d", false)), Reply::Done);
    assert_eq!(host.code(&remove("full", false)), FaultCode::Exists);
    assert_eq!(host.code(&remove("no", true)), FaultCode::NotFound);
    assert_eq!(host.call(&remove("full/", true)), Reply::Done);
    assert_eq!(fs::read_dir(&host.workspace).unwrap().count(), 0);
    for path in ["/", ".", "..", "full/.."] {
        assert_eq!(host.code(&remove(path, true)), FaultCode::Invalid, "{path}");
    }
    assert_eq!(host.code(&remove("/proc", true)), FaultCode::Denied, "a mount point");
}

#[test]
fn links_are_removed_and_not_what_they_lead_to() {
    let mut host = Host::start();
    fs::create_dir_all(host.path("kept/deep")).unwrap();
    fs::write(host.path("kept/deep/f"), "").unwrap();
    fs::create_dir_all(host.path("tree/a/b")).unwrap();
    symlink(host.path("kept"), host.path("tree/a/link")).unwrap();
    symlink("../../kept/deep", host.path("tree/a/relative")).unwrap();
    symlink("..", host.path("tree/a/b/up")).unwrap();
    symlink(host.path("kept"), host.path("link")).unwrap();
    assert_eq!(host.call(&remove("tree", true)), Reply::Done);
    assert_eq!(host.call(&remove("link", true)), Reply::Done);
    assert!(host.path("kept/deep/f").exists());
    assert!(!host.path("tree").exists());
}

#[test]
fn a_tree_of_ten_thousand_levels_is_removed() {
    let mut host = Host::start();
    let mut directory = openat(CWD, &host.workspace, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..10_000 {
        mkdirat(&directory, "d", Mode::from(0o755)).unwrap();
        directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).unwrap();
    }
    assert_eq!(host.call(&remove("d", true)), Reply::Done);
    assert_eq!(fs::read_dir(&host.workspace).unwrap().count(), 0);
}

#[test]
fn a_wide_and_deep_tree_is_removed() {
    let mut host = Host::start();
    for a in 0..30 {
        for b in 0..30 {
            let place = host.path(&format!("tree/{a}/{b}/x"));
            fs::create_dir_all(&place).unwrap();
            for c in 0..5 {
                fs::write(place.join(c.to_string()), "").unwrap();
            }
        }
    }
    assert_eq!(host.call(&remove("tree", true)), Reply::Done);
    assert!(!host.path("tree").exists());
}

#[test]
fn a_tree_that_a_program_writes_into_ends_the_removal() {
    let mut host = Host::start();
    fs::create_dir(host.path("busy")).unwrap();
    let writer = host.ask(&crate::host::shell(
        "n=0; while mkdir -p busy/$n 2>/dev/null && : > busy/$n/f; do n=$((n+1)); done; true",
    ));
    // Either of the two may win, but both end.
    let channel = host.ask(&remove("busy", true));
    let reply = host.reply(channel);
    assert!(matches!(reply, Reply::Done | Reply::Failed(_)), "{reply:?}");
    let kill = Request::Signal { process: writer, signal: 9, tree: true };
    assert_eq!(host.call(&kill), Reply::Done);
    host.exited(writer);
}

#[test]
fn removal_of_an_unreadable_directory() {
    let mut host = Host::start();
    fs::create_dir_all(host.path("tree/empty")).unwrap();
    fs::set_permissions(host.path("tree/empty"), fs::Permissions::from_mode(0o0)).unwrap();
    assert_eq!(host.call(&remove("tree", true)), Reply::Done, "an empty one can go");
}
