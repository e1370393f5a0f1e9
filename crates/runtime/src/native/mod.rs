//! The native runtime: sandboxes from namespaces, control groups and a system call filter, made by
//! a launcher of its own process, without any daemon. Here is the launcher's client; what it makes
//! and how is the launcher's affair.

mod config;
mod end;
mod freezer;
mod instance;
mod launch;
mod launcher;
mod memory;
mod process;
mod sandbox;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::launcher::{LauncherFeatures, MAX_PACKET_BYTES};
use model::template::{Recycle, RuntimeTraits};
use model::{InstanceId, WorkspaceId};
use rustix::fs::{Gid, Uid};
use rustix::process::Pid;
use tokio::time::timeout;

pub use self::config::{NativeConfig, NetworkMode, RootSource};
use self::end::Ending;
use self::instance::Instance;
use self::launcher::{Launcher, News};
pub use self::process::LauncherProcess;
use self::sandbox::NativeSandbox;
use crate::contract::{Runtime, Sandbox};
use crate::deaths::{DeathBoard, Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::leftovers::Leftovers;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// How long the launcher may take to be ready for work.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// How long ending everything may take.
const END_PATIENCE: Duration = Duration::from_mins(1);

/// The user of a workspace's files, as it is written on disk and seen in every sandbox.
const WORKSPACE_USER: u32 = 1000;

/// The native runtime. Dropped, its launcher ends, and with it every sandbox.
pub struct Native {
    inner: Arc<Inner>,
}

/// What tasks and launches share.
struct Inner {
    config: NativeConfig,
    pid: Pid,
    launcher: Arc<Launcher>,
    features: LauncherFeatures,
    registry: Mutex<BTreeMap<InstanceId, Entry>>,
    deaths: DeathBoard,
    ending: Arc<Ending>,
    leftovers: Leftovers,
}

/// What exists under an instance id.
enum Entry {
    /// It is being made, or taken back.
    Launching {
        instance: Arc<Instance>,
        /// Someone asked for its end.
        killed: bool,
    },
    /// It was handed out.
    Live(Arc<NativeSandbox>),
}

impl Native {
    /// Starts a launcher and waits until it is ready for work.
    pub async fn start(config: NativeConfig) -> Result<Self, RuntimeError> {
        Self::with(LauncherProcess::start(config)?).await
    }

    /// Takes over a launcher that was started before there were any threads.
    pub async fn with(process: LauncherProcess) -> Result<Self, RuntimeError> {
        let LauncherProcess { config, socket, pid } = process;
        let leftovers = Leftovers::on_this_machine(&config.run_directory)
            .map_err(|error| RuntimeError::system("look for control groups", &error))?;
        let launcher = Launcher::new(socket)
            .map_err(|error| RuntimeError::system("watch the launcher's socket", &error))?;
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        let up = timeout(START_PATIENCE, wait_until_up(&launcher, &mut buffer)).await;
        let features =
            match up.unwrap_or_else(|_| Err(RuntimeError::deadline("start the launcher"))) {
                Ok(features) => features,
                Err(error) => {
                    drop(launcher);
                    let run = config.run;
                    let _ = tokio::task::spawn_blocking(move || {
                        process::wait_for_end(pid);
                        leftovers.remove_run(&run)
                    })
                    .await;
                    return Err(error);
                }
            };
        let inner = Arc::new(Inner {
            config,
            pid,
            launcher: Arc::new(launcher),
            features,
            registry: Mutex::default(),
            deaths: DeathBoard::default(),
            ending: Arc::new(Ending::new()),
            leftovers,
        });
        tokio::spawn(serve(Arc::clone(&inner), buffer));
        Ok(Self { inner })
    }

    /// The launcher's process.
    pub fn launcher_pid(&self) -> u32 {
        self.inner.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// The first process of a sandbox, as the host sees it.
    pub fn guest_pid(&self, instance: InstanceId) -> Option<u32> {
        self.inner.live(instance)?.instance.pid()
    }

    /// Makes an empty workspace on disk.
    pub fn make_workspace(&self, workspace: WorkspaceId) -> Result<(), RuntimeError> {
        const STEP: &str = "make a workspace";
        let Some(directory) = &self.inner.config.workspaces else {
            let cause = "no directory for workspaces is configured";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, STEP, cause));
        };
        let path = directory.join(workspace.to_string());
        let owner = (Some(Uid::from_raw(WORKSPACE_USER)), Some(Gid::from_raw(WORKSPACE_USER)));
        std::fs::create_dir(&path)
            .and_then(|()| Ok(rustix::fs::chown(&path, owner.0, owner.1)?))
            .map_err(|error| RuntimeError::system(STEP, &error))
    }
}

