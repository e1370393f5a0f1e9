//! Making a sandbox: the maker makes a container, the guest in it says that it is ready, and what is
//! bound to it is bound. All of that happens in a task of its own, which takes everything back when
//! the one who asked is not there any more.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use guest_protocol::Env;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Shared;
use super::instance::Life;
use super::keeper::Baseline;
use super::maker::{Made, Maker};
use super::sandbox::{Connected, Contained};
use super::writable_mounts::places;
use crate::claim::environment;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{LaunchSpec, WorkspaceSource};

const STEP: &str = "launch";

/// Makes a sandbox.
pub(super) async fn launch<M: Maker>(
    shared: &Arc<Shared<M>>,
    spec: LaunchSpec,
) -> Result<Arc<Contained<M>>, RuntimeError> {
    let env = spec.settings.as_deref().map(environment).transpose()?;
    refuse_unserved(&*shared.maker, &spec)?;
    let life = shared.conceive(spec.instance)?;
    let ready_timeout = spec.ready_timeout;
    let (told, asked) = oneshot::channel();
    let (maker, alive) = (Arc::clone(shared), Arc::clone(&life));
    tasks::spawn(async move { Birth { shared: maker, spec, life: alive }.run(env, told).await });
    // Dropped or late, the other end notices.
    match timeout(ready_timeout, asked).await {
        Ok(Ok(born)) => born?.hand_out(),
        Ok(Err(_)) => Err(mistaken()),
        Err(_) => {
            let cause = "the guest did not say in time that it is ready";
            Err(RuntimeError::new(RuntimeErrorCode::ReadyTimeout, STEP, cause))
        }
    }
}

/// What no container has is refused, whoever makes it.
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

/// One that is ready and nobody's yet. Dropped, it is taken back.
struct Newborn<M: Maker> {
    /// None once it is somebody's.
    sandbox: Option<Arc<Contained<M>>>,
}

impl<M: Maker> Newborn<M> {
    fn hand_out(mut self) -> Result<Arc<Contained<M>>, RuntimeError> {
        let sandbox = self.sandbox.as_ref().ok_or_else(killed)?;
        if !sandbox.shared.hand_out(sandbox) {
            return Err(killed());
        }
        self.sandbox.take().ok_or_else(killed)
    }
}

impl<M: Maker> Drop for Newborn<M> {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        // It may be dropped where no tasks can be started any more: then all ends anyway.
        if let Ok(tokio) = tokio::runtime::Handle::try_current() {
            tokio.spawn(async move {
                sandbox.shared.take_back(sandbox.spec.instance, &sandbox.life).await;
            });
        }
    }
}

/// A sandbox on its way.
struct Birth<M: Maker> {
    shared: Arc<Shared<M>>,
    spec: LaunchSpec,
    life: Arc<Life>,
}

impl<M: Maker> Birth<M> {
    async fn run(
        self,
        env: Option<Env>,
        mut told: oneshot::Sender<Result<Newborn<M>, RuntimeError>>,
    ) {
        let (shared, id, life) =
            (Arc::clone(&self.shared), self.spec.instance, Arc::clone(&self.life));
        // A mistake of ours must not keep the id, nor what was made by then.
        let born = AssertUnwindSafe(self.bear(env, &mut told)).catch_unwind().await;
        match born.unwrap_or_else(|_| Err(mistaken())) {
            // If nobody takes it, it is dropped, which takes it back.
            Ok(sandbox) => drop(told.send(Ok(Newborn { sandbox: Some(sandbox) }))),
            Err(error) => {
                // The id is free again before anybody is told that it failed.
                shared.take_back(id, &life).await;
                drop(told.send(Err(error)));
            }
        }
    }

    /// Makes it, unless it is killed or nobody waits for it any more.
    async fn bear(
        self,
        env: Option<Env>,
        told: &mut oneshot::Sender<Result<Newborn<M>, RuntimeError>>,
    ) -> Result<Arc<Contained<M>>, RuntimeError> {
        let (shared, life) = (Arc::clone(&self.shared), Arc::clone(&self.life));
        let can_be_dropped = shared.maker.making_can_be_dropped();
        let made = tokio::select! {
            made = shared.maker.make(&self.spec) => made?,
            () = life.rejected(), if can_be_dropped => return Err(killed()),
            // Nobody is told.
            () = told.closed(), if can_be_dropped => return Err(RuntimeError::deadline(STEP)),
        };
        tokio::select! {
            born = self.await_ready(made, env) => born,
            () = life.rejected() => Err(killed()),
            // Nobody is told.
            () = told.closed() => Err(RuntimeError::deadline(STEP)),
        }
    }

    /// Waits for the guest's first word.
    async fn await_ready(
        self,
        made: Made,
        env: Option<Env>,
    ) -> Result<Arc<Contained<M>>, RuntimeError> {
        let Made { link, passes_descriptors, container_id, pid } = made;
        let connected =
            self.shared.connect(self.spec.instance, &self.life, link, passes_descriptors)?;
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
            // The guest may have gone without a word: its maker may know more.
            _ = watch.is_broken() => return Err(self.stillborn().await),
        }
        let baseline = self.look(pid).await?;
        let Self { shared, spec, life } = self;
        Ok(Arc::new(Contained::new(spec, life, shared, container_id, baseline, connected)))
    }

    /// What it is like before anybody has used it, where it is to be wiped one day.
    async fn look(&self, pid: Option<u32>) -> Result<Option<Baseline>, RuntimeError> {
        match (&self.shared.keeper, pid) {
            (Some(keeper), Some(pid)) => {
                keeper.look(pid, &places(&self.spec)).await.map(Some).map_err(as_launch)
            }
            (None, _) | (_, None) => Ok(None),
        }
    }

    async fn stillborn(&self) -> RuntimeError {
        let end = self.shared.maker.end(self.spec.instance).await;
        let cause = match (end.out_of_memory, end.status) {
            (true, _) => "it ran out of memory before it was ready".to_owned(),
            (false, Some(status)) => format!("its guest ended before it was ready: {status:?}"),
            (false, None) => "its guest ended before it was ready".to_owned(),
        };
        RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause)
    }
}

fn killed() -> RuntimeError {
    let cause = "it was killed while it was launched";
    RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause)
}

fn mistaken() -> RuntimeError {
    let cause = "a mistake of the server ended it";
    RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause)
}

/// A sandbox that ends before it is ready was not made.
fn as_launch(error: RuntimeError) -> RuntimeError {
    if error.code == RuntimeErrorCode::SandboxGone {
        RuntimeError { code: RuntimeErrorCode::LaunchFailed, ..error }
    } else {
        error
    }
}
