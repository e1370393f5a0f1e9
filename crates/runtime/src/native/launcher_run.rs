//! The run of one launcher, and the registry of its instances. None of them outlives the launcher,
//! and no handle of one of them may ever reach another launcher.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_protocol::launcher::LauncherFeatures;
use model::InstanceId;
use rustix::process::Pid;
use tokio::time::timeout;

use super::instance::Instance;
use super::launcher_client::{LauncherClient, LauncherEvent};
use super::launcher_process::{self, LauncherProcess};
use super::run_removal::RunRemoval;
use super::sandbox::NativeSandbox;
use crate::deaths::{DeathBoard, Died, LauncherExit};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::LinkSettings;
use crate::leftovers::Leftovers;
use crate::scale::ScaleBoard;

/// How long the launcher may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// One launcher and its instances.
pub(super) struct LauncherRun {
    /// The run's name. Everything that the launcher makes carries it.
    name: String,
    pub pid: Pid,
    pub launcher: Arc<LauncherClient>,
    pub features: LauncherFeatures,
    pub link: LinkSettings,
    /// The directories that may be mounted; the launcher knows them by their index.
    pub mounts: Vec<PathBuf>,
    pub deaths: Arc<DeathBoard>,
    pub scale: Arc<ScaleBoard>,
    pub run_removal: Arc<RunRemoval>,
    leftovers: Leftovers,
    registry: Mutex<BTreeMap<InstanceId, RegistryEntry>>,
}

/// Whether the end of a launcher was requested.
#[derive(Debug, Clone, Copy)]
pub(super) enum Death {
    /// By a shutdown, or by dropping the runtime.
    Requested,
    /// It died by itself, or was killed.
    Unexpected,
}

/// What exists under an instance id.
pub(super) enum RegistryEntry {
    /// Its launch is in progress, or a failed launch is being removed.
    Launching {
        instance: Arc<Instance>,
        /// A caller killed it.
        killed: bool,
    },
    /// It was handed out.
    Live(Arc<NativeSandbox>),
}

impl LauncherRun {
    /// Waits until a launcher is ready. If it never is, or `stop` comes first, nothing of it is
    /// left.
    pub(super) async fn begin(
        process: LauncherProcess,
        deaths: Arc<DeathBoard>,
        scale: Arc<ScaleBoard>,
        leftovers: Leftovers,
        buffer: &mut [u8],
        stop: impl Future<Output = ()>,
    ) -> Result<Self, RuntimeError> {
        let LauncherProcess { config, socket, pid } = process;
        let up = match LauncherClient::new(socket) {
            Ok(launcher) => tokio::select! {
                up = timeout(START_PATIENCE, wait_until_up(&launcher, buffer)) => up
                    .unwrap_or_else(|_| Err(RuntimeError::deadline("start the launcher")))
                    .map(|features| (launcher, features)),
                () = stop => Err(RuntimeError::new(
                    RuntimeErrorCode::ShuttingDown,
                    "start the launcher",
                    "the runtime is shut down",
                )),
            },
            Err(error) => Err(RuntimeError::system("watch the launcher's socket", &error)),
        };
        match up {
            Ok((launcher, features)) => Ok(Self {
                name: config.run,
                pid,
                launcher: Arc::new(launcher),
                features,
                link: config.link,
                mounts: config.mounts,
                deaths,
                scale,
                run_removal: Arc::new(RunRemoval::new()),
                leftovers,
                registry: Mutex::default(),
            }),
            // Its socket is closed by now, so the launcher ends.
            Err(error) => {
                remove(pid, config.run, leftovers, None).await;
                Err(error)
            }
        }
    }

    /// Handles the launcher's events until it is gone.
    pub(super) async fn serve(&self, buffer: &mut [u8]) {
        while let Some(events) = poll_fn(|cx| self.launcher.poll_events(cx, buffer)).await {
            for event in events {
                match event {
                    LauncherEvent::Died(died) => self.remove_entry(died),
                    LauncherEvent::Gone(instance) => self.forget(instance),
                    LauncherEvent::Answer(answer) => answer.deliver(),
                    LauncherEvent::Up(_) | LauncherEvent::Unable(_) => {}
                }
            }
        }
    }

