//! Symbolic links in a sandbox: made, described and removed as links, and followed only by calls
//! that reads or writes through them.

use guest_protocol::message::EntryKind;

use super::stage::said;
use super::{CaseResult, Stage, code_of};
use crate::contract::Sandbox;
use crate::error::RuntimeErrorCode as Code;

/// The longest target.
const MOST_BYTES: usize = 4095;

async fn target_of(sandbox: &dyn Sandbox, path: &str) -> Option<Vec<u8>> {
    let entry = sandbox.inside().stat(path).await.expect("there");
    assert_eq!(entry.kind, EntryKind::Link, "{path}");
    entry.target
}

pub(super) async fn links_are_made_and_described(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let longest = "x".repeat(MOST_BYTES);
    let targets = ["../file", "/etc", "nowhere", "a b\n\u{fc}", &longest];
    for (n, target) in targets.iter().enumerate() {
        let path = format!("/workspace/d/e/l{n}");
        sandbox.inside().make_link(&path, target).await.expect("made, and directories above it");
        assert_eq!(target_of(&*sandbox, &path).await.as_deref(), Some(target.as_bytes()));
    }
    let page = sandbox.inside().list_files("/workspace/d/e", None, 10).await.expect("listed");
    let listed: Vec<_> =
        page.entries.iter().map(|entry| (entry.kind, entry.target.as_deref())).collect();
    let expected = targets.map(|target| (EntryKind::Link, Some(target.as_bytes())));
    assert_eq!(listed, expected, "a link is listed as one, wherever it points");
    sandbox.inside().make_link("short", "file").await.expect("relative to the workspace");
    assert_eq!(target_of(&*sandbox, "/workspace/short").await.as_deref(), Some(&b"file"[..]));
    Ok(())
}

pub(super) async fn links_are_followed_to_their_target(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/d/file", b"1", None).await.expect("written");
    sandbox.inside().make_link("/workspace/to-file", "d/file").await.expect("made");
    sandbox.inside().make_link("/workspace/to-d", "/workspace/d").await.expect("made");
    sandbox.inside().make_link("/workspace/later", "d/later").await.expect("made");
    assert_eq!(sandbox.inside().read_all("/workspace/to-file", 9).await.expect("read"), b"1");
    assert_eq!(said(&*sandbox, "cat to-file").await, "1");
    sandbox.inside().write_all("/workspace/to-d/new", b"2", None).await.expect("written");
    assert_eq!(sandbox.inside().read_all("/workspace/d/new", 9).await.expect("read"), b"2");
    sandbox.inside().write_all("/workspace/later", b"3", None).await.expect("written through");
    assert_eq!(sandbox.inside().read_all("/workspace/d/later", 9).await.expect("read"), b"3");
    sandbox.inside().make_link("/workspace/to-d/sub/l", "x").await.expect("made through a link");
    assert_eq!(target_of(&*sandbox, "/workspace/d/sub/l").await.as_deref(), Some(&b"x"[..]));
    let page = sandbox.inside().list_files("/workspace/to-d", None, 10).await.expect("listed");
    let names: Vec<_> = page.entries.iter().map(|entry| entry.name.as_slice()).collect();
    assert_eq!(names, [&b"file"[..], b"later", b"new", b"sub"]);
    Ok(())
}

pub(super) async fn links_replace_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/file", b"1", None).await.expect("written");
    sandbox.inside().make_directory("/workspace/dir", false).await.expect("made");
    sandbox.inside().make_link("/workspace/link", "dir").await.expect("made");
    sandbox.inside().make_link("/workspace/dangling", "nowhere").await.expect("made");
    for taken in ["file", "dir", "link", "dangling"] {
        let path = format!("/workspace/{taken}");
        let before = sandbox.inside().stat(&path).await.expect("there");
        assert_eq!(
            code_of(sandbox.inside().make_link(&path, "other").await),
            Code::Exists,
            "{taken}"
        );
        assert_eq!(sandbox.inside().stat(&path).await.expect("there"), before);
    }
    let inside = sandbox.inside().list_files("/workspace/dir", None, 9).await.expect("listed");
    assert_eq!(inside.entries, [], "an existing link is not followed to make another");
    assert_eq!(code_of(sandbox.inside().stat("/workspace/nowhere").await), Code::NotFound);
    assert_eq!(sandbox.inside().read_all("/workspace/file", 9).await.expect("read"), b"1");
    Ok(())
}

