//! Inspection of a sandbox: finding files, searching text, watching changes, listing sockets.

use tokio::time::timeout;

use super::stage::{MOST_POLLS, PATIENCE, cut, eventually, said};
use super::{CaseResult, Stage, code_of};
use crate::contract::Sandbox;
use crate::error::RuntimeErrorCode as Code;
use crate::exec::ExecSpec;
use crate::inside::{ChangeKind, FileWatch, FindQuery, Found, SearchQuery, WatchQuery};
use guest_protocol::message::EntryKind;

const PORT: u16 = 18_081;

async fn plant(sandbox: &dyn Sandbox) {
    for (path, text) in [
        ("/workspace/t/a.rs", "fn main() {}\n// Find me\n"),
        ("/workspace/t/a-b/c.rs", "find me, find me\nno\n\nFIND ME"),
        ("/workspace/t/a/d.txt", "find me"),
        ("/workspace/t/.hidden/e.rs", "find me"),
        ("/workspace/t/node_modules/f.rs", "find me"),
        ("/workspace/t/binary.rs", "\0find me"),
    ] {
        sandbox.inside().write_all(path, text.as_bytes(), None).await.expect("written");
    }
    sandbox.inside().make_link("/workspace/t/out", "/etc").await.expect("made");
    sandbox.inside().make_link("/workspace/t/round", "..").await.expect("made");
    sandbox.inside().make_link("/workspace/way", "t").await.expect("made");
}

fn paths(found: &Found) -> Vec<&str> {
    found.entries.iter().map(|entry| str::from_utf8(&entry.path).expect("text")).collect()
}

pub(super) async fn files_are_found_in_order(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    plant(&*sandbox).await;
    let all =
        FindQuery { path: "/workspace/t".to_owned(), max_results: 100, ..FindQuery::default() };
    let found = sandbox.inside().find(&all).await.expect("found");
    let expected = [
        ".hidden",
        ".hidden/e.rs",
        "a",
        "a/d.txt",
        "a-b",
        "a-b/c.rs",
        "a.rs",
        "binary.rs",
        "node_modules",
        "node_modules/f.rs",
        "out",
        "round",
    ];
    assert_eq!(paths(&found), expected, "no link is followed");
    assert_eq!((found.truncated, found.unreadable), (false, 0));
    let of = |path: &str| found.entries.iter().find(|one| one.path == path.as_bytes());
    let (file, link) = (of("a/d.txt").expect("there"), of("out").expect("there"));
    assert_eq!((file.kind, file.size, file.mode), (EntryKind::File, 7, 0o644));
    assert_eq!(link.kind, EntryKind::Link);

    let by_link = FindQuery { path: "way".to_owned(), ..all.clone() };
    assert_eq!(paths(&sandbox.inside().find(&by_link).await.expect("found")), expected);
    let some = FindQuery {
        names: vec!["*.r?".to_owned(), "[d-e].txt".to_owned()],
        exclude_directories: vec!["node_modules".to_owned()],
        exclude_hidden: true,
        kinds: vec![EntryKind::File],
        ..all.clone()
    };
    let found = sandbox.inside().find(&some).await.expect("found");
    assert_eq!(paths(&found), ["a/d.txt", "a-b/c.rs", "a.rs", "binary.rs"]);
    let flat = FindQuery { max_depth: Some(1), kinds: vec![EntryKind::Directory], ..all.clone() };
    let found = sandbox.inside().find(&flat).await.expect("found");
    assert_eq!(paths(&found), [".hidden", "a", "a-b", "node_modules"]);
    for (most, truncated) in [(1, true), (11, true), (12, false), (u32::MAX, false)] {
        let few = FindQuery { max_results: most, ..all.clone() };
        let found = sandbox.inside().find(&few).await.expect("found");
        assert_eq!(found.entries.len(), 12.min(most as usize));
        assert_eq!(found.truncated, truncated, "{most}");
    }
    let nowhere = FindQuery { path: "none".to_owned(), ..all.clone() };
    assert_eq!(code_of(sandbox.inside().find(&nowhere).await), Code::NotFound);
    let file = FindQuery { path: "t/a.rs".to_owned(), ..all };
    assert_eq!(code_of(sandbox.inside().find(&file).await), Code::WrongKind);
    Ok(())
}

