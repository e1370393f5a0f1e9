//! The files of sessions: they survive whatever happens to their sandbox, or their loss is
//! reported.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::template::{WorkspaceKind, WorkspaceLimit, WorkspaceSettings};
use model::{
    ErrorCode, InstanceId, LifecycleEvent, SeedId, SessionId, SessionStatus, TerminatedReason,
    WorkspaceId,
};
use runtime::RuntimeError;
use runtime::RuntimeErrorCode;
use runtime::fake::{Fault, Operation};
use tokio::io::AsyncWriteExt as _;
use workspaces::{Archives, Seeds, Workspaces};

use super::node::{ALICE, Node, Place, config, in_memory, name, template};
use super::sessions::outcome;
use crate::effects::EffectError;
use crate::{
    EngineConfig, SeedFile, SessionRequest, UseKind, seed_archives, workspace_persistence,
};

impl Place {
    /// A node with a template in memory and one on disk, without pools.
    pub(super) fn config(&self) -> EngineConfig {
        let mut config = config();
        let mut disk = template("disk");
        disk.workspace = WorkspaceSettings {
            kind: Some(WorkspaceKind::Disk),
            limit: Some(WorkspaceLimit::Soft),
            ..WorkspaceSettings::default()
        };
        config.templates = vec![in_memory("memory"), disk];
        for template in &mut config.templates {
            template.limits.workspace_mb = 8;
            template.pool.pool_size = 0;
        }
        config.node.workspace_free_floor_mb = 1;
        self.open(&mut config);
        config
    }

    fn open(&self, config: &mut EngineConfig) {
        config.workspaces = Some(Arc::new(Workspaces::open(self.0.join("workspaces")).unwrap()));
        config.archives = Some(Archives::open(self.0.join("archives")).unwrap());
        config.seeds = Some(Seeds::open(self.0.join("seeds")).unwrap());
    }

    /// How many workspaces, archives and seed archives exist.
    fn there(&self) -> (usize, usize, usize) {
        let count =
            |of: &str, rooms: usize| std::fs::read_dir(self.0.join(of)).unwrap().count() - rooms;
        (count("workspaces", 3), count("archives", 1), count("seeds", 1))
    }
}

impl Node {
    pub(super) async fn session_of(&self, template: &str) -> SessionId {
        let asked = SessionRequest::of(name(template));
        self.engine.create_session(ALICE, asked).await.unwrap().id
    }

    pub(super) async fn said(&self, session: SessionId, line: &str) -> String {
        let used = self.engine.use_session(ALICE, session, UseKind::Exec, None).await.unwrap();
        let limits = runtime::RunLimits::from(&used.limits());
        let ran = used.run(runtime::ExecSpec::shell(line), limits).await.unwrap();
        String::from_utf8(ran.stdout).unwrap()
    }

    async fn put(&self, session: SessionId, path: &str, text: &str) {
        let used = self.engine.use_session(ALICE, session, UseKind::Files, None).await.unwrap();
        let mut writer = used.write_file(&format!("/workspace/{path}"), None).await.unwrap();
        writer.write_all(text.as_bytes()).await.unwrap();
        used.finish_file(writer).await.unwrap();
    }

