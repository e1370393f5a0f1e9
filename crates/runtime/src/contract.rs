//! What every runtime fulfils: itself, its sandboxes, and what is inside of them. Their futures may be dropped at any await: what was
//! begun for them is then taken back, and nobody else notices.

use std::sync::Arc;

use async_trait::async_trait;
use guest_protocol::message::{Entry, Port};
use model::template::RuntimeTraits;
use model::{ClaimSettings, InstanceId, Template, WorkspaceId};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::collect::{Collected, RunLimits, collect};
use crate::deaths::{Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{ExecSpec, Process};
use crate::files::{Duplex, FileReader, FileWriter, Page};
use crate::inside::{FileWatch, FindQuery, Found, SearchQuery, Searched, Socket, WatchQuery};
use crate::scale::ScaleNotes;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// What isolates sandboxes. It owns all it has launched: a sandbox lives until it is killed, dies,
/// or the runtime is shut down or dropped, whoever still holds a handle.
#[async_trait]
pub trait Runtime: Send + Sync {
    /// What it can do on this machine.
    fn capabilities(&self) -> Capabilities;

    /// What it can do as far as decisions depend on it.
    fn traits(&self) -> RuntimeTraits;

    /// What of a template it could never launch, with the name of the field, if there is anything.
    /// Limits apart, which [`Capabilities::refuses`] knows. It looks at nothing outside and must not
    /// wait.
    fn refuses(&self, _template: &Template) -> Option<String> {
        None
    }

    /// What keeps it from working at all, if that is known: an engine that is away, say. It must not
    /// wait.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Makes a sandbox; done when its guest is ready. Dropped or failed, nothing of it is left.
    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError>;

    /// A sandbox that was launched and is not over.
    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>>;

    /// Removes a sandbox, also one that is still being launched, and everything that was made for
    /// it. Done means that nothing is left; that it never existed is done too. Dropped, the
    /// removal goes on.
    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Which instances exist, those being made or removed included.
    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError>;

    /// Removes what an earlier run left behind, found by its label. Touches nothing of a run
    /// that is alive.
    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError>;

    /// The deaths of sandboxes from now on: exactly one for each that was launched, however it
    /// ended, told when nothing of it is left.
    fn events(&self) -> Deaths;

    /// What programs write to the scale files of sandboxes, from now on.
    fn scale_notes(&self) -> ScaleNotes {
        ScaleNotes::none()
    }

    /// Kills every sandbox and stops. Done means that nothing is left. Later calls are refused.
    async fn shutdown(&self) -> Result<(), RuntimeError>;

    /// Destroys a sandbox and launches a fresh one from the same spec under a new id.
    async fn recreate(
        &self,
        sandbox: Arc<dyn Sandbox>,
        instance: InstanceId,
    ) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        let spec = LaunchSpec { instance, ..sandbox.spec().clone() };
        sandbox.kill().await?;
        drop(sandbox);
        self.launch(spec).await
    }
}

/// One launched sandbox. Once it is over, every call is refused as `sandbox_gone` or `oom`, and
/// whatever waits is told so at once.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its label.
    fn instance(&self) -> InstanceId;

    /// What it was made from.
    fn spec(&self) -> &LaunchSpec;

    /// How it ended, if it has.
    fn ended(&self) -> Option<Died>;

    /// Binds an environment, replacing what was bound before, and attaches a workspace. It reaches
    /// programs that start afterwards, and proves that the guest answers. Secrets must have become
    /// values by now: settings that still name any are refused.
    async fn claim(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError>;

    /// What can be done inside of it.
    fn inside(&self) -> &dyn Inside;

    /// Stops all its processes from running. Done when none runs. That it is frozen is done too.
    async fn freeze(&self) -> Result<(), RuntimeError>;

    /// Lets its processes run again. That it is not frozen is done too.
    async fn thaw(&self) -> Result<(), RuntimeError>;

    /// Hands what programs wrote to `/workspace` over to whatever it lies on, as far as it is the
    /// sandbox's to do: a file system of its own is flushed into the file that holds it. It works
    /// while the sandbox is frozen, too.
    async fn sync(&self) -> Result<(), RuntimeError>;

    /// Ends every program of the use that is over, also those that nobody remembers, and gives it
    /// fresh, empty places to write to, whatever was in the old ones. Only where used sandboxes are
    /// wiped; if it fails, the sandbox is not fit for anyone. Whoever has it until then reaches
    /// nothing in it any more: [`Runtime::sandbox`] gives it as its next user knows it.
    async fn wipe(&self) -> Result<(), RuntimeError> {
        Err(cannot("wipe"))
    }

    /// Proves, from outside, that nothing of an earlier use is left, and that the guest answers.
    async fn prove(&self) -> Result<(), RuntimeError> {
        Err(cannot("prove"))
    }

    /// What its runtime calls it, where that is something people know: the id of a container.
    fn container_id(&self) -> Option<String> {
        None
    }

    /// Removes it and everything that was made for it. Done means that nothing is left.
    async fn kill(&self) -> Result<(), RuntimeError>;
}

