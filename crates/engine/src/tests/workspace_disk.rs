//! Workspaces on disk: made for a launch, gone with the sandbox, measured in between, and none is
//! left by whatever happens.

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

/// A directory of workspaces that goes with the test.
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

    /// The directories of workspaces that there are.
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
    assert_eq!(place.there().len(), 0, "what is in memory has no place on disk");
}

#[tokio::test(start_paused = true)]
async fn launches_that_fail_or_are_given_up_leave_no_workspace() {
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
async fn what_nobody_wrote_down_is_removed_at_the_start() {
    let place = Place::new();
    let stray = WorkspaceId::from_u128(5);
    place.open().create(stray, Size::SMALLEST, WorkspaceLimit::Soft, 0).unwrap();
    let node = Node::start(place.config()).await;
    assert_eq!(place.there().len(), 0);
    let _kept = node.checkout(ALICE).await.unwrap().keep();
    assert_eq!(place.there().len(), 1);
    // Killed: what it wrote down is killed and removed by the next one.
    let node = node.kill_and_start().await;
    node.settle().await;
    assert_eq!(place.there().len(), 0);
    assert_eq!(node.engine.stats().total, 0);
}

/// An older copy of the database knows nothing of what came after it: that is put aside, and nothing
/// of it is lost.
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

    // What a killed server leaves of sandboxes was written down, and goes: used or not.
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
async fn what_was_put_aside_goes_after_the_time_that_is_configured() {
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
async fn who_writes_too_much_ends_by_the_next_measurement() {
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
async fn before_somebody_ends_for_a_short_disk_all_are_measured_anew() {
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
async fn a_disk_below_its_floor_takes_no_more_and_says_so() {
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
async fn what_this_node_cannot_do_is_refused_by_field() {
    let node = Node::start(config()).await;
    let refused = node.engine.put_template(on_disk("disk", WorkspaceLimit::Soft)).await;
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Unsupported);
    assert!(refusal.cause.starts_with("workspace.kind: "), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn what_a_template_leaves_open_is_on_disk_whatever_else_it_says() {
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
    assert_eq!(place.there().len(), 1, "that of the warm one");
    let asked = CheckoutRequest::of(name("plain"));
    let lease = node.engine.checkout(ALICE, asked).await.unwrap().keep();
    assert_eq!(place.there().len(), 2);
    let Why::Alive(why) = node.engine.why(ALICE, lease.sandbox).await.unwrap() else { panic!() };
    assert!(why.workspace_limit.is_some(), "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn where_a_template_left_it_open_each_start_looks_again() {
    let place = Place::new();
    let mut config = place.config();
    let mut open = template("default");
    open.pool.pool_size = 0;
    config.templates = vec![open.clone()];
    // The first run has no place for workspaces on disk.
    let workspaces = config.workspaces.take();
    let node = Node::start(config.clone()).await;
    let traits = |node: &Node| node.engine.core.read(|kernel| kernel.traits_of(&name("default")));
    let placed = node.engine.placed(&open).unwrap();
    assert_eq!((placed.kind, traits(&node).unwrap().disk), (WorkspaceKind::Memory, None));
    config.workspaces = workspaces;
    let node = node.kill_and_start_with(config).await;
    assert!(traits(&node).unwrap().disk.is_some(), "now there is one");
    let _lease = node.checkout(ALICE).await.unwrap().keep();
    assert_eq!(place.there().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_failed_decides_for_those_who_leave_it_open_alone() {
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
