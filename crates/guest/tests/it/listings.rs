//! Directories, page by page.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use guest_protocol::message::{Entry, EntryKind, FaultCode, Reply, Request};

use crate::host::Host;

impl Host {
    fn page(&mut self, path: &str, after: Option<Vec<u8>>, limit: u32) -> (Vec<Entry>, bool) {
        match self.call(&Request::List { path: path.into(), after, limit }) {
            Reply::Entries { entries, more } => (entries, more),
            other => panic!("{other:?}"),
        }
    }

    /// All pages, one after the other.
    fn all_names(&mut self, path: &str, limit: u32) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        loop {
            let (entries, more) = self.page(path, names.last().cloned(), limit);
            assert!(!entries.is_empty() || !more, "a page makes progress");
            names.extend(entries.into_iter().map(|entry| entry.name));
            if !more {
                return names;
            }
        }
    }
}

#[test]
fn directory_entries_are_described_in_order() {
    let mut host = Host::start();
    fs::write(host.path("b"), "12345").unwrap();
    fs::create_dir(host.path("a")).unwrap();
    symlink("b", host.path("c")).unwrap();
    fs::write(host.workspace.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "").unwrap();
    let (entries, more) = host.page(".", None, 100);
    assert!(!more);
    let found: Vec<_> =
        entries.iter().map(|one| (one.name.as_slice(), one.kind, one.target.as_deref())).collect();
    let expected = [
        (&b"a"[..], EntryKind::Directory, None),
        (b"b", EntryKind::File, None),
        (b"c", EntryKind::Link, Some(&b"b"[..])),
        (b"\xff\xfe", EntryKind::File, None),
    ];
    assert_eq!(found, expected);
    assert_eq!(entries[1].size, 5);
    assert_eq!(host.all_names(".", 1).len(), 4, "also by names that are no text");
    assert_eq!(host.page("a", None, 100), (vec![], false));
    let list = |path: &str| Request::List { path: path.into(), after: None, limit: 1 };
    assert_eq!(host.code(&list("b")), FaultCode::WrongKind);
    assert_eq!(host.code(&list("no")), FaultCode::NotFound);
}

#[test]
fn pages_of_a_directory_fit_together() {
    let mut host = Host::start();
    let mut expected: Vec<Vec<u8>> =
        (0..57).map(|n| format!("{:x}", n * 7919 % 65536).into_bytes()).collect();
    for name in &expected {
        fs::write(host.workspace.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    expected.sort();
    for limit in [0, 1, 2, 56, 57, 58, u32::MAX] {
        assert_eq!(host.all_names(".", limit), expected, "pages of {limit}");
    }
    assert!(host.page(".", None, 56).1);
    assert!(!host.page(".", None, 57).1);
}

#[test]
fn long_names_and_links_still_fit_a_message() {
    let mut host = Host::start();
    let target = "t".repeat(4000);
    let mut expected = Vec::new();
    for n in 0..500 {
        let name = format!("{n:0>250}");
        symlink(&target, host.path(&name)).unwrap();
        expected.push(name.into_bytes());
    }
    assert!(host.page(".", None, u32::MAX).1);
    assert_eq!(host.all_names(".", u32::MAX), expected);
}

#[test]
fn a_directory_of_a_hundred_thousand_entries_is_listed() {
    let mut host = Host::start();
    fs::create_dir(host.path("many")).unwrap();
    for n in 0..100_000 {
        fs::File::create(host.path(&format!("many/{n:05}"))).unwrap();
    }
    let channel = host.ask(&Request::List { path: "many".into(), after: None, limit: 1000 });
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert!(matches!(host.reply(channel), Reply::Entries { more: true, .. }));
    let names = host.all_names("many", 5000);
    assert_eq!(names.len(), 100_000);
    assert!(names.is_sorted());
    let remove = Request::Remove { path: "many".into(), recursive: true };
    let channel = host.ask(&remove);
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert!(!host.has_reply(channel), "it goes on beside other things");
    assert_eq!(host.reply(channel), Reply::Done);
    assert!(!host.path("many").exists());
}
