//! A runtime in memory: no processes, no isolation, the same answer every time. Programs are a
//! few scripted commands, files live in a map, faults come when a test asks for them, and what is
//! alive is counted, so that a test can prove that nothing was left. It works under paused time.

mod calls;
mod faults;
mod handle;
mod inspection;
mod network;
mod paths;
mod process;
mod program;
mod sandbox;
mod scale;
mod script;
mod test_programs;
mod tree;
mod wipe;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use guest_protocol::message::ExitStatus;
use model::template::{Recycle, RuntimeTraits};
use model::{InstanceId, WorkspaceId};
use tokio::sync::watch;
use tokio::time::timeout;

use self::faults::Faults;
pub use self::faults::{Fault, Operation};
use self::handle::Handle;
pub use self::network::FakeNetwork;
use self::sandbox::FakeSandbox;
pub use self::test_programs::{FakeProgram, FakeProgramContext, Listener};
use self::tree::Tree;
use crate::contract::{Runtime, Sandbox};
use crate::deaths::{DeathBoard, Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::scale::{ScaleBoard, ScaleNotes};
use crate::spec::{Capabilities, LaunchSpec, NetworkAbility, Reaped, WorkspaceSource};

/// What a fake runtime is.
#[derive(Debug, Clone, Copy)]
pub struct FakeSettings {
    /// How many sandboxes may live at once.
    pub slots: usize,
    /// What it says it can do.
    pub capabilities: Capabilities,
    /// How it makes a used sandbox ready for the next user.
    pub recycle: Recycle,
    /// Whether an unknown workspace counts as an empty one that was made elsewhere.
    pub any_workspace: bool,
}

impl Default for FakeSettings {
    fn default() -> Self {
        Self {
            slots: 1000,
            capabilities: Capabilities::ALL,
            recycle: Recycle::Recreate,
            any_workspace: false,
        }
    }
}

/// What exists in a fake runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alive {
    /// Sandboxes being launched.
    pub launching: usize,
    /// Sandboxes.
    pub sandboxes: usize,
    /// Tasks of programs.
    pub tasks: usize,
    /// Open files and connections.
    pub streams: usize,
}

/// The fake runtime.
pub struct FakeRuntime {
    settings: FakeSettings,
    world: Arc<World>,
}

/// What its sandboxes share.
pub(crate) struct World {
    state: Mutex<State>,
    deaths: DeathBoard,
    scale: ScaleBoard,
    /// Used sandboxes are wiped, not recreated.
    wipes: bool,
    /// How sandboxes reach the network, if they are armed.
    network: NetworkAbility,
    tasks: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    launching: BTreeMap<InstanceId, watch::Sender<bool>>,
    sandboxes: BTreeMap<InstanceId, Arc<FakeSandbox>>,
    workspaces: BTreeMap<WorkspaceId, Arc<Mutex<Tree>>>,
    orphans: Vec<String>,
    test_programs: BTreeMap<String, Arc<dyn FakeProgram>>,
    faults: Faults,
    trouble: Option<String>,
    closed: bool,
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_fault(&self, operation: Operation) -> Option<Fault> {
        self.state().faults.take(operation)
    }

    fn workspace(&self, id: WorkspaceId) -> Option<Arc<Mutex<Tree>>> {
        self.state().workspaces.get(&id).map(Arc::clone)
    }

    fn remove_dead(&self, died: Died) {
        if self.state().sandboxes.remove(&died.instance).is_some() {
            self.deaths.report(died);
        }
    }
}

/// Undoes a launch that was not finished.
struct Launching<'a> {
    world: &'a World,
    instance: InstanceId,
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.world.state().launching.remove(&self.instance);
    }
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new(FakeSettings::default())
    }
}

impl FakeRuntime {
    /// A runtime in which nothing exists yet.
    pub fn new(settings: FakeSettings) -> Self {
        let world = World {
            state: Mutex::default(),
            deaths: DeathBoard::default(),
            scale: ScaleBoard::default(),
            wipes: settings.recycle == Recycle::Wipe,
            network: settings.capabilities.network,
            tasks: Arc::default(),
            streams: Arc::default(),
        };
        Self { settings, world: Arc::new(world) }
    }

