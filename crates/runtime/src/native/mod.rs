//! The native runtime: sandboxes from namespaces, control groups and a system call filter, without
//! any daemon. A launcher process makes them (`guest::launcher`); this module is its client,
//! restarts it, and must never make a namespace or a mount itself.

mod config;
mod instance;
mod launch;
mod launcher_client;
mod launcher_process;
mod launcher_restart;
mod launcher_run;
mod mounts;
mod network;
mod run_removal;
mod sandbox;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::launcher::{self as launcher_protocol, MAX_PACKET_BYTES};
use model::InstanceId;
use model::template::{Recycle, RuntimeTraits};
use tokio::time::timeout;

pub(crate) use self::config::new_run;
pub use self::config::{NativeConfig, NetworkMode};
pub use self::launcher_process::LauncherProcess;
use self::launcher_restart::{Launchers, Starter};
use self::launcher_run::RegistryEntry;
use crate::contract::{Runtime, Sandbox};
use crate::deaths::Deaths;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::scale::ScaleNotes;
use crate::spec::{Capabilities, LaunchSpec, Reaped, Users};

/// How long a shutdown may take.
const END_PATIENCE: Duration = Duration::from_mins(1);

/// The native runtime. Dropped, its launcher ends, and with it every sandbox.
pub struct Native {
    launchers: Arc<Launchers>,
}

impl Native {
    /// Starts a launcher and waits until it is ready for work.
    pub async fn start(config: NativeConfig) -> Result<Self, RuntimeError> {
        Self::with(LauncherProcess::start(config)?).await
    }

    /// Takes over a launcher that was started before there were any threads.
    pub async fn with(process: LauncherProcess) -> Result<Self, RuntimeError> {
        Self::begin(process, Arc::new(LauncherProcess::start)).await
    }

    async fn begin(process: LauncherProcess, start: Starter) -> Result<Self, RuntimeError> {
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        let launchers = Arc::new(Launchers::begin(process, start, &mut buffer).await?);
        let served = Arc::clone(&launchers);
        tokio::spawn(async move { served.serve(buffer).await });
        Ok(Self { launchers })
    }

    /// The launcher's process; that of the last one while there is none.
    pub fn launcher_pid(&self) -> u32 {
        self.launchers.current().pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Why all sandboxes share one host user, if they could have their own and the operator did not
    /// choose it.
    pub fn shared_user_reason(&self) -> Option<&'static str> {
        use launcher_protocol::AloneBecause;
        match self.launchers.current().features.alone_because? {
            AloneBecause::Wanted => None,
            AloneBecause::NoPrograms => Some("newuidmap or newgidmap is not installed"),
            AloneBecause::NoRange => Some("/etc/subuid or /etc/subgid has no range for this user"),
            AloneBecause::RangeTooShort => {
                Some("the range in /etc/subuid or /etc/subgid is shorter than node.max_live")
            }
            AloneBecause::MappingRefused => Some("newuidmap or newgidmap refused"),
        }
    }

    /// The first process of a sandbox, as the host sees it.
    pub fn guest_pid(&self, instance: InstanceId) -> Option<u32> {
        self.launchers.current().live(instance)?.instance.pid()
    }
}

#[async_trait]
impl Runtime for Native {
    fn capabilities(&self) -> Capabilities {
        let features = self.launchers.current().features;
        Capabilities {
            memory_limit: features.memory_limit,
            cpu_limit: features.cpu_limit,
            pids_limit: features.pids_limit,
            freeze: features.freeze,
            disk_workspaces: features.disk_workspaces,
            aliases: true,
            terminals: true,
            scale_file: true,
            users: match features.users {
                launcher_protocol::Users::Ranges => Users::Ranges,
                launcher_protocol::Users::Subordinate => Users::Subordinate,
                launcher_protocol::Users::Alone => Users::Alone,
            },
            network: features.network.into(),
        }
    }

    fn traits(&self) -> RuntimeTraits {
        let features = self.launchers.current().features;
        RuntimeTraits {
            recycle: Recycle::Recreate,
            can_freeze: features.freeze,
            workspace_survives: features.disk_workspaces,
            disk: None,
        }
    }

    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        if self.launchers.config.limits
            && let Some(cause) = self.capabilities().refuses(&spec.limits)
        {
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", cause));
        }
        Ok(launch::launch(&self.launchers.current(), spec).await?)
    }

    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>> {
        Some(self.launchers.current().live(instance)?)
    }

    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let run = self.launchers.current();
        if let Some(RegistryEntry::Launching { killed, .. }) = run.registry().get_mut(&instance) {
            *killed = true;
        }
        run.run_removal.kill(&run.launcher, instance).await
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        let run = self.launchers.current();
        let mut listed = run.launcher.list().await?;
        listed.extend(run.registry().keys());
        listed.sort_unstable();
        listed.dedup();
        Ok(listed)
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        let leftovers = self.launchers.leftovers.clone();
        let reaped = tokio::task::spawn_blocking(move || leftovers.remove_all()).await;
        reaped
            .map_err(std::io::Error::other)
            .flatten()
            .map_err(|error| RuntimeError::system("reap orphans", &error))
    }

    fn events(&self) -> Deaths {
        self.launchers.deaths.subscribe()
    }

    fn scale_notes(&self) -> ScaleNotes {
        self.launchers.scale.subscribe()
    }

    async fn shutdown(&self) -> Result<(), RuntimeError> {
        let run = self.launchers.stop();
        let all: Vec<_> = run.registry().keys().copied().collect();
        // Kill all at once first, so that each death is reported with its own exit status.
        for instance in &all {
            run.launcher.kill_unawaited(*instance);
        }
        let end = async {
            for instance in all {
                run.run_removal.kill(&run.launcher, instance).await?;
            }
            let cause = "the runtime is shut down";
            run.launcher.close(RuntimeError::new(RuntimeErrorCode::ShuttingDown, "", cause));
            self.launchers.wait_ended().await;
            Ok(())
        };
        timeout(END_PATIENCE, end)
            .await
            .unwrap_or_else(|_| Err(RuntimeError::deadline("shut down")))?;
        self.launchers.deaths.close();
        self.launchers.scale.close();
        Ok(())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let cause = "the runtime was dropped";
        self.launchers.stop().launcher.close(RuntimeError::new(
            RuntimeErrorCode::ShuttingDown,
            "",
            cause,
        ));
    }
}
