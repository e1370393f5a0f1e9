//! The life of one launcher, and of the sandboxes it made: none of them outlives it, and no handle
//! of one of them ever reaches another launcher.

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
use super::launcher_client::{Launcher, News};
use super::launcher_process::{self, LauncherProcess};
use super::run_removal::Ending;
use super::sandbox::NativeSandbox;
use crate::deaths::{DeathBoard, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::LinkSettings;
use crate::leftovers::Leftovers;
use crate::scale::ScaleBoard;

/// How long the launcher may take to be ready for work.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// One launcher and all it made.
pub(super) struct Run {
    /// Everything that is made carries it.
    name: String,
    pub pid: Pid,
    pub launcher: Arc<Launcher>,
    pub features: LauncherFeatures,
    pub link: LinkSettings,
    /// The directories of which it may show something, by their numbers.
    pub mounts: Vec<PathBuf>,
    pub deaths: Arc<DeathBoard>,
    pub scale: Arc<ScaleBoard>,
    pub ending: Arc<Ending>,
    leftovers: Leftovers,
    registry: Mutex<BTreeMap<InstanceId, Entry>>,
}

/// What exists under an instance id.
pub(super) enum Entry {
    /// It is being made, or taken back.
    Launching {
        instance: Arc<Instance>,
        /// Someone asked for its end.
        killed: bool,
    },
    /// It was handed out.
    Live(Arc<NativeSandbox>),
}

impl Run {
    /// Waits until a launcher is ready for work. If it never is, or `stop` comes first, nothing of
    /// it is left.
    pub(super) async fn begin(
        process: LauncherProcess,
        deaths: Arc<DeathBoard>,
        scale: Arc<ScaleBoard>,
        leftovers: Leftovers,
        buffer: &mut [u8],
        stop: impl Future<Output = ()>,
    ) -> Result<Self, RuntimeError> {
        let LauncherProcess { config, socket, pid } = process;
        let up = match Launcher::new(socket) {
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
                ending: Arc::new(Ending::new()),
                leftovers,
                registry: Mutex::default(),
            }),
            // Its socket is closed by now, so it ends.
            Err(error) => {
                remove(pid, config.run, leftovers).await;
                Err(error)
            }
        }
    }

    /// Deals with what the launcher says until it is gone.
    pub(super) async fn serve(&self, buffer: &mut [u8]) {
        while let Some(news) = poll_fn(|cx| self.launcher.poll_news(cx, buffer)).await {
            for one in news {
                match one {
                    News::Died(died) => self.bury(died),
                    News::Gone(instance) => self.forget(instance),
                    News::Answer(answer) => answer.give(),
                    News::Up(_) | News::Unable(_) => {}
                }
            }
        }
    }

    /// The launcher is gone, and so is, or soon will be, every sandbox: each is told once nothing
    /// of the run is left.
    pub(super) async fn end(&self, cause: RuntimeError) {
        self.launcher.close(cause);
        for (instance, entry) in &*self.registry() {
            match entry {
                Entry::Live(sandbox) => sandbox.link.fail(&Died::with_launcher(*instance)),
                Entry::Launching { instance: record, .. } => {
                    record.set_died(Died::with_launcher(*instance));
                }
            }
        }
        remove(self.pid, self.name.clone(), self.leftovers.clone()).await;
        let left: Vec<_> = self.registry().keys().copied().collect();
        for instance in left {
            self.bury(Died::with_launcher(instance));
        }
        self.ending.all_is_removed();
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Entry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn live(&self, instance: InstanceId) -> Option<Arc<NativeSandbox>> {
        match self.registry().get(&instance)? {
            Entry::Live(sandbox) => Some(Arc::clone(sandbox)),
            Entry::Launching { .. } => None,
        }
    }

    /// A sandbox is over. Whoever waits for anything of it is told; who subscribed too, if anyone
    /// ever had it.
    fn bury(&self, died: Died) {
        let entry = self.registry().remove(&died.instance);
        match entry {
            Some(Entry::Live(sandbox)) => {
                sandbox.instance.set_died(died);
                sandbox.link.fail(&died);
                self.deaths.tell(died);
            }
            Some(Entry::Launching { instance, .. }) => instance.set_died(died),
            None => {}
        }
    }

    /// A launch was taken back.
    pub(super) fn forget(&self, instance: InstanceId) {
        let mut registry = self.registry();
        if let Some(Entry::Launching { .. }) = registry.get(&instance) {
            registry.remove(&instance);
        }
    }
}

/// Waits until a launcher has ended, and removes what it left.
async fn remove(pid: Pid, run: String, leftovers: Leftovers) {
    // What cannot be removed now is found by the next cleaning.
    let _ = tasks::spawn_blocking(move || {
        launcher_process::wait_for_end(pid);
        leftovers.remove_ended_run(&run)
    })
    .await;
}

/// Waits for the launcher's first word.
pub(super) async fn wait_until_up(
    launcher: &Launcher,
    buffer: &mut [u8],
) -> Result<LauncherFeatures, RuntimeError> {
    let news = poll_fn(|cx| launcher.poll_news(cx, buffer)).await;
    match news.and_then(|mut news| (!news.is_empty()).then(|| news.remove(0))) {
        Some(News::Up(features)) => Ok(features),
        Some(News::Unable(error)) => {
            Err(RuntimeError { cause: "the launcher cannot work here".into(), ..error })
        }
        Some(News::Died(_) | News::Gone(_) | News::Answer(_)) | None => Err(RuntimeError::new(
            RuntimeErrorCode::LaunchFailed,
            "start the launcher",
            "it ended before it was ready",
        )),
    }
}