pub(super) async fn links_are_removed_and_not_what_they_point_to(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/d/file", b"1", None).await.expect("written");
    for (target, recursive) in [("d", false), ("d", true), ("d/file", true), ("nowhere", false)] {
        sandbox.inside().make_link("/workspace/in/link", target).await.expect("made");
        sandbox
            .inside()
            .move_file("/workspace/in/link", "/workspace/link", false)
            .await
            .expect("moved");
        sandbox.inside().remove("/workspace/link", recursive).await.expect("removed");
        assert_eq!(code_of(sandbox.inside().stat("/workspace/link").await), Code::NotFound);
    }
    sandbox.inside().make_link("/workspace/in/link", "../d").await.expect("made");
    sandbox.inside().remove("/workspace/in", true).await.expect("removed, with a link in it");
    assert_eq!(sandbox.inside().read_all("/workspace/d/file", 9).await.expect("read"), b"1");
    Ok(())
}

pub(super) async fn errors_of_links_have_codes(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/file", b"1", None).await.expect("written");
    sandbox.inside().make_link("/workspace/loop", "loop").await.expect("no call follows it yet");
    sandbox.inside().make_link("/workspace/dangling", "nowhere").await.expect("made");
    let too_long = "x".repeat(MOST_BYTES + 1);
    for target in ["", "a\0b", &too_long] {
        let refused = sandbox.inside().make_link("/workspace/new/link", target).await;
        assert_eq!(code_of(refused), Code::Invalid, "{} bytes", target.len());
    }
    assert_eq!(
        code_of(sandbox.inside().stat("/workspace/new").await),
        Code::NotFound,
        "nothing is left"
    );
    for (path, code) in [
        ("/workspace/a\0b", Code::Invalid),
        ("/workspace/file/link", Code::WrongKind),
        ("/workspace/loop/link", Code::Denied),
        ("/workspace/dangling/link", Code::NotFound),
    ] {
        assert_eq!(code_of(sandbox.inside().make_link(path, "x").await), code, "{path:?}");
    }
    assert_eq!(code_of(sandbox.inside().read_file("/workspace/loop", 0, None).await), Code::Denied);
    assert_eq!(
        code_of(sandbox.inside().read_file("/workspace/dangling", 0, None).await),
        Code::NotFound
    );
    Ok(())
}

pub(super) async fn files_have_several_names(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/file", b"1", None).await.expect("written");
    let alone = sandbox.inside().stat("/workspace/file").await.expect("there");
    assert_eq!(alone.shared, None);
    sandbox.inside().link_file("/workspace/d/other", "/workspace/file").await.expect("named");
    let shared = sandbox.inside().stat("/workspace/file").await.expect("there").shared;
    assert!(shared.is_some());
    let listed = sandbox.inside().list_files("/workspace/d", None, 9).await.expect("listed");
    assert_eq!(listed.entries[0].shared, shared);
    assert_eq!(sandbox.inside().read_all("/workspace/d/other", 9).await.expect("read"), b"1");
    let again = sandbox.inside().link_file("/workspace/d/other", "/workspace/file").await;
    assert_eq!(code_of(again), Code::Exists);
    let nothing = sandbox.inside().link_file("/workspace/new", "/workspace/nothing").await;
    assert_eq!(code_of(nothing), Code::NotFound);
    sandbox.inside().remove("/workspace/file", false).await.expect("removed");
    assert_eq!(sandbox.inside().read_all("/workspace/d/other", 9).await.expect("read"), b"1");
    Ok(())
}

pub(super) async fn permissions_are_changed(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/d/file", b"1", None).await.expect("written");
    for (path, mode) in [("d/file", 0), ("d", 0o2700)] {
        let path = format!("/workspace/{path}");
        sandbox.inside().set_metadata(&path, Some(mode), Some(1_000)).await.expect("changed");
        assert_eq!(sandbox.inside().stat(&path).await.expect("there").mode, mode, "{path}");
    }
    let closed = sandbox.inside().read_file("/workspace/d/file", 0, None).await;
    assert_eq!(code_of(closed), Code::Denied);
    sandbox.inside().set_metadata("/workspace/d/file", Some(0o600), None).await.expect("changed");
    assert_eq!(sandbox.inside().read_all("/workspace/d/file", 9).await.expect("read"), b"1");
    let nothing = sandbox.inside().set_metadata("/workspace/nothing", Some(0o600), None).await;
    assert_eq!(code_of(nothing), Code::NotFound);
    Ok(())
}