    async fn lost(&self, session: SessionId) -> Vec<TerminatedReason> {
        let reason = |event: LifecycleEvent| {
            let LifecycleEvent::StateLost { reason, .. } = event else { return None };
            Some(reason)
        };
        self.happened(session).await.into_iter().filter_map(reason).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn workspace_in_memory_survives_stop_crash_and_restart() {
    let place = Place::new();
    let mut node = Node::start(place.config()).await;
    let session = node.session_of("memory").await;
    node.put(session, "d/f", "one\n").await;
    let used = node.engine.use_session(ALICE, session, UseKind::Files, None).await.unwrap();
    used.make_link("/workspace/link", "d/f").await.unwrap();
    drop(used);
    let stopped = node.engine.stop_session(ALICE, session).await.unwrap();
    assert_eq!(stopped.status, SessionStatus::Stopped);
    assert_eq!(place.there(), (0, 1, 0));
    node.engine.resume_session(ALICE, session).await.unwrap();
    assert_eq!(node.said(session, "cat d/f link").await, "one\none\n");

    // Later writes are lost with the sandbox, and that is reported; saved files are not lost.
    node.put(session, "d/f", "two\n").await;
    let paused = node.engine.pause_session(ALICE, session).await.unwrap();
    assert_eq!(paused.status, SessionStatus::Paused);
    node.settle().await;
    let durable = |event: &LifecycleEvent| matches!(event, LifecycleEvent::WorkspaceDurable { .. });
    assert_eq!(node.happened(session).await.iter().filter(|event| durable(event)).count(), 2);
    node = node.kill_and_start().await;
    assert_eq!(node.said(session, "cat d/f").await, "two\n");
    assert_eq!(node.lost(session).await, []);
    node.put(session, "d/f", "three\n").await;
    node = node.kill_and_start().await;
    node.settle().await;
    assert_eq!(node.lost(session).await, [TerminatedReason::Shutdown]);
    assert_eq!(node.said(session, "cat d/f").await, "two\n", "as it was last saved");
    node.engine.end_session(ALICE, session).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workspace_in_memory_is_restored_as_it_was() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let session = node.session_of("memory").await;
    // Three hard links to half of what the workspace may hold, which three files would exceed.
    let large = "x".repeat(4 << 20);
    node.put(session, "a/large", &large).await;
    let used = node.engine.use_session(ALICE, session, UseKind::Files, None).await.unwrap();
    used.link_file("/workspace/a/second", "/workspace/a/large").await.unwrap();
    used.link_file("/workspace/z", "/workspace/a/large").await.unwrap();
    // One entry each with a header of its own.
    let long = "n".repeat(120);
    for n in 0..20 {
        node.put(session, &format!("{long}/{n}"), "").await;
    }
    node.put(session, "closed/inside", "text").await;
    for (path, mode) in [("closed/inside", 0), ("closed", 0), ("a/large", 0o4755), ("a", 0o2550)] {
        used.set_metadata(&format!("/workspace/{path}"), Some(mode), None).await.unwrap();
    }
    drop(used);
    for _ in 0..2 {
        node.engine.stop_session(ALICE, session).await.unwrap();
        node.engine.resume_session(ALICE, session).await.unwrap();
    }
    let used = node.engine.use_session(ALICE, session, UseKind::Files, None).await.unwrap();
    let about = async |path: &str| used.stat(&format!("/workspace/{path}")).await.unwrap();
    for (path, mode) in [("closed/inside", 0), ("closed", 0), ("a/large", 0o755), ("a", 0o2550)] {
        assert_eq!(about(path).await.mode, mode, "{path}");
    }
    let shared = about("a/large").await.shared;
    assert!(shared.is_some());
    assert_eq!((about("a/second").await.shared, about("z").await.shared), (shared, shared));
    used.set_metadata("/workspace/closed/inside", Some(0o600), None).await.unwrap();
    drop(used);
    assert_eq!(node.said(session, "cat closed/inside").await, "text");
    assert_eq!(node.lost(session).await, []);
}

#[tokio::test(start_paused = true)]
async fn workspace_that_cannot_be_saved_keeps_its_sandbox_or_the_loss_is_reported() {
    let place = Place::new();
    let mut node = Node::start(place.config()).await;
    let session = node.session_of("memory").await;
    node.put(session, "kept", "text").await;
    node.put(session, &format!("{}f", "d/".repeat(300)), "").await;
    let refused = node.engine.stop_session(ALICE, session).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PersistFailed);
    assert!(refused.cause.contains("d/d/d"), "{refused}");
    assert_eq!(node.said(session, "cat kept").await, "text");
    assert_eq!(node.lost(session).await, []);

    node.engine.shutdown().await.unwrap();
    node = node.kill_and_start().await;
    assert_eq!(node.lost(session).await, [TerminatedReason::Shutdown]);
    assert_eq!(node.said(session, "cat kept").await, "text");
}

#[tokio::test(start_paused = true)]
async fn workspace_that_was_removed_is_restored_or_the_loss_is_reported() {
    for archived in [true, false] {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let session = node.session_of("disk").await;
        node.put(session, "f", "text").await;
        node.engine.stop_session(ALICE, session).await.unwrap();
        let id = node.engine.session(ALICE, session).unwrap().workspace.unwrap();
        if archived {
            workspace_persistence::archive(&node.engine.core, id).await.unwrap();
        }
        let taken = place.0.join("workspaces").join(id.to_string());
        let taken_archive = place.0.join("archives").join(format!("{id}.tar.zst"));
        if archived {
            std::fs::remove_file(taken_archive).unwrap();
        } else {
            std::fs::remove_dir_all(taken).unwrap();
        }
        node.engine.resume_session(ALICE, session).await.unwrap();
        assert_eq!(node.said(session, "echo there").await, "there\n", "{archived}");
        assert_eq!(node.lost(session).await.len(), 1, "{archived}");
    }
}

#[tokio::test(start_paused = true)]
async fn aborted_turn_leaves_its_files() {
    for template in ["memory", "disk"] {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let session = node.session_of(template).await;
        let mut started = node.send(session, "echo begun > f; sleep 1000").await.unwrap();
        node.settle().await;
        let aborted = node.engine.abort_session(ALICE, session, false).await.unwrap();
        assert!(!aborted.sandbox_kept, "{template}");
        assert_eq!(outcome(&super::sessions::rest(&mut started.follow).await), "aborted");
        assert_eq!(node.said(session, "cat f").await, "begun\n", "{template}");
        assert_eq!(node.lost(session).await, [], "{template}");
    }
}

#[tokio::test(start_paused = true)]
async fn fork_has_a_copy_whatever_its_parent_is_doing() {
    for cold in [false, true] {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let parent = node.session_of("memory").await;
        node.said(parent, "echo theirs > f").await;
        if cold {
            node.engine.stop_session(ALICE, parent).await.unwrap();
        }
        let fork = node.engine.fork_session(ALICE, parent).await.unwrap().id;
        assert_eq!(node.said(fork, "cat f; echo ours > f").await, "theirs\n", "cold: {cold}");
        node.engine.resume_session(ALICE, parent).await.unwrap();
        assert_eq!(node.said(parent, "cat f").await, "theirs\n", "cold: {cold}");
    }
    // Where files are on disk, the copy is too: of a workspace in use, and of one that is not.
    for cold in [false, true] {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let parent = node.session_of("disk").await;
        node.said(parent, "true").await;
        let workspace = node.engine.session(ALICE, parent).unwrap().workspace.unwrap();
        let of = |id: WorkspaceId| place.0.join(format!("workspaces/{id}/host-file"));
        std::fs::write(of(workspace), "kept").unwrap();
        if cold {
            node.engine.stop_session(ALICE, parent).await.unwrap();
        }
        let fork = node.engine.fork_session(ALICE, parent).await.unwrap();
        assert_eq!(std::fs::read(of(fork.workspace.unwrap())).unwrap(), b"kept");
        assert_eq!(place.there(), (2, 0, 0));
        node.settle().await;
        if !cold {
            assert_eq!(node.said(parent, "echo awake").await, "awake\n", "it was thawed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fork_whose_parent_ends_meanwhile_succeeds_or_may_be_retried() {
    const FILES: usize = 2_000;
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let core = &node.engine.core;
    let over = InstanceId::from_u128(7);
    let to = |n| WorkspaceId::from_u128(n);
    let source = |workspace| workspace_persistence::Source {
        workspace,
        instance: Some(over),
        guest_awake: true,
    };
    let code_of = |error: EffectError| error.into_runtime_error().code;
    // In memory the files went with the sandbox; saved ones may be older.
    let parent = node.session_of("memory").await;
    node.said(parent, "echo theirs > f").await;
    let of = |session| node.engine.session(ALICE, session).unwrap().workspace.unwrap();
    let memory = node.engine.template(&name("memory")).unwrap();
    let copied = workspace_persistence::copy(core, source(of(parent)), to(1), &memory).await;
    assert_eq!(code_of(copied.unwrap_err()), RuntimeErrorCode::SandboxGone);
    node.engine.stop_session(ALICE, parent).await.unwrap();
    let copied = workspace_persistence::copy(core, source(of(parent)), to(1), &memory).await;
    assert_eq!(code_of(copied.unwrap_err()), RuntimeErrorCode::SandboxGone);
    assert_eq!(place.there(), (0, 1, 0), "nothing of the copy is left");
    // On disk they can be read without the sandbox.
    let parent = node.session_of("disk").await;
    node.said(parent, "true").await;
    let disk = node.engine.template(&name("disk")).unwrap();
    workspace_persistence::copy(core, source(of(parent)), to(2), &disk).await.unwrap();
    assert_eq!(place.there(), (2, 1, 0));
    // Unless they are removed while they are copied: a part is no copy.
    let known = core.disk.workspaces.clone().unwrap();
    let from = place.0.join(format!("workspaces/{}", of(parent)));
    for n in 0..FILES {
        std::fs::write(from.join(n.to_string()), "x").unwrap();
    }
    let copying = workspace_persistence::copy(core, source(of(parent)), to(3), &disk);
    let removing = tokio::task::spawn_blocking({
        let (known, source) = (Arc::clone(&known), of(parent));
        move || known.remove(source)
    });
    let (copied, removed) = tokio::join!(copying, removing);
    removed.unwrap().unwrap();
    match copied {
        Ok(()) => {
            let copy = place.0.join(format!("workspaces/{}", to(3)));
            assert_eq!(std::fs::read_dir(copy).unwrap().count(), FILES);
        }
        Err(error) => {
            assert_eq!(code_of(error), RuntimeErrorCode::SandboxGone);
            assert!(!known.has(to(3)), "a part is no copy");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_copy_or_save_leaves_the_workspace_as_it_was() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let session = node.session_of("memory").await;
    node.said(session, "echo one > f").await;
    let trouble =
        || Fault::Fail(RuntimeError::new(RuntimeErrorCode::System, "read a file", "no luck"));
    node.runtime.inject(Operation::ReadFile, trouble());
    let refused = node.engine.fork_session(ALICE, session).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PersistFailed);
    assert_eq!(place.there(), (0, 0, 0), "nothing of it is left");
    node.runtime.inject(Operation::ReadFile, trouble());
    let refused = node.engine.stop_session(ALICE, session).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::PersistFailed);
    assert_eq!(node.said(session, "cat f").await, "one\n", "a failed save never kills");
    node.engine.stop_session(ALICE, session).await.unwrap();
    assert_eq!(place.there(), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn state_loss_is_reported_and_the_session_goes_on() {
    for (template, damaged) in [("memory", true), ("memory", false), ("disk", false)] {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let session = node.session_of(template).await;
        node.said(session, "echo one > f").await;
        node.engine.stop_session(ALICE, session).await.unwrap();
        let workspace = node.engine.session(ALICE, session).unwrap().workspace.unwrap();
        let disk = &node.engine.core.disk;
        if damaged {
            let path = place.0.join(format!("archives/{workspace}.tar.zst"));
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        } else {
            disk.workspaces.as_ref().unwrap().remove(workspace).unwrap();
            disk.archives.as_ref().unwrap().remove(workspace).unwrap();
        }
        node.engine.resume_session(ALICE, session).await.unwrap();
        let received = node.whole(session, "echo hi").await;
        assert_eq!(outcome(&received), "completed", "{template}");
        assert_eq!(node.lost(session).await, [TerminatedReason::Crash], "{template}");
        assert_ne!(node.engine.session(ALICE, session).unwrap().workspace, Some(workspace));
    }
}

#[tokio::test(start_paused = true)]
async fn cold_workspace_is_archived_and_restored() {
    let place = Place::new();
    let mut config = place.config();
    config.node.archive_after_ms = Some(60_000);
    config.node.prune_after_ms = Some(600_000);
    let mut node = Node::start(config).await;
    let session = node.session_of("disk").await;
    node.said(session, "true").await;
    let workspace = node.engine.session(ALICE, session).unwrap().workspace.unwrap();
    let file = place.0.join(format!("workspaces/{workspace}/d/file"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "kept").unwrap();
    node.engine.stop_session(ALICE, session).await.unwrap();
    assert_eq!(node.place_of(session), Some("disk"));
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(place.there(), (0, 1, 0));
    assert_eq!(node.place_of(session), Some("archive"));
    node = node.kill_and_start().await;
    assert_eq!(place.there(), (0, 1, 0), "it is named by a record");
    node.engine.resume_session(ALICE, session).await.unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    assert_eq!(place.there(), (1, 0, 0), "an archive that is older than the files is none");
    node.engine.stop_session(ALICE, session).await.unwrap();
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(place.there(), (0, 0, 0));
    assert_eq!(node.lost(session).await, [TerminatedReason::Policy]);
    node.engine.resume_session(ALICE, session).await.unwrap();
    assert_eq!(node.said(session, "echo again").await, "again\n");
}

#[tokio::test(start_paused = true)]
async fn workspaces_and_archives_that_no_record_names_are_removed_at_the_start() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let session = node.session_of("memory").await;
    node.said(session, "echo one > f").await;
    node.engine.stop_session(ALICE, session).await.unwrap();
    let stray = node.engine.core.disk.archives.as_ref().unwrap();
    stray.write(WorkspaceId::from_u128(7), 0).unwrap().finish().unwrap();
    assert_eq!(place.there(), (0, 2, 0));
    let node = node.kill_and_start().await;
    assert_eq!(place.there(), (0, 1, 0));
    assert_eq!(node.said_again(session, "cat f").await, "one\n");
    node.engine.end_session(ALICE, session).await.unwrap();
    let view = node.engine.session(ALICE, session);
    assert!(view.is_err() || view.unwrap().status == SessionStatus::Ended);
}

/// The archives that a killed server made for a backup belong to no session.
#[tokio::test(start_paused = true)]
async fn backup_archives_are_removed_at_the_start_and_other_strays_put_aside() {
    let place = Place::new();
    let lost = workspaces::LostFound::at(place.0.join("lost+found"));
    let config = EngineConfig { lost_found: Some(lost.clone()), ..place.config() };
    let node = Node::start(config).await;
    let archives = node.engine.core.disk.archives.clone().unwrap();
    let spool = "6261636b-7570-0000-0000-000000000007".parse().unwrap();
    let other = WorkspaceId::from_u128(7);
    for id in [spool, other] {
        archives.write(id, 0).unwrap().finish().unwrap();
    }
    let _node = node.kill_and_start().await;
    assert!(archives.get(spool).is_none() && archives.get(other).is_none());
    let kept: Vec<_> = lost.list().unwrap().into_iter().map(|lost| lost.name).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0].starts_with(&other.to_string()), "{kept:?}");
}

/// A store in memory goes with its server: there is nothing to restore.
#[tokio::test(start_paused = true)]
async fn backup_of_a_store_in_memory_is_refused() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let refusal = node.engine.backup().await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable, "{refusal}");
    // And the next request is not refused because of a backup in progress.
    let again = node.engine.backup().await.unwrap_err();
    assert_eq!(again.code, ErrorCode::StoreUnavailable, "{again}");
}

#[tokio::test(start_paused = true)]
async fn session_begins_with_its_seed_archive_only_once() {
    let file = |path: &str, text: &str| SeedFile {
        path: path.to_owned(),
        bytes: text.into(),
        mode: 0o755,
    };
    for (template, pool_size) in [("memory", 0), ("memory", 1), ("disk", 0), ("disk", 1)] {
        let place = Place::new();
        let mut config = place.config();
        for template in &mut config.templates {
            template.pool.pool_size = pool_size;
        }
        let node = Node::start(config).await;
        node.settle().await;
        let files = vec![file("agent/main.py", "print(1)"), file("CLAUDE.md", "be kind")];
        let seed = node.engine.put_seed(ALICE, files.clone()).await.unwrap();
        let mut read = node.engine.seed_files(seed).await.unwrap();
        read.sort_by(|one, other| other.path.cmp(&one.path));
        assert_eq!(read, files);
        let asked = SessionRequest { seed: Some(seed), ..SessionRequest::of(name(template)) };
        let session = node.engine.create_session(ALICE, asked.clone()).await.unwrap().id;
        let received = node.said(session, "cat CLAUDE.md agent/main.py; rm CLAUDE.md").await;
        assert_eq!(received, "be kindprint(1)", "{template} {pool_size}");
        node.engine.stop_session(ALICE, session).await.unwrap();
        node.engine.resume_session(ALICE, session).await.unwrap();
        let received = node.said(session, "cat agent/main.py; cat CLAUDE.md").await;
        assert_eq!(received, "print(1)", "{template} {pool_size}");

        // While a session names it, it stays.
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert!(node.engine.has_seed(seed));
        let unknown = SeedId::from_bytes([1; 32]);
        let asked = SessionRequest { seed: Some(unknown), ..asked };
        assert!(node.engine.create_session(ALICE, asked).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn seed_archives_without_a_name_are_removed() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let put = |text: &str| {
        let file = SeedFile { path: "f".to_owned(), bytes: text.into(), mode: 0o644 };
        node.engine.put_seed(ALICE, vec![file])
    };
    let (named, forgotten) = (put("named").await.unwrap(), put("forgotten").await.unwrap());
    let (written, kept) = (put("written").await.unwrap(), put("kept").await.unwrap());
    node.engine.add_seed_holder(move || BTreeSet::from([named]));
    let change = node.engine.lock_named_documents("k", ALICE).await.unwrap();
    change.put("n", Some(written), "{}".to_owned()).await.unwrap();
    let all = node.engine.core.disk.seeds.clone().unwrap();
    seed_archives::sweep(&node.engine.core, &all).await;
    assert_eq!(place.there().2, 4, "a stored archive stays for a while");
    tokio::time::sleep(Duration::from_mins(9)).await;
    assert!(node.engine.keep_seed(kept));
    tokio::time::sleep(Duration::from_mins(7)).await;
    seed_archives::sweep(&node.engine.core, &all).await;
    let there = [named, written, kept, forgotten].map(|seed| node.engine.has_seed(seed));
    assert_eq!(there, [true, true, true, false]);
    tokio::time::sleep(Duration::from_mins(21)).await;
    assert!(node.engine.has_seed(written), "a document names it");
    assert!(!node.engine.keep_seed(kept));
    node.engine.lock_named_documents("k", ALICE).await.unwrap().remove("n").await.unwrap();
    seed_archives::sweep(&node.engine.core, &all).await;
    assert!(node.engine.has_seed(named) && !node.engine.has_seed(written));
    let bad = SeedFile { path: "../f".to_owned(), bytes: vec![], mode: 0o644 };
    let refused = node.engine.put_seed(ALICE, vec![bad]).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidArgument);
}

impl Node {
    fn place_of(&self, session: SessionId) -> Option<&'static str> {
        let found = self.engine.session_workspace(ALICE, session).unwrap();
        found.map(|found| found.place.as_str())
    }

    async fn said_again(&self, session: SessionId, line: &str) -> String {
        self.engine.resume_session(ALICE, session).await.unwrap();
        self.said(session, line).await
    }
}
