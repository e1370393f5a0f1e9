//! One native sandbox: its guest does most of the work, the launcher attaches workspaces and kills,
//! and this server freezes it directly.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jail::plan::WORKSPACE;
use model::{ClaimSettings, InstanceId, NetworkPolicy, WorkspaceId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, syncfs};

use super::instance::Instance;
use super::launcher_client::LauncherClient;
use super::network::Network;
use super::run_removal::{RunRemoval, is_launcher_gone};
use crate::claim::environment;
use crate::contract::{Inside, NetworkSockets, Sandbox};
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::GuestLink;
use crate::spec::LaunchSpec;

/// A native sandbox.
pub(super) struct NativeSandbox {
    pub spec: LaunchSpec,
    pub instance: Arc<Instance>,
    pub link: GuestLink,
    pub launcher: Arc<LauncherClient>,
    pub run_removal: Arc<RunRemoval>,
    pub network: Network,
}

#[async_trait]
impl Sandbox for NativeSandbox {
    fn instance(&self) -> InstanceId {
        self.spec.instance
    }

    fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    fn ended(&self) -> Option<Died> {
        self.instance.died()
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.instance.cpu_time()
    }

    async fn claim(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError> {
        let env = environment(settings)?;
        let attach = async {
            match workspace {
                Some(workspace) => {
                    let attached = self.launcher.attach(self.spec.instance, workspace).await;
                    // Without its launcher the sandbox is gone too.
                    attached.map_err(|error| {
                        let died = Died::with_launcher(self.spec.instance, None);
                        if is_launcher_gone(error.code) { died.error("claim") } else { error }
                    })
                }
                None => Ok(()),
            }
        };
        tokio::try_join!(attach, self.link.claim(env))?;
        Ok(())
    }

    fn inside(&self) -> &dyn Inside {
        &self.link
    }

    async fn freeze(&self) -> Result<(), RuntimeError> {
        match (self.instance.died(), self.instance.freezer()) {
            (Some(died), _) => Err(died.error("freeze")),
            (None, Some(freezer)) => {
                self.instance.mark_frozen();
                freezer.freeze().await?;
                // Its group may belong to another sandbox by now, which must not stay frozen.
                match self.instance.died() {
                    Some(died) => {
                        freezer.thaw()?;
                        Err(died.error("freeze"))
                    }
                    None => Ok(()),
                }
            }
            (None, None) => Err(unfreezable("freeze")),
        }
    }

    async fn thaw(&self) -> Result<(), RuntimeError> {
        match (self.instance.died(), self.instance.freezer()) {
            (Some(died), _) => Err(died.error("thaw")),
            (None, Some(freezer)) => {
                freezer.thaw()?;
                self.instance.mark_thawed();
                Ok(())
            }
            (None, None) => Err(unfreezable("thaw")),
        }
    }

    async fn sync(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "flush the workspace";
        let ended = || self.instance.died().map_or(Ok(()), |died| Err(died.error(STEP)));
        ended()?;
        let Some(pid) = self.instance.pid() else { return Ok(()) };
        let flushed = tokio::task::spawn_blocking(move || flush(pid)).await;
        // The pid may belong to another process by now, and its files may have been flushed.
        ended()?;
        flushed
            .map_err(|error| RuntimeError::new(RuntimeErrorCode::System, STEP, error.to_string()))?
            .map_err(|error| RuntimeError::system(STEP, &error))
    }

    async fn arm_network(&self, policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        self.network.arm(&self.launcher, &self.instance, policy).await
    }

    async fn change_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.network.change(&self.launcher, &self.instance, policy).await
    }

    async fn refused_addresses(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        self.network.refused(&self.launcher, &self.instance).await
    }

    async fn disarm_network(&self) -> Result<(), RuntimeError> {
        self.network.disarm(&self.launcher, &self.instance).await
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        // A death is recorded when nothing is left.
        if self.instance.died().is_some() {
            return Ok(());
        }
        self.run_removal.kill(&self.launcher, self.spec.instance).await
    }
}

/// Flushes the file system of the workspace through the root of the first process: from outside, so
/// that it works while the guest is frozen or busy, and never through a link.
fn flush(pid: u32) -> io::Result<()> {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), place, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let workspace = openat2(root, WORKSPACE, flags, Mode::empty(), resolve)?;
    Ok(syncfs(workspace)?)
}

fn unfreezable(step: &'static str) -> RuntimeError {
    let cause = "this machine has no control group that can freeze sandboxes";
    RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause)
}