/// What programs and files there are in a sandbox, and what can be done with them: the same whatever
/// isolates it. Once the sandbox is over, every call is refused as `sandbox_gone` or `oom`.
#[async_trait]
pub trait Inside: Send + Sync {
    /// Proves that the guest answers.
    async fn ping(&self) -> Result<(), RuntimeError>;

    /// Starts a program. That it could not be started is told by [`Process::wait`], or at once if
    /// the spec asks for that.
    async fn exec(&self, spec: ExecSpec) -> Result<Process, RuntimeError>;

    /// Runs a program to its end and keeps its output.
    async fn run(&self, spec: ExecSpec, limits: RunLimits) -> Result<Collected, RuntimeError> {
        limits.check()?;
        let started_at = Instant::now();
        collect(self.exec(spec).await?, limits, started_at).await
    }

    /// Opens a file for reading, from `offset` on and at most `length` bytes of it.
    async fn read_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, RuntimeError>;

    /// Begins to write a file. It has its name, whole, once the writer is finished. Permissions
    /// are those of the file it replaces, or 0644, if not given; directories above it are made.
    async fn write_file(&self, path: &str, mode: Option<u32>) -> Result<FileWriter, RuntimeError>;

    /// Part of a directory: at most `limit` names after `after`.
    async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError>;

    /// Describes a file, without following a last link.
    async fn stat(&self, path: &str) -> Result<Entry, RuntimeError>;

    /// Makes a directory, with those above it if `parents`.
    async fn make_directory(&self, path: &str, parents: bool) -> Result<(), RuntimeError>;

    /// Makes a symbolic link, and directories above it that are missing. Nothing needs to be where
    /// it points; whatever has its name already, also a link, is left as it is.
    async fn make_link(&self, path: &str, target: &str) -> Result<(), RuntimeError>;

    /// Gives a file another name, a hard link, and makes directories above it that are missing.
    /// Whatever has the name already is left as it is.
    async fn link_file(&self, path: &str, target: &str) -> Result<(), RuntimeError>;

    /// Changes the permissions of a file or directory, and when it was last written in milliseconds
    /// since 1970; what is not given stays as it is.
    async fn set_about(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError>;

    /// Renames a file or directory.
    async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<(), RuntimeError>;

    /// Removes a file, or a directory with everything beneath it if `recursive`.
    async fn remove(&self, path: &str, recursive: bool) -> Result<(), RuntimeError>;

    /// Connects to a port inside.
    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, RuntimeError>;

    /// Connects to a Unix socket inside, as one of its programs would.
    async fn dial_unix(&self, path: &str) -> Result<Box<dyn Duplex>, RuntimeError>;

    /// Which ports are listened on inside.
    async fn ports(&self) -> Result<Vec<Port>, RuntimeError>;

    /// Looks for files beneath a directory.
    async fn find(&self, query: &FindQuery) -> Result<Found, RuntimeError>;

    /// Looks for a text in files beneath a directory.
    async fn search(&self, query: &SearchQuery) -> Result<Searched, RuntimeError>;

    /// Watches a directory; done when the watch is armed.
    async fn watch(&self, query: &WatchQuery) -> Result<FileWatch, RuntimeError>;

    /// Sockets of a program, by its process id inside, and of everything that descends from it.
    async fn sockets(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError>;

    /// Tells the scale file how many processes keep the sandbox awake besides what was written to
    /// it, as of the note `seen`; 0 if there was none.
    async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError>;

    /// Process ids inside of the programs that were started through here and are not over.
    async fn processes(&self) -> Result<Vec<u32>, RuntimeError>;

    /// The whole of a file, unless it has more than `max_bytes`.
    async fn read_all(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, RuntimeError> {
        self.read_file(path, 0, None).await?.collect(max_bytes).await
    }

    /// Writes a whole file.
    async fn write_all(
        &self,
        path: &str,
        bytes: &[u8],
        mode: Option<u32>,
    ) -> Result<Entry, RuntimeError> {
        let mut writer = self.write_file(path, mode).await?;
        writer
            .write_all(bytes)
            .await
            .map_err(|error| RuntimeError::from_io("write a file", error))?;
        writer.finish().await
    }
}

fn cannot(step: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Unsupported, step, "this runtime cannot")
}