    /// Lets the next call of an operation go wrong; asked several times, they go wrong in order.
    pub fn inject(&self, operation: Operation, fault: Fault) {
        self.world.state().faults.push(operation, fault);
    }

    /// Says from now on that it does not work, or that it does; it works as ever.
    pub fn pretend_trouble(&self, trouble: Option<&str>) {
        self.world.state().trouble = trouble.map(str::to_owned);
    }

    /// Makes an empty workspace on what stands for a disk.
    pub fn create_workspace(&self, id: WorkspaceId, max_bytes: u64) {
        let tree = Tree::new(&["/workspace"], max_bytes);
        self.world.state().workspaces.insert(id, Arc::new(Mutex::new(tree)));
    }

    /// Adds a program of this name to all sandboxes.
    pub fn add_program(&self, name: &str, program: Arc<dyn FakeProgram>) {
        self.world.state().test_programs.insert(name.to_owned(), program);
    }

    /// Pretends that an earlier run left something behind.
    pub fn leave_orphan(&self, run: &str) {
        self.world.state().orphans.push(run.to_owned());
    }

    /// Lets a sandbox die as if by itself.
    pub fn crash(&self, instance: InstanceId, out_of_memory: bool) {
        let sandbox = self.world.state().sandboxes.get(&instance).map(Arc::clone);
        if let Some(sandbox) = sandbox {
            sandbox.die(Some(ExitStatus::Signal(9)), out_of_memory);
        }
    }

    /// Writes to the scale file of a sandbox, as a program would.
    pub fn write_scale(&self, instance: InstanceId, text: &str) {
        let sandbox = self.world.state().sandboxes.get(&instance).map(Arc::clone);
        if let Some(sandbox) = sandbox {
            sandbox.write_scale(text.as_bytes());
        }
    }

    /// Counts what exists.
    pub fn alive(&self) -> Alive {
        let state = self.world.state();
        Alive {
            launching: state.launching.len(),
            sandboxes: state.sandboxes.len(),
            tasks: self.world.tasks.load(Ordering::SeqCst),
            streams: self.world.streams.load(Ordering::SeqCst),
        }
    }

    fn begin(&self, spec: &LaunchSpec) -> Result<watch::Receiver<bool>, RuntimeError> {
        let refuse = |code, cause| Err(RuntimeError::new(code, "launch", cause));
        self.world.deaths.check_room()?;
        let mut state = self.world.state();
        if state.closed {
            return refuse(RuntimeErrorCode::ShuttingDown, "the runtime is shut down");
        }
        let (launching, live) = (&state.launching, &state.sandboxes);
        if launching.contains_key(&spec.instance) || live.contains_key(&spec.instance) {
            return refuse(RuntimeErrorCode::Duplicate, "the instance id is in use");
        }
        if launching.len() + live.len() >= self.settings.slots {
            return refuse(RuntimeErrorCode::Full, "all slots are taken");
        }
        let (called_off, watch) = watch::channel(false);
        state.launching.insert(spec.instance, called_off);
        Ok(watch)
    }

