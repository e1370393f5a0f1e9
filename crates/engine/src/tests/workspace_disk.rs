//! Workspaces on disk: created for a launch, removed with the sandbox, measured in between, and
//! never left behind.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::template::{WorkspaceKind, WorkspaceLimit, WorkspaceSettings};
use model::why::Why;
use model::{EndCause, ErrorCode, Template, TerminatedReason, WorkspaceId};
use runtime::fake::{Fault, Operation};
use workspaces::{LostFound, Size, Workspaces};

use super::node::{ALICE, Node, config, in_memory, name, template};
use crate::disk_usage::{Urgency, round};
use crate::{CheckoutRequest, EngineConfig};

static PLACES: AtomicU64 = AtomicU64::new(0);

/// A directory of workspaces that is removed with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let n = PLACES.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("engine-disk-{}-{n}", std::process::id())))
    }

    fn open(&self) -> Arc<Workspaces> {
        Arc::new(Workspaces::open(&self.0).unwrap())
    }

    /// A node with one template on disk, without a pool.
    fn config(&self) -> EngineConfig {
        let mut config = config();
        config.templates = vec![on_disk("default", WorkspaceLimit::Soft)];
        config.workspaces = Some(self.open());
        config
    }

    /// The directories of existing workspaces.
    fn there(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let is_room =
            |path: &PathBuf| ["new", "spares", "trash"].iter().any(|room| path.ends_with(room));
        all.filter(|path| !is_room(path)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn on_disk(called: &str, limit: WorkspaceLimit) -> Template {
    let mut template = template(called);
    template.workspace = WorkspaceSettings {
        kind: Some(WorkspaceKind::Disk),
        limit: Some(limit),
        ..WorkspaceSettings::default()
    };
    template.limits.workspace_mb = 4;
    template.pool.pool_size = 0;
    template
}

#[tokio::test(start_paused = true)]
async fn a_workspace_comes_and_goes_with_its_sandbox() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    assert_eq!(place.there().len(), 1);
    node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    node.settle().await;
    assert_eq!(place.there().len(), 0);
    let memory = node.engine.put_template(in_memory("memory")).await;
    memory.unwrap();
    let asked = CheckoutRequest::of(name("memory"));
    let _lease = node.engine.checkout(ALICE, asked).await.unwrap();
    assert_eq!(place.there().len(), 0, "a workspace in memory has no directory");
}

#[tokio::test(start_paused = true)]
async fn workspace_is_not_left_by_a_launch_that_fails_or_is_given_up() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    for fault in [Fault::Hang, Fault::Die { out_of_memory: false }] {
        node.runtime.inject(Operation::Launch, fault);
        assert!(node.checkout(ALICE).await.is_err());
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(place.there().len(), 0);
    }
    drop(node.checkout(ALICE).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn workspace_that_no_record_names_is_removed_at_the_start() {
    let place = Place::new();
    let stray = WorkspaceId::from_u128(5);
    place.open().create(stray, Size::SMALLEST, WorkspaceLimit::Soft, 0).unwrap();
    let node = Node::start(place.config()).await;
    assert_eq!(place.there().len(), 0);
    let _kept = node.checkout(ALICE).await.unwrap().keep();
    assert_eq!(place.there().len(), 1);
    // Killed: the next run kills and removes what the journal names.
    let node = node.kill_and_start().await;
    node.settle().await;
    assert_eq!(place.there().len(), 0);
    assert_eq!(node.engine.stats().total, 0);
}

/// An older copy of the database knows nothing of later files: they are put aside, and none is
/// lost.
#[tokio::test(start_paused = true)]
async fn files_that_no_record_names_are_put_aside_and_stay_there() {
    let place = Place::new();
    let (stray, empty) = (WorkspaceId::from_u128(5), WorkspaceId::from_u128(6));
    for id in [stray, empty] {
        place.open().create(id, Size::SMALLEST, WorkspaceLimit::Soft, 0).unwrap();
    }
    std::fs::write(place.0.join(stray.to_string()).join("file"), "mine").unwrap();
    let lost = LostFound::at(place.0.join("lost+found"));
    let config = EngineConfig { lost_found: Some(lost.clone()), ..place.config() };
    let node = Node::start(config).await;
    let kept: Vec<_> = lost.list().unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(kept, [format!("{stray}@1700000000")], "the empty one is none");
    let file = lost.path().join(&kept[0]).join("file");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    // The journal names what a killed server leaves of sandboxes, so it is removed: used or not.
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let workspace = place.there().into_iter().find(|path| !path.ends_with("lost+found")).unwrap();
    std::fs::write(workspace.join("scratch"), "of a lease").unwrap();
    let node = node.kill_and_start().await;
    node.settle().await;
    assert!(node.engine.lease(ALICE, lease.lease).is_err());
    assert_eq!(place.there().len(), 1, "lost+found alone");
    assert_eq!(lost.list().unwrap().len(), 1, "and nothing was added to it");
    assert!(file.exists());
}

#[tokio::test(start_paused = true)]
async fn lost_found_files_are_removed_after_the_configured_time() {
    let place = Place::new();
    let stray = WorkspaceId::from_u128(5);
    place.open().create(stray, Size::SMALLEST, WorkspaceLimit::Soft, 0).unwrap();
    std::fs::write(place.0.join(stray.to_string()).join("file"), "mine").unwrap();
    let lost = LostFound::at(place.0.join("lost+found"));
    let keep = Duration::from_hours(24);
    let config = EngineConfig {
        lost_found: Some(lost.clone()),
        lost_found_keep: Some(keep),
        ..place.config()
    };
    let node = Node::start(config).await;
    tokio::time::sleep(Duration::from_hours(23)).await;
    assert_eq!(lost.list().unwrap().len(), 1);
    tokio::time::sleep(Duration::from_hours(2)).await;
    node.settle().await;
    assert_eq!(lost.list().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn workspace_above_its_soft_limit_ends_its_sandbox_at_the_next_measurement() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let good = node.checkout(ALICE).await.unwrap().keep();
    let [first, second] = place.there().try_into().unwrap();
    std::fs::write(first.join("big"), vec![1; 5 << 20]).unwrap();
    std::fs::write(second.join("small"), vec![1; 3 << 20]).unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let mut ended = Vec::new();
    for sandbox in [lease.sandbox, good.sandbox] {
        match node.engine.why(ALICE, sandbox).await {
            Ok(Why::Ended(one)) => ended.push(one),
            Ok(Why::Alive(_)) | Err(_) => {}
        }
    }
    let [ended] = ended.as_slice() else { panic!("one ends: {ended:?}") };
    assert_eq!(ended.cause, EndCause::DiskLimit);
    assert_eq!(ended.cause.reason(), TerminatedReason::DiskLimit);
    assert!(ended.detail.as_deref().is_some_and(|why| why.contains("4 MB")), "{ended:?}");
    assert_eq!(place.there(), [second], "its files went with it");
}

#[tokio::test(start_paused = true)]
async fn short_disk_measures_all_workspaces_before_a_sandbox_ends() {
    let place = Place::new();
    let mut config = place.config();
    config.node.workspace_scan_interval_ms = 1_000_000_000;
    let node = Node::start(config).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    node.settle().await;
    let [only] = place.there().try_into().unwrap();
    std::fs::write(only.join("some"), vec![1; 3 << 20]).unwrap();
    let core = &node.engine.core;
    let workspaces = core.disk.workspaces.clone().unwrap();
    let measured = async || match node.engine.why(ALICE, lease.sandbox).await.unwrap() {
        Why::Alive(alive) => alive.workspace_bytes,
        Why::Ended(ended) => panic!("{ended:?}"),
    };
    assert!(measured().await < Some(3 << 20), "it is not time yet");
    round(core, &workspaces, Urgency::Short).await;
    assert!(measured().await >= Some(3 << 20));
}

#[tokio::test(start_paused = true)]
async fn disk_below_its_floor_refuses_sandboxes_and_says_so() {
    let place = Place::new();
    let mut config = place.config();
    // More than any disk has.
    config.node.workspace_free_floor_mb = 1 << 40;
    let node = Node::start(config).await;
    node.settle().await;
    let refusal = node.checkout(ALICE).await.err().unwrap();
    assert_eq!((refusal.code, refusal.code.status()), (ErrorCode::DiskFull, 503));
    assert!(refusal.retry_after_ms.is_some());
    let degraded = node.engine.health().degraded;
    assert!(degraded.iter().any(|one| one.what == "disk"), "{degraded:?}");
    node.engine.put_template(in_memory("memory")).await.unwrap();
    let asked = CheckoutRequest::of(name("memory"));
    drop(node.engine.checkout(ALICE, asked).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn template_that_this_node_cannot_serve_is_refused_by_field() {
    let node = Node::start(config()).await;
    let refused = node.engine.put_template(on_disk("disk", WorkspaceLimit::Soft)).await;
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Unsupported);
    assert!(refusal.cause.starts_with("workspace.kind: "), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn template_that_leaves_its_workspace_open_gets_one_on_disk() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    for (called, pool_size) in [("plain", 0), ("changed", 1)] {
        let mut open = template(called);
        open.pool.pool_size = pool_size;
        node.engine.put_template(open).await.unwrap();
        let known = node.engine.template(&name(called)).unwrap();
        assert_eq!(known.workspace.kind, None, "what is left open stays open");
        let placed = node.engine.placed(&known).unwrap();
        assert_eq!(placed.kind, WorkspaceKind::Disk);
        assert!(placed.why.unwrap().contains("workspace.kind is not given"));
    }
    node.settle().await;
    assert_eq!(place.there().len(), 1, "that of the warm sandbox");
    let asked = CheckoutRequest::of(name("plain"));
    let lease = node.engine.checkout(ALICE, asked).await.unwrap().keep();
    assert_eq!(place.there().len(), 2);
    let Why::Alive(why) = node.engine.why(ALICE, lease.sandbox).await.unwrap() else { panic!() };
    assert!(why.workspace_limit.is_some(), "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn template_that_leaves_its_workspace_open_is_placed_again_at_each_start() {
    let place = Place::new();
    let mut config = place.config();
    let mut open = template("default");
    open.pool.pool_size = 0;
    config.templates = vec![open.clone()];
    // The first run has no directory for workspaces.
    let workspaces = config.workspaces.take();
    let node = Node::start(config.clone()).await;
    let traits = |node: &Node| node.engine.core.read(|kernel| kernel.traits_of(&name("default")));
    let placed = node.engine.placed(&open).unwrap();
    assert_eq!((placed.kind, traits(&node).unwrap().disk), (WorkspaceKind::Memory, None));
    config.workspaces = workspaces;
    let node = node.kill_and_start_with(config).await;
    assert!(traits(&node).unwrap().disk.is_some(), "the second run has a directory");
    let _lease = node.checkout(ALICE).await.unwrap().keep();
    assert_eq!(place.there().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_disk_trial_decides_only_for_templates_that_leave_it_open() {
    let place = Place::new();
    let config = place.config();
    let node = Node::start_without_disk(config, "it was tried in vain").await;
    node.engine.put_template(template("open")).await.unwrap();
    let open = node.engine.template(&name("open")).unwrap();
    let placed = node.engine.placed(&open).unwrap();
    assert_eq!(placed.kind, WorkspaceKind::Memory);
    assert!(placed.why.unwrap().ends_with("it was tried in vain"));
    let said = node.engine.template(&name("default")).unwrap();
    assert_eq!(node.engine.placed(&said).unwrap().kind, WorkspaceKind::Disk);
}