/// Waits for the launcher's first word.
async fn wait_until_up(
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

/// Deals with what the launcher says until it is gone, and then with what it leaves.
async fn serve(inner: Arc<Inner>, mut buffer: Vec<u8>) {
    while let Some(news) = poll_fn(|cx| inner.launcher.poll_news(cx, &mut buffer)).await {
        for one in news {
            match one {
                News::Died(died) => inner.bury(died),
                News::Gone(instance) => inner.forget(instance),
                News::Answer(answer) => answer.give(),
                News::Up(_) | News::Unable(_) => {}
            }
        }
    }
    inner.end().await;
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Entry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, instance: InstanceId) -> Option<Arc<NativeSandbox>> {
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
    fn forget(&self, instance: InstanceId) {
        let mut registry = self.registry();
        if let Some(Entry::Launching { .. }) = registry.get(&instance) {
            registry.remove(&instance);
        }
    }

    /// The launcher is gone, and so is, or soon will be, every sandbox.
    async fn end(&self) {
        let cause = "the launcher has ended, and every sandbox with it";
        self.launcher.close(RuntimeError::new(RuntimeErrorCode::LauncherLost, "", cause));
        let lost = |instance| Died { instance, status: None, out_of_memory: false };
        for (instance, entry) in &*self.registry() {
            match entry {
                Entry::Live(sandbox) => sandbox.link.fail(&lost(*instance)),
                Entry::Launching { instance: record, .. } => record.set_died(lost(*instance)),
            }
        }
        let (pid, run, leftovers) = (self.pid, self.config.run.clone(), self.leftovers.clone());
        // What cannot be removed now is found by the next cleaning.
        let _ = tokio::task::spawn_blocking(move || {
            process::wait_for_end(pid);
            leftovers.remove_run(&run)
        })
        .await;
        let left: Vec<_> = self.registry().keys().copied().collect();
        for instance in left {
            self.bury(lost(instance));
        }
        self.ending.all_is_removed();
    }
}

#[async_trait]
impl Runtime for Native {
    fn capabilities(&self) -> Capabilities {
        let features = &self.inner.features;
        Capabilities {
            memory_limit: features.memory_limit,
            cpu_limit: features.cpu_limit,
            pids_limit: features.pids_limit,
            freeze: features.freeze,
            disk_workspaces: features.disk_workspaces,
            terminals: true,
        }
    }

    fn traits(&self) -> RuntimeTraits {
        RuntimeTraits {
            recycle: Recycle::Recreate,
            can_freeze: self.inner.features.freeze,
            workspace_survives: self.inner.features.disk_workspaces,
        }
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        Ok(launch::launch(&self.inner, spec).await?)
    }

    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        Some(self.inner.live(instance)?)
    }

    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        if let Some(Entry::Launching { killed, .. }) = self.inner.registry().get_mut(&instance) {
            *killed = true;
        }
        self.inner.ending.kill(&self.inner.launcher, instance).await
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        let mut listed = self.inner.launcher.list().await?;
        listed.extend(self.inner.registry().keys());
        listed.sort_unstable();
        listed.dedup();
        Ok(listed)
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        let leftovers = self.inner.leftovers.clone();
        let reaped = tokio::task::spawn_blocking(move || leftovers.remove_all()).await;
        reaped
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| RuntimeError::system("reap orphans", &error))
    }

    fn events(&self) -> Deaths {
        self.inner.deaths.subscribe()
    }

    async fn shutdown(&self) -> Result<(), RuntimeError> {
        let inner = &self.inner;
        let all: Vec<_> = inner.registry().keys().copied().collect();
        // All are killed at once, and each death is told with how it came about.
        for instance in &all {
            inner.launcher.kill_unawaited(*instance);
        }
        let end = async {
            for instance in all {
                inner.ending.kill(&inner.launcher, instance).await?;
            }
            let cause = "the runtime is shut down";
            inner.launcher.close(RuntimeError::new(RuntimeErrorCode::ShuttingDown, "", cause));
            inner.ending.wait().await;
            Ok(())
        };
        timeout(END_PATIENCE, end)
            .await
            .unwrap_or_else(|_| Err(RuntimeError::deadline("shut down")))?;
        inner.deaths.close();
        Ok(())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let cause = "the runtime was dropped";
        self.inner.launcher.close(RuntimeError::new(RuntimeErrorCode::ShuttingDown, "", cause));
    }
}
