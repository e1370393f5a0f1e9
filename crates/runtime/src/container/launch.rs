//! Launching a sandbox: the maker makes a container, its guest reports that it is ready, and the
//! claim's settings are bound. A task of its own does this. It removes everything again if the
//! launch fails or the caller has gone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use guest_protocol::Env;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Shared;
use super::instance::Instance;
use super::keeper::Baseline;
use super::maker::{MadeContainer, Maker};
use super::sandbox::{Connected, ContainerSandbox};
use super::writable_mounts::writable_mounts;
use crate::claim::environment;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{LaunchSpec, WorkspaceSource};

const STEP: &str = "launch";

/// Launches a sandbox.
pub(super) async fn launch<M: Maker>(
    shared: &Arc<Shared<M>>,
    spec: LaunchSpec,
) -> Result<Arc<ContainerSandbox<M>>, RuntimeError> {
    let env = spec.settings.as_deref().map(environment).transpose()?;
    refuse_unserved(&*shared.maker, &spec)?;
    let instance = shared.reserve(spec.instance)?;
    let ready_timeout = spec.ready_timeout;
    let (reply, answer) = oneshot::channel();
    let (maker, alive) = (Arc::clone(shared), Arc::clone(&instance));
    tasks::spawn(async move {
        LaunchTask { shared: maker, spec, instance: alive }.run(env, reply).await;
    });
    // If this future is dropped or late, the task sees that the channel is closed.
    match timeout(ready_timeout, answer).await {
        Ok(Ok(ready)) => ready?.hand_out(),
        Ok(Err(_)) => Err(internal_error()),
        Err(_) => {
            let cause = "the guest did not report in time that it is ready";
            Err(RuntimeError::new(RuntimeErrorCode::ReadyTimeout, STEP, cause))
        }
    }
}

/// Refuses what no container offers, of whatever kind.
fn refuse_unserved<M: Maker>(maker: &M, spec: &LaunchSpec) -> Result<(), RuntimeError> {
    let refuse =
        |cause: &str| Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause.to_owned()));
    let capabilities = maker.capabilities();
    if let WorkspaceSource::Disk(_) = spec.workspace
        && !capabilities.disk_workspaces
    {
        return refuse("containers have their workspaces in memory");
    }
    if !spec.aliases.is_empty() && !capabilities.aliases {
        return refuse("workspaces in containers have no other names");
    }
    if let Some(cause) = capabilities.refuses(&spec.limits) {
        return refuse(&cause);
    }
    maker.check(spec)
}

/// A ready sandbox that has no owner yet. Dropped, it is removed.
struct ReadySandbox<M: Maker> {
    /// None once it is handed out.
    sandbox: Option<Arc<ContainerSandbox<M>>>,
}

impl<M: Maker> ReadySandbox<M> {
    fn hand_out(mut self) -> Result<Arc<ContainerSandbox<M>>, RuntimeError> {
        let sandbox = self.sandbox.as_ref().ok_or_else(killed)?;
        if !sandbox.shared.hand_out(sandbox) {
            return Err(killed());
        }
        self.sandbox.take().ok_or_else(killed)
    }
}

impl<M: Maker> Drop for ReadySandbox<M> {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        // It may be dropped where no tasks can be started any more: then all ends anyway.
        if let Ok(tokio) = tokio::runtime::Handle::try_current() {
            tokio.spawn(async move {
                sandbox.shared.take_back(sandbox.spec.instance, &sandbox.instance).await;
            });
        }
    }
}

/// A launch in progress.
struct LaunchTask<M: Maker> {
    shared: Arc<Shared<M>>,
    spec: LaunchSpec,
    instance: Arc<Instance>,
}