pub(super) async fn search_finds_texts(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    plant(&*sandbox).await;
    let any = SearchQuery {
        path: "t".to_owned(),
        text: "Find Me".to_owned(),
        exclude_directories: vec!["node_modules".to_owned()],
        exclude_hidden: true,
        max_results: 100,
        ..SearchQuery::default()
    };
    let searched = sandbox.inside().search(&any).await.expect("searched");
    let found: Vec<_> = searched
        .matches
        .iter()
        .map(|one| (str::from_utf8(&one.path).expect("text"), one.line, one.column))
        .collect();
    let expected = [("a/d.txt", 1, 1), ("a-b/c.rs", 1, 1), ("a-b/c.rs", 4, 1), ("a.rs", 2, 4)];
    assert_eq!(found, expected);
    assert_eq!(searched.matches[1].text, b"find me, find me");
    assert_eq!((searched.truncated, searched.files), (false, 3));

    let exact = SearchQuery { case_sensitive: true, text: "find me".to_owned(), ..any.clone() };
    let searched = sandbox.inside().search(&exact).await.expect("searched");
    assert_eq!(searched.matches.len(), 2);
    let named = SearchQuery { names: vec!["*.txt".to_owned()], ..any.clone() };
    assert_eq!(sandbox.inside().search(&named).await.expect("searched").matches.len(), 1);
    let one = SearchQuery { path: "/workspace/t/a.rs".to_owned(), ..any.clone() };
    let searched = sandbox.inside().search(&one).await.expect("searched");
    assert_eq!((searched.matches.len(), searched.matches[0].path.as_slice()), (1, &b""[..]));
    let first = SearchQuery { max_results: 1, ..any.clone() };
    let searched = sandbox.inside().search(&first).await.expect("searched");
    assert_eq!((searched.matches.len(), searched.truncated), (1, true));
    let long = format!("{}needle{}", "x".repeat(200_000), "y".repeat(200_000));
    sandbox.inside().write_all("/workspace/long", long.as_bytes(), None).await.expect("written");
    let deep = SearchQuery { path: "long".to_owned(), text: "needle".to_owned(), ..any.clone() };
    let searched = sandbox.inside().search(&deep).await.expect("searched");
    assert_eq!((searched.matches.len(), searched.matches[0].column), (1, 200_001));
    let text = &searched.matches[0].text;
    assert!(text.len() <= 1024 && text.windows(6).any(|window| window == b"needle"));
    let empty = SearchQuery { text: String::new(), ..any.clone() };
    assert_eq!(code_of(sandbox.inside().search(&empty).await), Code::Invalid);
    let nowhere = SearchQuery { path: "none".to_owned(), ..any };
    assert_eq!(code_of(sandbox.inside().search(&nowhere).await), Code::NotFound);
    Ok(())
}

