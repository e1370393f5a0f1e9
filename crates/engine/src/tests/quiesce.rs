//! Quiescing, as it arrives in a runtime: while its files are copied, a sandbox is frozen for a
//! moment, or runs because its guest is needed, and is as before afterwards.

use std::time::Duration;

use model::{InstanceId, SandboxId, SessionId};
use runtime::fake::{Fault, Operation};
use runtime::{Runtime as _, RuntimeError, RuntimeErrorCode};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::node::{ALICE, Node, Place};
use super::sessions::{outcome, rest};
use crate::workspace_locks::{LockGuard, Priority};

/// Long enough for everything but timers.
const MOMENT: Duration = Duration::from_millis(100);

/// A session with work in it, whose files are on disk.
struct Scene {
    node: Node,
    parent: SessionId,
    _place: Place,
}

impl Scene {
    async fn new() -> Self {
        let place = Place::new();
        let node = Node::start(place.config()).await;
        let parent = node.session_of("disk").await;
        node.said(parent, "true").await;
        Self { node, parent, _place: place }
    }

    /// While this is held, no copy of the session's files makes progress.
    async fn slow_copy(&self) -> LockGuard {
        let workspace = self.node.engine.session(ALICE, self.parent).unwrap().workspace.unwrap();
        self.node.engine.core.disk.locks.lock(workspace, Priority::Patient).await
    }

    fn fork(&self) -> JoinHandle<Result<SessionId, model::Refusal>> {
        let (engine, parent) = (self.node.engine.clone(), self.parent);
        tokio::spawn(async move { Ok(engine.fork_session(ALICE, parent).await?.id) })
    }

    fn says(&self, line: &'static str) -> JoinHandle<String> {
        let (engine, session) = (self.node.engine.clone(), self.parent);
        tokio::spawn(async move {
            let used =
                engine.use_session(ALICE, session, crate::UseKind::Exec, None).await.unwrap();
            let limits = runtime::RunLimits::from(&used.limits());
            let ran = used.run(runtime::ExecSpec::shell(line), limits).await.unwrap();
            String::from_utf8(ran.stdout).unwrap()
        })
    }

    fn instance(&self) -> InstanceId {
        self.node.instance_of(self.parent).1
    }

    async fn runs(&self) -> bool {
        self.node.runs(self.instance()).await
    }
}

impl Node {
    fn instance_of(&self, session: SessionId) -> (SandboxId, InstanceId) {
        let sandbox = self.engine.session(ALICE, session).unwrap().sandbox_id.unwrap();
        (sandbox, self.engine.sandbox(ALICE, sandbox).unwrap().instance.unwrap())
    }