    async fn make(&self, spec: &LaunchSpec) -> Result<Arc<FakeSandbox>, RuntimeError> {
        tokio::task::yield_now().await;
        match self.world.take_fault(Operation::Launch) {
            None => {}
            Some(Fault::Fail(error)) => return Err(error),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::Die { out_of_memory }) => {
                let status = Some(ExitStatus::Signal(9));
                let died = Died::alone(spec.instance, status, out_of_memory);
                return Err(died.error("launch"));
            }
        }
        let workspace = match spec.workspace {
            WorkspaceSource::Memory => None,
            WorkspaceSource::Disk(id) => match self.world.workspace(id) {
                Some(tree) => Some(tree),
                None if self.settings.any_workspace => {
                    self.create_workspace(id, spec.limits.workspace_bytes());
                    self.world.workspace(id)
                }
                None => {
                    return Err(RuntimeError::new(
                        RuntimeErrorCode::SandboxUnknown,
                        "find the workspace",
                        format!("no workspace {id}"),
                    ));
                }
            },
        };
        let sandbox = FakeSandbox::new(spec.clone(), Arc::downgrade(&self.world), workspace);
        if let Some(settings) = &spec.settings {
            sandbox.bind(settings, None)?;
        }
        tokio::task::yield_now().await;
        Ok(Arc::new(sandbox))
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    fn capabilities(&self) -> Capabilities {
        self.settings.capabilities
    }

    fn traits(&self) -> RuntimeTraits {
        RuntimeTraits {
            recycle: self.settings.recycle,
            can_freeze: self.settings.capabilities.freeze,
            workspace_survives: self.settings.capabilities.disk_workspaces,
            disk: None,
        }
    }

    fn trouble(&self) -> Option<String> {
        self.world.state().trouble.clone()
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        let mut called_off = self.begin(&spec)?;
        let launching = Launching { world: &self.world, instance: spec.instance };
        let sandbox = tokio::select! {
            made = timeout(spec.ready_timeout, self.make(&spec)) => made.unwrap_or_else(|_| {
                let cause = "the guest did not report in time that it is ready";
                Err(RuntimeError::new(RuntimeErrorCode::ReadyTimeout, "launch", cause))
            })?,
            _ = called_off.wait_for(|off| *off) => {
                let cause = "the sandbox was killed during its launch";
                return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, "launch", cause));
            }
        };
        self.world.state().sandboxes.insert(spec.instance, Arc::clone(&sandbox));
        drop(launching);
        Ok(Arc::new(Handle::new(sandbox)))
    }

    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        let sandbox = Arc::clone(self.world.state().sandboxes.get(&instance)?);
        Some(Arc::new(Handle::new(sandbox)))
    }

    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let sandbox = {
            let state = self.world.state();
            if let Some(launching) = state.launching.get(&instance) {
                launching.send_replace(true);
            }
            state.sandboxes.get(&instance).map(Arc::clone)
        };
        if let Some(sandbox) = sandbox {
            Handle::new(sandbox).kill().await?;
        }
        while self.world.state().launching.contains_key(&instance) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        tokio::task::yield_now().await;
        if let Some(Fault::Fail(error)) = self.world.take_fault(Operation::List) {
            return Err(error);
        }
        let state = self.world.state();
        let mut found: Vec<_> =
            state.launching.keys().chain(state.sandboxes.keys()).copied().collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        tokio::task::yield_now().await;
        if let Some(Fault::Fail(error)) = self.world.take_fault(Operation::Reap) {
            return Err(error);
        }
        let runs = std::mem::take(&mut self.world.state().orphans);
        Ok(Reaped { runs, ..Reaped::default() })
    }

    fn events(&self) -> Deaths {
        self.world.deaths.subscribe()
    }

    fn scale_notes(&self) -> ScaleNotes {
        self.world.scale.subscribe()
    }

    async fn shutdown(&self) -> Result<(), RuntimeError> {
        let (launching, live): (Vec<_>, Vec<_>) = {
            let mut state = self.world.state();
            state.closed = true;
            (state.launching.keys().copied().collect(), state.sandboxes.keys().copied().collect())
        };
        for instance in launching.into_iter().chain(live) {
            self.kill(instance).await?;
        }
        self.world.deaths.close();
        self.world.scale.close();
        Ok(())
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        let live: Vec<_> = {
            let mut state = self.world.state();
            state.closed = true;
            state.sandboxes.values().map(Arc::clone).collect()
        };
        for sandbox in live {
            sandbox.die(Some(ExitStatus::Signal(9)), false);
        }
        self.world.deaths.close();
        self.world.scale.close();
    }
}
