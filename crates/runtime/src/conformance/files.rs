//! Files of a sandbox.

use guest_protocol::message::EntryKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::stage::{eventually, said};
use super::{CaseResult, Stage, code_of};
use crate::error::RuntimeErrorCode as Code;

pub(super) async fn files_are_written_and_read_back(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let bytes: Vec<u8> = (0..=255).collect();
    let entry =
        sandbox.inside().write_all("/workspace/d/e/f.bin", &bytes, None).await.expect("written");
    assert_eq!((entry.kind, entry.size, entry.mode), (EntryKind::File, 256, 0o644));
    assert_eq!(sandbox.inside().read_all("/workspace/d/e/f.bin", 256).await.expect("read"), bytes);
    let part =
        sandbox.inside().read_file("/workspace/d/e/f.bin", 10, Some(5)).await.expect("opened");
    assert_eq!(part.collect(100).await.expect("read"), [10, 11, 12, 13, 14]);
    let beyond =
        sandbox.inside().read_file("/workspace/d/e/f.bin", 1000, None).await.expect("opened");
    assert_eq!(beyond.collect(100).await.expect("read"), b"");
    let too_large = sandbox.inside().read_all("/workspace/d/e/f.bin", 255).await;
    assert_eq!(code_of(too_large), Code::TooLarge);
    let entry =
        sandbox.inside().write_all("/workspace/d/e/f.bin", b"", Some(0o600)).await.expect("again");
    assert_eq!((entry.size, entry.mode), (0, 0o600));
    assert_eq!(sandbox.inside().read_all("/workspace/d/e/f.bin", 0).await.expect("read"), b"");
    let kept = sandbox.inside().write_all("/workspace/d/e/f.bin", b"x", None).await.expect("again");
    assert_eq!(kept.mode, 0o600, "what it replaces decides");
    Ok(())
}

pub(super) async fn files_are_seen_by_programs(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/in", b"from host\n", None).await.expect("written");
    assert_eq!(said(&*sandbox, "cat in; echo x >> in; cat in").await, "from host\nfrom host\nx\n");
    said(&*sandbox, "echo from program > /tmp/out").await;
    assert_eq!(sandbox.inside().read_all("/tmp/out", 100).await.expect("read"), b"from program\n");
    Ok(())
}

pub(super) async fn directories_are_listed_in_pages(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let path = "/workspace/many";
    sandbox.inside().make_directory(path, false).await.expect("made");
    assert_eq!(sandbox.inside().list_files(path, None, 10).await.expect("listed").entries, []);
    for n in 0..5 {
        let file = format!("{path}/f{n}");
        sandbox.inside().write_all(&file, b"x", None).await.expect("written");
    }
    sandbox.inside().make_directory(&format!("{path}/sub/deep"), true).await.expect("made");
    let mut names: Vec<String> = Vec::new();
    loop {
        let page = sandbox
            .inside()
            .list_files(path, names.last().map(String::as_bytes), 2)
            .await
            .expect("listed");
        assert!(page.entries.len() <= 2);
        names.extend(
            page.entries.iter().map(|entry| String::from_utf8(entry.name.clone()).expect("text")),
        );
        if !page.more {
            break;
        }
        assert_eq!(page.entries.len(), 2);
    }
    assert_eq!(names, ["f0", "f1", "f2", "f3", "f4", "sub"]);
    let sub = sandbox.inside().stat(&format!("{path}/sub")).await.expect("there");
    assert_eq!((sub.kind, sub.name.as_slice()), (EntryKind::Directory, &b"sub"[..]));
    Ok(())
}

pub(super) async fn files_are_moved_and_removed(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/a/x", b"1", None).await.expect("written");
    sandbox.inside().write_all("/workspace/b", b"2", None).await.expect("written");
    sandbox.inside().move_file("/workspace/a/x", "/workspace/a/y", false).await.expect("moved");
    let taken = sandbox.inside().move_file("/workspace/a/y", "/workspace/b", false).await;
    assert_eq!(code_of(taken), Code::Exists);
    sandbox.inside().move_file("/workspace/a/y", "/workspace/b", true).await.expect("replaced");
    assert_eq!(sandbox.inside().read_all("/workspace/b", 9).await.expect("read"), b"1");
    sandbox.inside().write_all("/workspace/a/z", b"3", None).await.expect("written");
    assert!(sandbox.inside().remove("/workspace/a", false).await.is_err(), "it is not empty");
    sandbox.inside().remove("/workspace/a", true).await.expect("removed");
    assert_eq!(code_of(sandbox.inside().stat("/workspace/a/z").await), Code::NotFound);
    sandbox.inside().remove("/workspace/b", false).await.expect("removed");
    assert_eq!(code_of(sandbox.inside().remove("/workspace/b", false).await), Code::NotFound);
    Ok(())
}

