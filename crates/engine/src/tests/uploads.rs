//! Files in parts: joined in order, aborted, expired, and left by clients that go away.

use model::{ErrorCode, SandboxId};
use runtime::{FindQuery, SearchQuery, WatchQuery};
use tokio::io::AsyncReadExt as _;

use super::node::{ALICE, Node, config};
use super::session_names::cut;
use crate::archive::Packing;
use crate::{UPLOAD_PARTS_MAX, UploadError, Use, UseKind};

async fn write(node: &Node, used: &Use, id: &str, number: u32, text: &str) -> String {
    let mut writer = node.engine.write_upload_part(used, id, number).await.expect("begun");
    for byte in text.as_bytes() {
        writer.write(&[*byte]).await.unwrap();
    }
    writer.finish().await.unwrap().etag
}

async fn read(used: &Use, path: &str) -> String {
    let mut text = String::new();
    used.read_file(path, 0, None).await.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

async fn parts_left(used: &Use) -> usize {
    let listed = used.list_files("/workspace/.shoal-uploads", None, 100).await;
    listed.map_or(0, |page| page.entries.len())
}

async fn sandbox(node: &Node) -> SandboxId {
    node.checkout(ALICE).await.unwrap().keep().sandbox
}

#[tokio::test(start_paused = true)]
async fn upload_parts_are_joined_in_the_order_of_their_numbers() {
    let node = Node::start(config()).await;
    let used = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    let (engine, path) = (&node.engine, "/workspace/a");
    let id = engine.begin_upload(ALICE, &used, path, Some(0o600)).await.unwrap();
    assert_eq!(engine.uploads(used.sandbox()).len(), 1);
    let two = write(&node, &used, &id, 2, "two").await;
    write(&node, &used, &id, 1, "other").await;
    let one = write(&node, &used, &id, 1, "one").await;
    let done = |parts: &[(u32, &str)]| {
        let parts = parts.iter().map(|(number, etag)| (*number, (*etag).to_owned())).collect();
        engine.complete_upload(&used, &id, parts)
    };
    assert_eq!(done(&[]).await.unwrap_err(), UploadError::NoParts);
    assert_eq!(done(&[(3, &one)]).await.unwrap_err(), UploadError::Missing(3));
    assert_eq!(done(&[(1, &one), (2, &one)]).await.unwrap_err(), UploadError::OtherEtag(2));
    for number in [0, UPLOAD_PARTS_MAX + 1] {
        let refused = engine.write_upload_part(&used, &id, number).await.err().unwrap();
        let expected = ErrorCode::InvalidArgument;
        assert!(matches!(refused, UploadError::Refused(refusal) if refusal.code == expected));
    }
    done(&[(2, &two), (1, &one)]).await.unwrap();
    assert_eq!(read(&used, path).await, "onetwo");
    assert_eq!(done(&[(1, &one)]).await.unwrap_err(), UploadError::Unknown);
    assert_eq!(parts_left(&used).await, 0);
}

#[tokio::test(start_paused = true)]
async fn upload_that_is_aborted_or_of_another_sandbox_takes_no_parts() {
    let node = Node::start(config()).await;
    let used = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    let other = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    let id = node.engine.begin_upload(ALICE, &used, "/workspace/a", None).await.unwrap();
    let refused = node.engine.write_upload_part(&other, &id, 1).await.err();
    assert_eq!(refused, Some(UploadError::Unknown));
    assert_eq!(node.engine.abort_upload(&other, &id).await, Err(UploadError::Unknown));
    let mut writer = node.engine.write_upload_part(&used, &id, 1).await.unwrap();
    writer.write(b"late").await.unwrap();
    node.engine.abort_upload(&used, &id).await.unwrap();
    assert!(writer.finish().await.is_err(), "it came too late");
    assert!(node.engine.uploads(used.sandbox()).is_empty());
    assert_eq!(node.engine.abort_upload(&used, &id).await, Err(UploadError::Unknown));
}

#[tokio::test(start_paused = true)]
async fn upload_of_an_earlier_run_is_removed_and_an_open_one_is_not() {
    let node = Node::start(config()).await;
    let used = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    // Files of the fake runtime are older than any upload may be.
    used.make_directory("/workspace/.shoal-uploads/of-an-earlier-run", true).await.unwrap();
    for open in 1..=3 {
        let id = node.engine.begin_upload(ALICE, &used, "/workspace/a", None).await.unwrap();
        assert_eq!(parts_left(&used).await, open);
        write(&node, &used, &id, 1, "part").await;
    }
    assert_eq!(node.engine.uploads(used.sandbox()).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn upload_parts_are_in_no_list_search_watch_or_archive() {
    let node = Node::start(config()).await;
    let used = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    let id = node.engine.begin_upload(ALICE, &used, "/workspace/a", None).await.unwrap();
    let query = WatchQuery { path: "/workspace".to_owned(), recursive: true };
    let mut watch = used.watch(&query).await.unwrap();
    write(&node, &used, &id, 1, "needle").await;
    for name in [".a", ".shoal-uploads-not", "z"] {
        let mut writer = used.write_file(&format!("/workspace/{name}"), None).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut writer, b"needle").await.unwrap();
        used.finish_file(writer).await.unwrap();
    }
    // Pages of one: the directory of the parts is a page of its own.
    let (mut names, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = used.list_files("/workspace", after.as_deref(), 1).await.unwrap();
        after = page.entries.last().map(|entry| entry.name.clone());
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        if !page.more {
            break;
        }
    }
    assert_eq!(names, [&b".a"[..], b".shoal-uploads-not", b"z"]);
    let find = FindQuery { path: "/workspace".to_owned(), max_results: 9, ..FindQuery::default() };
    let found = used.find(&find).await.unwrap();
    assert_eq!(found.entries.len(), 3, "{found:?}");
    let text = SearchQuery {
        path: "/workspace".to_owned(),
        text: "needle".to_owned(),
        max_results: 9,
        ..SearchQuery::default()
    };
    assert_eq!(used.search(&text).await.unwrap().matches.len(), 3);
    let change = used.next_change(&mut watch).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&change.path), "/workspace/.a");
    let mut packing = Packing::start(used, "/workspace", 3).await.unwrap();
    let mut archive = Vec::new();
    while let Some(piece) = packing.next_piece().await.unwrap() {
        archive.extend(piece);
    }
    let archive = String::from_utf8_lossy(&archive).into_owned();
    assert!(archive.contains("needle") && !archive.contains("part-1"), "{archive}");
}

#[tokio::test(start_paused = true)]
async fn upload_whose_client_leaves_before_it_begins_leaves_nothing() {
    let node = Node::start(config()).await;
    let used = node.engine.use_sandbox(ALICE, sandbox(&node).await, UseKind::Files).await.unwrap();
    let mut cuts = 0;
    for polls in 0..12 {
        let begun = cut(polls, node.engine.begin_upload(ALICE, &used, "/workspace/a", None)).await;
        let open = node.engine.uploads(used.sandbox()).len();
        assert_eq!(open, usize::from(begun.is_some()), "after {polls}");
        match begun {
            Some(id) => node.engine.abort_upload(&used, &id.unwrap()).await.unwrap(),
            None => cuts += 1,
        }
    }
    assert!((1..12).contains(&cuts), "{cuts}");
}
