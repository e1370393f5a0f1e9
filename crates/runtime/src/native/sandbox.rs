//! One native sandbox: its guest does most of it, the launcher attaches and kills, and freezing is
//! done by whoever asks for it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use guest_protocol::message::{Entry, Port};
use jail::plan::WORKSPACE;
use model::{ClaimSettings, InstanceId, WorkspaceId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, syncfs};

use super::end::{Ending, is_end};
use super::instance::Instance;
use super::launcher::Launcher;
use crate::claim::environment;
use crate::contract::Sandbox;
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{ExecSpec, Process};
use crate::files::{Duplex, FileReader, FileWriter, Page};
use crate::guest_link::GuestLink;
use crate::inside::{FileWatch, FindQuery, Found, SearchQuery, Searched, Socket, WatchQuery};
use crate::spec::LaunchSpec;

/// A native sandbox.
pub(super) struct NativeSandbox {
    pub spec: LaunchSpec,
    pub instance: Arc<Instance>,
    pub link: GuestLink,
    pub launcher: Arc<Launcher>,
    pub ending: Arc<Ending>,
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
                    // Without its launcher there is no sandbox either.
                    attached.map_err(|error| {
                        let died = Died::with_launcher(self.spec.instance);
                        if is_end(error.code) { died.error("claim") } else { error }
                    })
                }
                None => Ok(()),
            }
        };
        tokio::try_join!(attach, self.link.claim(env))?;
        Ok(())
    }

    async fn ping(&self) -> Result<(), RuntimeError> {
        self.link.ping().await
    }

    async fn exec(&self, spec: ExecSpec) -> Result<Process, RuntimeError> {
        self.link.exec(spec).await
    }

    async fn read_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, RuntimeError> {
        self.link.read_file(path, offset, length).await
    }

    async fn write_file(&self, path: &str, mode: Option<u32>) -> Result<FileWriter, RuntimeError> {
        self.link.write_file(path, mode)
    }

    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError> {
        self.link.list_files(path, after, limit).await
    }

    async fn stat(&self, path: &str) -> Result<Entry, RuntimeError> {
        self.link.stat(path).await
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<(), RuntimeError> {
        self.link.make_directory(path, parents).await
    }

    async fn make_link(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        self.link.make_link(path, target).await
    }

    async fn link_file(&self, path: &str, target: &str) -> Result<(), RuntimeError> {
        self.link.link_file(path, target).await
    }

    async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError> {
        self.link.set_about(path, mode, modified_ms).await
    }

    async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<(), RuntimeError> {
        self.link.move_file(from, to, overwrite).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<(), RuntimeError> {
        self.link.remove(path, recursive).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.link.dial(port).await
    }

    async fn dial_unix(&self, path: &str) -> Result<Box<dyn Duplex>, RuntimeError> {
        self.link.dial_unix(path).await
    }

    async fn ports(&self) -> Result<Vec<Port>, RuntimeError> {
        self.link.ports().await
    }

    async fn find(&self, query: &FindQuery) -> Result<Found, RuntimeError> {
        self.link.find(query).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<Searched, RuntimeError> {
        self.link.search(query).await
    }

    async fn watch(&self, query: &WatchQuery) -> Result<FileWatch, RuntimeError> {
        self.link.watch(query).await
    }

    async fn sockets(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError> {
        self.link.sockets(pid).await
    }

    async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError> {
        self.link.show_holds(processes, seen).await
    }

    async fn processes(&self) -> Result<Vec<u32>, RuntimeError> {
        self.link.processes().await
    }

    async fn freeze(&self) -> Result<(), RuntimeError> {
        match (self.instance.died(), self.instance.freezer()) {
            (Some(died), _) => Err(died.error("freeze")),
            (None, Some(freezer)) => {
                self.instance.freezes();
                freezer.freeze().await?;
                // Its group may be another's by now, who must not be frozen for it.
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
                self.instance.thawed();
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
        // What was flushed may have been somebody else's by then.
        ended()?;
        flushed
            .map_err(|error| RuntimeError::new(RuntimeErrorCode::System, STEP, error.to_string()))?
            .map_err(|error| RuntimeError::system(STEP, &error))
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        // A death is told when nothing is left.
        if self.instance.died().is_some() {
            return Ok(());
        }
        self.ending.kill(&self.launcher, self.spec.instance).await
    }
}

/// Flushes the file system of the workspace, by way of the root of the first process: from outside,
/// so that a guest that is frozen or busy is not needed for it, and never through a link.
fn flush(pid: u32) -> io::Result<()> {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), place, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let workspace = openat2(root, WORKSPACE, flags, Mode::empty(), resolve)?;
    Ok(syncfs(workspace)?)
}

fn unfreezable(step: &'static str) -> RuntimeError {
    let cause = "no control group that freezes can be used here";
    RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause)
}