    /// Whether the processes of an instance run, whatever the kernel believes.
    async fn runs(&self, instance: InstanceId) -> bool {
        let sandbox = self.runtime.sandbox(instance).unwrap();
        timeout(Duration::from_millis(1), sandbox.inside().ping()).await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn quiesce_stops_a_busy_sandbox_for_a_fork_and_it_goes_on() {
    let scene = Scene::new().await;
    let node = &scene.node;
    let mut started = node.send(scene.parent, "sleep 2; echo over").await.unwrap();
    let slow = scene.slow_copy().await;
    let fork = scene.fork();
    sleep(MOMENT).await;
    assert!(!scene.runs().await, "nothing changes what is being copied");
    let said = scene.says("echo hello");
    let frozen = node.engine.sandbox(ALICE, node.instance_of(scene.parent).0).unwrap().frozen;
    sleep(MOMENT).await;
    assert!(!said.is_finished() && !frozen, "it waits, and is not shown as frozen");
    drop(slow);
    let fork = fork.await.unwrap().unwrap();
    assert_eq!(said.await.unwrap(), "hello\n");
    assert_eq!(outcome(&rest(&mut started.follow).await), "completed");
    assert!(scene.runs().await);
    assert_eq!(node.said(fork, "echo there").await, "there\n");
}

#[tokio::test(start_paused = true)]
async fn quiesce_ends_after_a_second_and_the_copy_goes_on() {
    let scene = Scene::new().await;
    let slow = scene.slow_copy().await;
    let fork = scene.fork();
    sleep(Duration::from_millis(900)).await;
    assert!(!scene.runs().await);
    sleep(Duration::from_millis(200)).await;
    assert!(scene.runs().await && !fork.is_finished());
    assert_eq!(scene.says("echo hello").await.unwrap(), "hello\n");
    sleep(Duration::from_secs(5)).await;
    assert!(!fork.is_finished());
    drop(slow);
    fork.await.unwrap().unwrap();
    assert!(scene.runs().await, "it is not quiesced again");
}

#[tokio::test(start_paused = true)]
async fn quiesced_parent_that_dies_leaves_the_fork_and_gets_another_sandbox() {
    let scene = Scene::new().await;
    let slow = scene.slow_copy().await;
    let fork = scene.fork();
    sleep(MOMENT).await;
    let before = scene.instance();
    assert!(!scene.runs().await);
    scene.node.runtime.crash(before, false);
    let said = scene.says("echo again");
    sleep(MOMENT).await;
    drop(slow);
    let fork = fork.await.unwrap().unwrap();
    assert_eq!(said.await.unwrap(), "again\n");
    assert_ne!(scene.instance(), before);
    assert!(scene.runs().await);
    assert_eq!(scene.node.said(fork, "echo there").await, "there\n");
}

#[tokio::test(start_paused = true)]
async fn sandbox_end_does_not_wait_for_a_copy() {
    let scene = Scene::new().await;
    let node = &scene.node;
    let mut started = node.send(scene.parent, "sleep 1000").await.unwrap();
    let slow = scene.slow_copy().await;
    let fork = scene.fork();
    sleep(MOMENT).await;
    assert!(!scene.runs().await);
    let aborted = timeout(MOMENT, node.engine.abort_session(ALICE, scene.parent, true)).await;
    assert!(aborted.unwrap().unwrap().sandbox_kept);
    assert_eq!(outcome(&rest(&mut started.follow).await), "aborted");
    assert!(scene.runs().await && !fork.is_finished());
    drop(slow);
    fork.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn fork_of_a_frozen_sandbox_in_memory_leaves_it_frozen() {
    let place = Place::new();
    let node = Node::start(place.config()).await;
    let parent = node.session_of("memory").await;
    node.said(parent, "echo theirs > f").await;
    let (sandbox, instance) = node.instance_of(parent);
    assert!(node.engine.freeze(ALICE, sandbox).await.unwrap().frozen);
    assert!(!node.runs(instance).await);
    let fork = node.engine.fork_session(ALICE, parent).await.unwrap().id;
    node.settle().await;
    assert!(!node.runs(instance).await, "it is frozen again");
    assert!(node.engine.sandbox(ALICE, sandbox).unwrap().frozen);
    assert_eq!(node.said(fork, "cat f").await, "theirs\n");
    assert_eq!(node.said(parent, "cat f").await, "theirs\n");
    assert_eq!(node.instance_of(parent).1, instance);
}

#[tokio::test(start_paused = true)]
async fn quiesce_that_fails_does_not_stop_the_copy_or_the_sandbox() {
    let trouble =
        || Fault::Fail(RuntimeError::new(RuntimeErrorCode::System, "a freezer", "no luck"));
    let faults = [
        (Operation::Freeze, trouble()),
        (Operation::Freeze, Fault::Hang),
        (Operation::Thaw, trouble()),
        (Operation::Thaw, Fault::Hang),
    ];
    for (operation, fault) in faults {
        let scene = Scene::new().await;
        let before = scene.instance();
        scene.node.runtime.inject(operation, fault.clone());
        let fork = scene.fork().await.unwrap().unwrap();
        sleep(Duration::from_secs(3)).await;
        assert!(scene.runs().await, "{operation:?} {fault:?}");
        assert_eq!(scene.says("echo hello").await.unwrap(), "hello\n");
        assert_eq!(scene.instance(), before, "{operation:?} {fault:?}");
        assert_eq!(scene.node.said(fork, "echo there").await, "there\n");
    }
}

#[tokio::test(start_paused = true)]
async fn quiesced_sandbox_of_a_killed_server_is_not_left_frozen() {
    let scene = Scene::new().await;
    let _slow = scene.slow_copy().await;
    let fork = scene.fork();
    sleep(MOMENT).await;
    assert!(!scene.runs().await);
    let Scene { node, parent, _place } = scene;
    let before = node.instance_of(parent).1;
    fork.abort();
    let node = node.kill_and_start().await;
    node.settle().await;
    assert_eq!(node.said(parent, "echo again").await, "again\n");
    let after = node.instance_of(parent).1;
    assert!(after != before && node.runs(after).await);
    assert!(node.runtime.sandbox(before).is_none());
}