/// Takes changes until this one.
async fn until(watch: &mut FileWatch, kind: ChangeKind, path: &str) {
    let wait = async {
        loop {
            let change = watch.next().await.expect("a change").expect("it is not over");
            if (change.kind, change.path.as_slice()) == (kind, path.as_bytes()) {
                return;
            }
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{kind:?} {path} is not reported");
}

pub(super) async fn file_changes_are_reported(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().make_directory("/workspace/w/sub", true).await.expect("made");
    let query = WatchQuery { path: "/workspace/w".to_owned(), recursive: true };
    let mut watch = sandbox.inside().watch(&query).await.expect("armed");
    said(&*sandbox, "echo x > /workspace/w/sub/f").await;
    until(&mut watch, ChangeKind::Created, "/workspace/w/sub/f").await;
    until(&mut watch, ChangeKind::Written, "/workspace/w/sub/f").await;
    sandbox.inside().make_directory("/workspace/w/n/e/w", true).await.expect("made");
    until(&mut watch, ChangeKind::Created, "/workspace/w/n").await;
    until(&mut watch, ChangeKind::Created, "/workspace/w/n/e/w").await;
    sandbox.inside().make_directory("/workspace/w/n/e/w/x", true).await.expect("made");
    until(&mut watch, ChangeKind::Created, "/workspace/w/n/e/w/x").await;
    sandbox.inside().move_file("/workspace/w/n", "/workspace/w/m", false).await.expect("moved");
    until(&mut watch, ChangeKind::Renamed, "/workspace/w/n").await;
    until(&mut watch, ChangeKind::Created, "/workspace/w/m").await;
    said(&*sandbox, "echo y > /workspace/w/m/e/g").await;
    until(&mut watch, ChangeKind::Created, "/workspace/w/m/e/g").await;
    sandbox.inside().set_metadata("/workspace/w/sub/f", Some(0o600), None).await.expect("changed");
    until(&mut watch, ChangeKind::About, "/workspace/w/sub/f").await;
    said(&*sandbox, "rm /workspace/w/sub/f").await;
    until(&mut watch, ChangeKind::Removed, "/workspace/w/sub/f").await;

    let flat = WatchQuery { recursive: false, ..query.clone() };
    let mut flat = sandbox.inside().watch(&flat).await.expect("armed");
    said(&*sandbox, "echo z > /workspace/w/sub/deep").await;
    said(&*sandbox, "echo z > /workspace/w/top").await;
    let first = timeout(PATIENCE, flat.next()).await.expect("in time").expect("reported");
    let first = first.expect("it is not over");
    assert_eq!(first.path, b"/workspace/w/top", "{first:?}");
    drop(flat);

    sandbox.inside().remove("/workspace/w", true).await.expect("removed");
    let ended = async { while watch.next().await.expect("reported").is_some() {} };
    assert!(timeout(PATIENCE, ended).await.is_ok(), "a removed directory ends its watch");
    assert_eq!(code_of(sandbox.inside().watch(&query).await), Code::NotFound);
    sandbox.inside().write_all("/workspace/file", b"", None).await.expect("written");
    let file = WatchQuery { path: "/workspace/file".to_owned(), recursive: false };
    assert_eq!(code_of(sandbox.inside().watch(&file).await), Code::WrongKind);

    let root = WatchQuery { path: "/workspace".to_owned(), recursive: true };
    let mut last = sandbox.inside().watch(&root).await.expect("armed");
    sandbox.kill().await.expect("killed");
    let end = timeout(PATIENCE, last.next()).await.expect("in time");
    assert_eq!(code_of(end), Code::SandboxGone);
    Ok(())
}

pub(super) async fn sockets_of_programs_are_listed(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let start = |command| ExecSpec { confirm_start: true, ..ExecSpec::new(command) };
    let server = start(stage.subject.echo_server(PORT));
    let server = sandbox.inside().exec(server).await.expect("started");
    let other = start(stage.subject.echo_server(PORT + 1));
    let other = sandbox.inside().exec(other).await.expect("started");
    let pid = server.pid().expect("known");
    eventually("it listens", || async {
        let sockets = sandbox.inside().sockets(pid).await.expect("listed");
        (!sockets.is_empty()).then_some(()).ok_or(format!("{sockets:?}"))
    })
    .await;
    let sockets = sandbox.inside().sockets(pid).await.expect("listed");
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    let socket = &sockets[0];
    assert_eq!((socket.pid, socket.local_port, socket.remote_port), (pid, PORT, 0));
    assert_eq!(socket.state, "LISTEN");
    assert_eq!(socket.protocol, "tcp");
    assert!(!socket.program.is_empty());
    server.handle().kill().await.expect("killed");
    eventually("the process is unknown again", || async {
        match sandbox.inside().sockets(pid).await {
            Err(error) if error.code == Code::ProcessUnknown => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    drop(other);
    Ok(())
}

pub(super) async fn dropped_inspections_leave_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    plant(&*sandbox).await;
    let find = FindQuery { path: "t".to_owned(), max_results: 9, ..FindQuery::default() };
    let watch = WatchQuery { path: "t".to_owned(), recursive: true };
    for polls in 0..MOST_POLLS {
        let found = cut(polls, sandbox.inside().find(&find)).await;
        let watching = cut(polls, sandbox.inside().watch(&watch)).await;
        if found.is_some() && watching.is_some() {
            break;
        }
    }
    eventually("nothing is left", || async {
        let left = sandbox.inside().processes().await.expect("listed");
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    assert_eq!(sandbox.inside().find(&find).await.expect("found").entries.len(), 9);
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    Ok(())
}
