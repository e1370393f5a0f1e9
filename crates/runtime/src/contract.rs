//! The contract of every runtime: the runtime itself, its sandboxes, and what is inside of them.
//! Any future may be dropped at any await: what it began is then undone, and no other caller
//! notices.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::{Entry, Port};
use model::template::RuntimeTraits;
use model::{ClaimSettings, InstanceId, NetworkPolicy, Template, WorkspaceId};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::collect::{Collected, RunLimits, collect};
use crate::deaths::{Deaths, Died};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{ExecSpec, Process};
use crate::files::{Duplex, FileReader, FileWriter, Page};
use crate::inside::{FileWatch, FindQuery, Found, SearchQuery, Searched, Socket, WatchQuery};
use crate::lost_guests::LostGuests;
use crate::scale::ScaleNotes;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

/// Launches and isolates sandboxes. It owns all it has launched: a sandbox lives until it is
/// killed, dies, or the runtime is shut down or dropped, even if a caller still holds a handle.
#[async_trait]
pub trait Runtime: Send + Sync {
    /// What it can do on this machine.
    fn capabilities(&self) -> Capabilities;

    /// The abilities that the kernel's decisions depend on.
    fn traits(&self) -> RuntimeTraits;

    /// What of a template it could never launch, with the name of the field, if there is anything.
    /// Limits apart, which [`Capabilities::refuses`] knows. It looks at nothing outside and must
    /// not wait.
    fn refuses(&self, _template: &Template) -> Option<String> {
        None
    }

    /// Why it cannot work at all, if that is known: a Docker engine that is away, say. It must not
    /// wait.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Launches a sandbox; done when its guest is ready. If it is dropped or fails, nothing is
    /// left.
    async fn launch(&self, spec: LaunchSpec) -> Result<Arc<dyn Sandbox>, RuntimeError>;

    /// A sandbox that was launched and still lives.
    fn sandbox(&self, instance: InstanceId) -> Option<Arc<dyn Sandbox>>;

    /// Removes a sandbox, also one that is still being launched, and everything that was made for
    /// it. Done means that nothing is left, also if it never existed. If the call is dropped, the
    /// removal goes on.
    async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError>;

    /// Which instances exist, including those being launched or removed.
    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError>;

    /// Removes what an earlier run left behind, found by its label. Touches nothing of a run
    /// that is alive.
    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError>;

    /// The deaths of sandboxes from now on: exactly one for each that was launched, however it
    /// exited, reported when nothing of it is left.
    fn events(&self) -> Deaths;

    /// The sandboxes whose guests are lost although no caller killed them, from now on. Their
    /// deaths follow, when nothing of them is left.
    fn lost_guests(&self) -> LostGuests {
        LostGuests::none()
    }

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

/// One launched sandbox. Once it has exited, every call is refused as `sandbox_gone` or `oom`, and
/// waiting calls fail at once.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its label.
    fn instance(&self) -> InstanceId;

    /// What it was made from.
    fn spec(&self) -> &LaunchSpec;

    /// How it exited, if it has.
    fn ended(&self) -> Option<Died>;

    /// Binds an environment, replacing what was bound before, and attaches a workspace. It reaches
    /// programs that start afterwards, and proves that the guest answers. Secrets must be resolved
    /// to values before: settings that still name any are refused.
    async fn claim(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError>;

    /// What can be done inside of it.
    fn inside(&self) -> &dyn Inside;

    /// Freezes all its processes. Done when none runs, also if it was frozen already.
    async fn freeze(&self) -> Result<(), RuntimeError>;

    /// Thaws its processes. Done also if it was not frozen.
    async fn thaw(&self) -> Result<(), RuntimeError>;

    /// Flushes what programs wrote to `/workspace` to the file system or image file beneath it. It
    /// works while the sandbox is frozen, too.
    async fn sync(&self) -> Result<(), RuntimeError>;

    /// Ends every program of the last use, also detached ones, replaces the writable mounts by empty
    /// ones, and takes the network of a policy away, whose sockets must be closed before. Only where
    /// used sandboxes are wiped. If it fails, the sandbox must not be handed
    /// out. Old handles reach nothing in it afterwards: [`Runtime::sandbox`] gives the handle for
    /// the next user.
    async fn wipe(&self) -> Result<(), RuntimeError> {
        Err(cannot("wipe"))
    }

    /// Proves, from outside, that nothing of an earlier use is left, and that the guest answers. It
    /// fails while the network of a policy is there, or its sockets are open.
    async fn prove(&self) -> Result<(), RuntimeError> {
        Err(cannot("prove"))
    }

    /// Makes the network of a policy in it: connections that the kernel lets through, and questions
    /// about names, arrive at the sockets. Whoever has the sockets judges what arrives there; as long
    /// as they are not served, or closed, nothing gets out. What an earlier call made is replaced,
    /// and its sockets must be closed before. The runtime keeps neither of them.
    async fn arm_network(&self, _policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        Err(cannot("arm the network"))
    }

    /// Replaces the addresses that the kernel lets through, all at once; connections that exist are
    /// not cut. It must have been armed before. Where only a proxy leads out, nothing changes.
    async fn change_network(&self, _policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        Err(cannot("change the network"))
    }

    /// Addresses and ports that programs dialled by number lately and that the kernel refused: at
    /// most 256, for some minutes. Empty where the kernel does not record them.
    async fn refused_addresses(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        Err(cannot("read refused addresses"))
    }

    /// Takes the network of a policy away: only loopback is left. The sockets must be closed by who
    /// has them. Done also if there was none.
    async fn disarm_network(&self) -> Result<(), RuntimeError> {
        Err(cannot("disarm the network"))
    }

    /// The processor time of its programs, and of sandboxes that had its control group before it:
    /// only the difference of two readings says something. None if this machine does not count it,
    /// or if the sandbox has exited. It must not wait.
    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    /// The id of its container, where it has one.
    fn container_id(&self) -> Option<String> {
        None
    }

    /// Removes it and everything that was made for it. Done means that nothing is left.
    async fn kill(&self) -> Result<(), RuntimeError>;
}

/// The sockets at which programs of a sandbox with a policy arrive. Both are non-blocking.
#[derive(Debug)]
pub struct NetworkSockets {
    /// Accepts connections. The own address of an accepted socket is the one that was dialled.
    pub connections: OwnedFd,
    /// Receives questions about names; none where only a proxy leads out.
    pub names: Option<OwnedFd>,
}

/// Programs and files in a sandbox: the same calls for every runtime. Once the sandbox has exited,
/// every call is refused as `sandbox_gone` or `oom`.
#[async_trait]
pub trait Inside: Send + Sync {
    /// Proves that the guest answers.
    async fn ping(&self) -> Result<(), RuntimeError>;

    /// Starts a program. If it could not be started, [`Process::wait`] fails, or this call does if
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
    async fn set_metadata(
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

    /// Adds to the number that the scale file shows how many processes keep the sandbox alive.
    /// `seen` is the last scale note that the caller knows; 0 if there was none.
    async fn show_holds(&self, processes: u32, seen: u64) -> Result<(), RuntimeError>;

    /// Process ids, as seen inside, of running programs that were started through [`Self::exec`].
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
    RuntimeError::new(RuntimeErrorCode::Unsupported, step, "this runtime does not support it")
}