pub(super) async fn errors_of_files_have_codes(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/file", b"1", None).await.expect("written");
    sandbox.inside().make_directory("/workspace/dir", false).await.expect("made");
    assert_eq!(
        code_of(sandbox.inside().read_file("/workspace/none", 0, None).await),
        Code::NotFound
    );
    assert_eq!(
        code_of(sandbox.inside().read_file("/workspace/dir", 0, None).await),
        Code::WrongKind
    );
    assert_eq!(
        code_of(sandbox.inside().list_files("/workspace/file", None, 1).await),
        Code::WrongKind
    );
    assert_eq!(
        code_of(sandbox.inside().make_directory("/workspace/dir", false).await),
        Code::Exists
    );
    sandbox.inside().make_directory("/workspace/dir", true).await.expect("that it exists is fine");
    let no_parent = sandbox.inside().make_directory("/workspace/no/dir", false).await;
    assert_eq!(code_of(no_parent), Code::NotFound);
    let nothing = sandbox.inside().move_file("/workspace/none", "/workspace/x", false).await;
    assert_eq!(code_of(nothing), Code::NotFound);
    assert_eq!(
        code_of(sandbox.inside().write_all("/workspace/dir", b"x", None).await),
        Code::WrongKind
    );
    assert_eq!(code_of(sandbox.inside().stat("a\0b").await), Code::Invalid);
    assert_eq!(sandbox.inside().stat("file").await.expect("relative to the workspace").size, 1);
    let over = sandbox.inside().write_all("/workspace/file/below", b"x", None).await;
    assert_eq!(code_of(over), Code::WrongKind);
    Ok(())
}

pub(super) async fn abandoned_writes_leave_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    sandbox.inside().write_all("/workspace/file", b"old", None).await.expect("written");
    let mut writer = sandbox.inside().write_file("/workspace/file", None).await.expect("begun");
    writer.write_all(b"new and longer").await.expect("written");
    writer.flush().await.expect("flushed");
    assert_eq!(sandbox.inside().read_all("/workspace/file", 99).await.expect("read"), b"old");
    drop(writer);
    eventually("nothing of it stays", || async {
        let page = sandbox.inside().list_files("/workspace", None, 10).await.expect("listed");
        (page.entries.len() == 1).then_some(()).ok_or(format!("{page:?}"))
    })
    .await;
    assert_eq!(sandbox.inside().read_all("/workspace/file", 99).await.expect("read"), b"old");
    Ok(())
}

pub(super) async fn large_files_are_streams(stage: &Stage) -> CaseResult {
    const PIECES: usize = 64;
    let sandbox = stage.launch().await;
    let piece: Vec<u8> = (0..50_000_u32).map(|n| (n % 253) as u8).collect();
    let mut writer = sandbox.inside().write_file("/workspace/large", None).await.expect("begun");
    for _ in 0..PIECES {
        writer.write_all(&piece).await.expect("written");
    }
    let entry = writer.finish().await.expect("finished");
    assert_eq!(entry.size, (PIECES * piece.len()) as u64);
    let mut reader = sandbox.inside().read_file("/workspace/large", 0, None).await.expect("opened");
    assert_eq!(reader.entry.size, entry.size);
    // A stalled reader does not hold up another call.
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    let mut got = vec![0; piece.len()];
    for n in 0..PIECES {
        reader.read_exact(&mut got).await.expect("read");
        assert!(got == piece, "piece {n} is the same");
    }
    assert_eq!(reader.read(&mut got).await.expect("the end"), 0);
    // One that is dropped in the middle neither.
    let mut reader = sandbox.inside().read_file("/workspace/large", 0, None).await.expect("opened");
    reader.read_exact(&mut got).await.expect("read");
    drop(reader);
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    Ok(())
}