    /// The launcher is gone, and every sandbox dies with it. Reports each death once nothing of the
    /// run is left. An unexpected death is logged.
    pub(super) async fn end(&self, cause: RuntimeError, death: Death) {
        self.launcher.close(cause);
        let live = |entry: &&RegistryEntry| matches!(entry, RegistryEntry::Live(_));
        let sandboxes = self.registry().values().filter(live).count();
        for (instance, entry) in &*self.registry() {
            match entry {
                RegistryEntry::Live(sandbox) => {
                    sandbox.link.fail(&Died::with_launcher(*instance, None));
                }
                RegistryEntry::Launching { instance: record, .. } => {
                    record.set_died(Died::with_launcher(*instance, None));
                }
            }
        }
        let died = match death {
            Death::Unexpected => Some(sandboxes),
            Death::Requested => None,
        };
        let exit = remove(self.pid, self.name.clone(), self.leftovers.clone(), died).await;
        let left: Vec<_> = self.registry().keys().copied().collect();
        for instance in left {
            self.remove_entry(Died::with_launcher(instance, exit));
        }
        self.run_removal.mark_removed();
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, BTreeMap<InstanceId, RegistryEntry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn live(&self, instance: InstanceId) -> Option<Arc<NativeSandbox>> {
        match self.registry().get(&instance)? {
            RegistryEntry::Live(sandbox) => Some(Arc::clone(sandbox)),
            RegistryEntry::Launching { .. } => None,
        }
    }

    /// A sandbox exited. Its waiting callers fail; subscribers hear of the death if the sandbox was
    /// ever handed out.
    fn remove_entry(&self, died: Died) {
        let entry = self.registry().remove(&died.instance);
        match entry {
            Some(RegistryEntry::Live(sandbox)) => {
                sandbox.instance.set_died(died);
                sandbox.link.fail(&died);
                self.deaths.report(died);
            }
            Some(RegistryEntry::Launching { instance, .. }) => instance.set_died(died),
            None => {}
        }
    }

    /// A failed or abandoned launch is removed.
    pub(super) fn forget(&self, instance: InstanceId) {
        let mut registry = self.registry();
        if let Some(RegistryEntry::Launching { .. }) = registry.get(&instance) {
            registry.remove(&instance);
        }
    }
}

/// Reaps a launcher, and removes what it left. `died` is how many sandboxes died with a launcher
/// whose end was not requested; that is logged.
async fn remove(
    pid: Pid,
    run: String,
    leftovers: Leftovers,
    died: Option<usize>,
) -> Option<LauncherExit> {
    let removal = tasks::spawn_blocking(move || {
        let exit = launcher_process::reap(pid);
        let pid = pid.as_raw_nonzero().get();
        if let Some(sandboxes_died) = died {
            let (signal, exit_code) = (exit.signal(), exit.code());
            tracing::error!(pid, run, signal, exit_code, sandboxes_died, "the launcher died");
        }
        // What cannot be removed now is removed by the next `reap_orphans`.
        let _ = leftovers.remove_ended_run(&run);
        LauncherExit { pid, status: exit.status() }
    });
    removal.await.ok()
}

/// Waits until the launcher reports that it is ready.
pub(super) async fn wait_until_up(
    launcher: &LauncherClient,
    buffer: &mut [u8],
) -> Result<LauncherFeatures, RuntimeError> {
    let events = poll_fn(|cx| launcher.poll_events(cx, buffer)).await;
    match events.and_then(|mut events| (!events.is_empty()).then(|| events.remove(0))) {
        Some(LauncherEvent::Up(features)) => Ok(features),
        Some(LauncherEvent::Unable(error)) => {
            Err(RuntimeError { cause: "the launcher cannot work here".into(), ..error })
        }
        Some(LauncherEvent::Died(_) | LauncherEvent::Gone(_) | LauncherEvent::Answer(_)) | None => {
            Err(RuntimeError::new(
                RuntimeErrorCode::LaunchFailed,
                "start the launcher",
                "the launcher ended before it was ready",
            ))
        }
    }
}
