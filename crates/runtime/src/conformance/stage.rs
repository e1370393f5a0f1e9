//! The fixture of a case: a fresh runtime, unique ids, and helpers for common steps. At the end it
//! proves that nothing is left.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use model::InstanceId;

use super::Subject;
use crate::collect::{Collected, RunLimits};
use crate::contract::{Runtime, Sandbox};
use crate::exec::ExecSpec;
use crate::spec::LaunchSpec;

/// How long anything may take that is not slow by design.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

const LIMITS: RunLimits = RunLimits { output_bytes: 1 << 20, timeout: PATIENCE };

static INSTANCES: AtomicU64 = AtomicU64::new(1);

/// A runtime on which a case is tried.
pub struct Stage {
    pub(super) subject: Arc<dyn Subject>,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl Stage {
    pub(super) fn new(subject: Arc<dyn Subject>, runtime: Arc<dyn Runtime>) -> Self {
        Self { subject, runtime }
    }

    /// What to launch if nothing about it matters.
    pub(super) fn spec(&self) -> LaunchSpec {
        LaunchSpec::of(&self.subject.template(), new_instance())
    }

    pub(super) async fn launch(&self) -> Arc<dyn Sandbox> {
        self.runtime.launch(self.spec()).await.expect("a sandbox is launched")
    }

    /// Nothing may be left, and all is well until then.
    pub(super) async fn close(self) {
        self.runtime.shutdown().await.expect("the runtime is shut down");
        let subject = self.subject;
        eventually("nothing remains", || {
            let remains = subject.remains();
            async move { remains.is_empty().then_some(()).ok_or(format!("{remains:?}")) }
        })
        .await;
    }

    /// Whether no sandbox exists.
    pub(super) async fn until_empty(&self) {
        eventually("no sandbox is listed", || async {
            let listed = self.runtime.list().await.expect("sandboxes are listed");
            listed.is_empty().then_some(()).ok_or(format!("{listed:?}"))
        })
        .await;
    }
}

/// An id that no other case uses, not even in another process of the same test run.
pub(super) fn new_instance() -> InstanceId {
    let n = INSTANCES.fetch_add(1, Ordering::Relaxed);
    InstanceId::from_u128(u128::from(std::process::id()) << 64 | u128::from(n))
}

/// Runs a line of shell to its end.
pub(super) async fn shell(sandbox: &dyn Sandbox, line: &str) -> Collected {
    run(sandbox, ExecSpec::shell(line)).await
}

/// Runs a program to its end.
pub(super) async fn run(sandbox: &dyn Sandbox, spec: ExecSpec) -> Collected {
    let said = format!("{spec:?}");
    match sandbox.inside().run(spec, LIMITS).await {
        Ok(collected) => collected,
        Err(error) => panic!("{said}: {error}"),
    }
}

/// What a line of shell says.
pub(super) async fn said(sandbox: &dyn Sandbox, line: &str) -> String {
    let collected = shell(sandbox, line).await;
    assert!(collected.exit.success(), "{line}: {collected:?}");
    String::from_utf8(collected.stdout).expect("text")
}

/// Waits until something holds, and panics with the last obstacle if it never does.
pub(super) async fn eventually<F, Fut>(what: &str, mut check: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    let mut obstacle = String::new();
    for _ in 0..3_000 {
        match check().await {
            Ok(()) => return,
            Err(found) => obstacle = found,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: still {obstacle}");
}

/// Polls a future at most `polls` times and drops it then; its output if it was done by then.
pub(crate) async fn cut<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    if polls == 0 {
        return None;
    }
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|cx| {
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled >= polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// How many polls a future may need at most: every await of it is tried as a place to drop it.
pub(super) const MOST_POLLS: usize = 40;