impl<M: Maker> LaunchTask<M> {
    async fn run(
        self,
        env: Option<Env>,
        mut reply: oneshot::Sender<Result<ReadySandbox<M>, RuntimeError>>,
    ) {
        let (shared, id, instance) =
            (Arc::clone(&self.shared), self.spec.instance, Arc::clone(&self.instance));
        // A panic must keep neither the id nor what was made by then.
        let launched = AssertUnwindSafe(self.launch(env, &mut reply)).catch_unwind().await;
        match launched.unwrap_or_else(|_| Err(internal_error())) {
            // If the caller has gone, the sandbox is dropped, which removes it.
            Ok(sandbox) => drop(reply.send(Ok(ReadySandbox { sandbox: Some(sandbox) }))),
            Err(error) => {
                // The id is free again before the caller hears that the launch failed.
                shared.take_back(id, &instance).await;
                drop(reply.send(Err(error)));
            }
        }
    }

    /// Makes it, unless it is killed or the caller stops waiting.
    async fn launch(
        self,
        env: Option<Env>,
        reply: &mut oneshot::Sender<Result<ReadySandbox<M>, RuntimeError>>,
    ) -> Result<Arc<ContainerSandbox<M>>, RuntimeError> {
        let (shared, instance) = (Arc::clone(&self.shared), Arc::clone(&self.instance));
        let can_be_dropped = shared.maker.making_can_be_dropped();
        let made = tokio::select! {
            made = shared.maker.make(&self.spec) => made?,
            () = instance.cancelled(), if can_be_dropped => return Err(killed()),
            // The caller has gone: no one reads this error.
            () = reply.closed(), if can_be_dropped => return Err(RuntimeError::deadline(STEP)),
        };
        tokio::select! {
            ready = self.await_ready(made, env) => ready,
            () = instance.cancelled() => Err(killed()),
            // The caller has gone: no one reads this error.
            () = reply.closed() => Err(RuntimeError::deadline(STEP)),
        }
    }

    /// Waits until the guest reports that it is ready.
    async fn await_ready(
        self,
        made: MadeContainer,
        env: Option<Env>,
    ) -> Result<Arc<ContainerSandbox<M>>, RuntimeError> {
        let MadeContainer { link, passes_descriptors, container_id, pid } = made;
        let connected =
            self.shared.connect(self.spec.instance, &self.instance, link, passes_descriptors)?;
        let Connected { link, watch } = &connected;
        let claimed = async {
            match env {
                Some(env) => link.claim(env).await,
                None => Ok(()),
            }
        };
        let ready = async { tokio::try_join!(link.ready(), claimed) };
        tokio::select! {
            ready = ready => ready.map(drop).map_err(as_launch)?,
            // The guest may have ended without an answer: its maker may know more.
            _ = watch.wait_broken() => return Err(self.died_before_ready().await),
        }
        let baseline = self.record_baseline(pid).await?;
        let Self { shared, spec, instance } = self;
        Ok(Arc::new(ContainerSandbox::new(
            spec,
            instance,
            shared,
            container_id,
            baseline,
            connected,
        )))
    }

    /// Records the state before the first use, so that a wipe can be proven against it.
    async fn record_baseline(&self, pid: Option<u32>) -> Result<Option<Baseline>, RuntimeError> {
        match (&self.shared.keeper, pid) {
            (Some(keeper), Some(pid)) => {
                let mounts = writable_mounts(&self.spec);
                keeper.record_baseline(pid, &mounts).await.map(Some).map_err(as_launch)
            }
            (None, _) | (_, None) => Ok(None),
        }
    }

    async fn died_before_ready(&self) -> RuntimeError {
        let end = self.shared.maker.end(self.spec.instance).await;
        let cause = match (end.out_of_memory, end.status) {
            (true, _) => "the sandbox ran out of memory before it was ready".to_owned(),
            (false, Some(status)) => format!("the guest ended before it was ready: {status:?}"),
            (false, None) => "the guest ended before it was ready".to_owned(),
        };
        RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause)
    }
}

fn killed() -> RuntimeError {
    let cause = "the sandbox was killed during its launch";
    RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause)
}

fn internal_error() -> RuntimeError {
    let cause = "an internal error (panic) ended the launch";
    RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause)
}

/// A sandbox that ends before it is ready counts as a failed launch.
fn as_launch(error: RuntimeError) -> RuntimeError {
    if error.code == RuntimeErrorCode::SandboxGone {
        RuntimeError { code: RuntimeErrorCode::LaunchFailed, ..error }
    } else {
        error
    }
}
