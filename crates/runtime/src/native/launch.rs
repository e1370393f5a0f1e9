//! Launching a sandbox: the launcher makes it, its guest reports that it is ready, and the claim's
//! settings are sent before that. Dropped at any point, the sandbox is removed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_protocol::launcher::{self, SandboxLimits, Spec, Workspace};
use model::InstanceId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::time::timeout;

use super::instance::Instance;
use super::launcher_run::{LauncherRun, RegistryEntry};
use super::mounts;
use super::network::Network;
use super::sandbox::NativeSandbox;
use crate::claim::environment;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::{GuestLink, Surroundings};
use crate::spec::{LaunchSpec, Root, WorkspaceSource};

pub(super) const STEP: &str = "launch";

const MIB: u64 = 1 << 20;

/// Launches a sandbox.
pub(super) async fn launch(
    run: &LauncherRun,
    spec: LaunchSpec,
) -> Result<Arc<NativeSandbox>, RuntimeError> {
    let env = match &spec.settings {
        Some(settings) => Some(environment(settings)?),
        None => None,
    };
    let instance = Arc::new(Instance::new(spec.instance, Arc::clone(&run.scale)));
    let launching = Launching::begin(run, spec.instance, &instance)?;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| RuntimeError::system("make a connection", &error.into()))?;
    let surroundings: Arc<dyn Surroundings> = Arc::clone(&instance) as _;
    let link = GuestLink::new(ours, run.link, surroundings)?;

    let wanted = for_launcher(run, &spec)?;
    launching.requested.store(true, Ordering::Relaxed);
    let launched = async {
        let launched = run.launcher.launch(wanted, theirs).await;
        // A refusal means that nothing was made, so there is nothing to remove.
        instance.launched(
            launched.inspect_err(|_| launching.requested.store(false, Ordering::Relaxed))?,
        );
        Ok(())
    };
    let claimed = async {
        match env {
            Some(env) => link.claim(env).await,
            None => Ok(()),
        }
    };
    // The first failure is the cause.
    let made = async { tokio::try_join!(launched, link.ready(), claimed) };
    match timeout(spec.ready_timeout, made).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(launching.explain(error)),
        Err(_) => {
            let cause = "the guest did not report in time that it is ready";
            return Err(RuntimeError::new(RuntimeErrorCode::ReadyTimeout, STEP, cause));
        }
    }
    let (launcher, run_removal) = (Arc::clone(&run.launcher), Arc::clone(&run.run_removal));
    launching.hand_out(Arc::new(NativeSandbox {
        spec,
        instance,
        link,
        launcher,
        run_removal,
        network: Network::default(),
    }))
}

fn for_launcher(run: &LauncherRun, spec: &LaunchSpec) -> Result<Spec, RuntimeError> {
    let limits = &spec.limits;
    let memory_bytes = u64::from(limits.memory_mb) * MIB;
    let root = match &spec.root {
        Root::Host => launcher::Root::Host,
        Root::Directory(name) => launcher::Root::Directory(name.clone()),
        Root::Image(image) | Root::Named { stored: Some(image), .. } => {
            launcher::Root::Image(*image.as_bytes())
        }
        Root::Named { name, stored: None } => {
            let cause = format!("the image store has no {name}");
            return Err(RuntimeError::new(RuntimeErrorCode::RootUnknown, STEP, cause));
        }
    };
    let root = if spec.aliases.is_empty() {
        root
    } else {
        launcher::Root::Aliased { root: Box::new(root), names: spec.aliases.clone() }
    };
    Ok(Spec {
        instance: spec.instance.as_u128().to_be_bytes(),
        root,
        limits: SandboxLimits {
            memory_bytes,
            cpu_milli: limits.cpu_milli,
            pids: limits.pids,
            workspace_bytes: u64::from(limits.workspace_mb) * MIB,
            // What is in there counts as memory too: half of it, so that a full one kills nothing.
            scratch_bytes: memory_bytes / 2,
        },
        workspace: match spec.workspace {
            WorkspaceSource::Memory => Workspace::Memory,
            WorkspaceSource::Disk(workspace) => Workspace::Disk(workspace.as_u128().to_be_bytes()),
        },
        mounts: mounts::for_launcher(&run.mounts, &spec.mounts)?,
    })
}

/// A launch in progress. Dropped before the sandbox is handed out, the sandbox is removed.
struct Launching<'a> {
    run: &'a LauncherRun,
    id: InstanceId,
    /// The request was sent to the launcher.
    requested: AtomicBool,
    handed_out: bool,
}

impl<'a> Launching<'a> {
    fn begin(
        run: &'a LauncherRun,
        id: InstanceId,
        instance: &Arc<Instance>,
    ) -> Result<Self, RuntimeError> {
        run.deaths.check_room()?;
        let mut registry = run.registry();
        // Checked under the lock of the registry, so that no launch begins after the launcher died
        // and the registry was cleared for good.
        if let Some(lost) = run.launcher.lost() {
            return Err(RuntimeError { step: STEP.into(), ..lost });
        }
        if registry.contains_key(&id) {
            let cause = "the instance id is in use";
            return Err(RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause));
        }
        let entry = RegistryEntry::Launching { instance: Arc::clone(instance), killed: false };
        registry.insert(id, entry);
        Ok(Self { run, id, requested: AtomicBool::new(false), handed_out: false })
    }

    /// The cause as the failure of a launch: a sandbox that exits before it is ready was not
    /// launched.
    fn explain(&self, error: RuntimeError) -> RuntimeError {
        let killed = match self.run.registry().get(&self.id) {
            Some(RegistryEntry::Launching { killed, .. }) => *killed,
            Some(RegistryEntry::Live(_)) | None => false,
        };
        if killed {
            let cause = "the sandbox was killed during its launch";
            return RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause);
        }
        if error.code == RuntimeErrorCode::SandboxGone {
            return RuntimeError { code: RuntimeErrorCode::LaunchFailed, ..error };
        }
        error
    }

    /// Marks the ready sandbox as live, unless it has just died or was killed.
    fn hand_out(mut self, sandbox: Arc<NativeSandbox>) -> Result<Arc<NativeSandbox>, RuntimeError> {
        let mut registry = self.run.registry();
        if let Some(died) = sandbox.instance.died() {
            return Err(RuntimeError { code: RuntimeErrorCode::LaunchFailed, ..died.error(STEP) });
        }
        match registry.get_mut(&self.id) {
            Some(entry @ RegistryEntry::Launching { killed: false, .. }) => {
                *entry = RegistryEntry::Live(Arc::clone(&sandbox));
                drop(registry);
                self.handed_out = true;
                Ok(sandbox)
            }
            Some(RegistryEntry::Launching { .. } | RegistryEntry::Live(_)) | None => {
                let cause = "the sandbox was killed during its launch";
                Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause))
            }
        }
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        if self.handed_out {
            return;
        }
        if self.requested.load(Ordering::Relaxed) && self.run.launcher.lost().is_none() {
            self.run.launcher.kill_unawaited(self.id);
        } else {
            self.run.forget(self.id);
        }
    }
}
