//! A use of a sandbox: from its grant until it is dropped, the kernel does not take the sandbox
//! away. If the sandbox ends all the same, the caller learns at once why.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use harness::{HarnessError, HarnessErrorCode, HeldHarness};
use kernel::{Event, Grant, Reply, UseKind, UseTarget};
use model::{ErrorCode, Limits, Refusal, SandboxId, SessionId, UseId};
use runtime::{
    Collected, Duplex, Entry, ExecSpec, Exit, FileChange, FileReader, FileWatch, FileWriter,
    FindQuery, Found, Inside, Page, Port, Process, RunLimits, RuntimeError, RuntimeErrorCode,
    Sandbox, SearchQuery, Searched, Socket, WatchQuery,
};
use tokio::time::Instant;

use crate::Engine;
use crate::answers::DeliveredAnswer;
use crate::boxed;
use crate::core::Core;
use crate::instance_ends::EndWatch;
use crate::keys::Caller;
use crate::network::with_next_binding;
use crate::sandboxes::unexpected;
use crate::state_loss;
use crate::uploads;

/// A requested use. The use ends when this is dropped, however far it came.
struct UseGuard {
    core: Arc<Core>,
    use_id: UseId,
}

impl UseGuard {
    fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), use_id: UseId::from_u128(core.fresh_id()) }
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.core.notify(Event::UseEnded { use_id: self.use_id });
    }
}

/// A use in progress. It ends when this is dropped.
pub struct Use {
    guard: UseGuard,
    grant: Grant,
    sandbox: Arc<dyn Sandbox>,
    end_watch: EndWatch,
}

impl Engine {
    /// Begins to use a sandbox. A frozen one is thawed first.
    pub async fn use_sandbox(
        &self,
        caller: Caller,
        id: SandboxId,
        kind: UseKind,
    ) -> Result<Use, Refusal> {
        if let Err(unknown) = self.check_sandbox(caller, id) {
            return Err(self.ended_long_ago(caller, id).await.unwrap_or(unknown));
        }
        begin(&self.core, UseTarget::Sandbox(id), kind, None).await
    }

    /// Begins to use the sandbox that a session has, or gets for this use. If there is no place
    /// for it, the use waits so long; without a number, as long as the node is configured to.
    #[boxed]
    pub async fn use_session(
        &self,
        caller: Caller,
        id: SessionId,
        kind: UseKind,
        wait_ms: Option<u64>,
    ) -> Result<Use, Refusal> {
        self.check_session(caller, id)?;
        begin(&self.core, UseTarget::Session(id), kind, wait_ms).await
    }
}

/// Begins a use of a sandbox or session.
pub(crate) async fn begin(
    core: &Arc<Core>,
    target: UseTarget,
    kind: UseKind,
    wait_ms: Option<u64>,
) -> Result<Use, Refusal> {
    with_next_binding(core, target, false, begin_now(core, target, kind, wait_ms)).await
}

async fn begin_now(
    core: &Arc<Core>,
    target: UseTarget,
    kind: UseKind,
    wait_ms: Option<u64>,
) -> Result<Use, Refusal> {
    let guard = UseGuard::new(core);
    let request = core.request();
    let use_id = guard.use_id;
    let event = Event::UseRequested { request, target, use_id, kind, wait_ms };
    let DeliveredAnswer { answer, end_watch } =
        core.begin_request(request, event, None)?.delivered().await;
    let (grant, end_watch) = match (answer?, end_watch) {
        (Reply::Granted(grant), Some(end_watch)) => (grant, end_watch),
        (reply, _) => return Err(unexpected(&reply)),
    };
    state_loss::note(grant.lost);
    if let Some(sandbox) = core.runtimes.sandbox(grant.instance) {
        return Ok(Use { guard, grant, sandbox, end_watch });
    }
    // The instance died, and the kernel is about to report it.
    Err(end_watch.reason().await.unwrap_or_else(|| crashed("the sandbox has ended")))
}

impl Use {
    /// Which sandbox.
    pub const fn sandbox(&self) -> SandboxId {
        self.grant.sandbox
    }

    /// What was granted.
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) const fn core(&self) -> &Arc<Core> {
        &self.guard.core
    }

    /// The inside of the sandbox. Wait for its calls with [`Self::within`].
    pub(crate) fn inside(&self) -> &dyn Inside {
        self.sandbox.inside()
    }

    /// Synchronous calls must not act for a use that has ended.
    fn check(&self) -> Result<(), Refusal> {
        self.end_watch.refusal().map_or(Ok(()), Err)
    }

    /// Waits for a call into the sandbox, for as long as the sandbox exists.
    pub(crate) async fn within<T>(
        &self,
        doing: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, Refusal> {
        self.check()?;
        let done = tokio::select! {
            biased;
            done = doing => done,
            refusal = self.end_watch.ended() => return Err(refusal),
        };
        match done {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain_error(error).await),
        }
    }

    /// The refusal that a failure of the runtime means for the caller.
    async fn explain_error(&self, error: RuntimeError) -> Refusal {
        use RuntimeErrorCode as Code;
        let sandbox_ended = matches!(
            error.code,
            Code::SandboxGone | Code::OutOfMemory | Code::LauncherLost | Code::SandboxUnknown
        );
        if sandbox_ended && let Some(refusal) = self.end_reason().await {
            return refusal;
        }
        Refusal::from(error)
    }

    /// What the sandbox may consume.
    pub fn limits(&self) -> Limits {
        self.sandbox.spec().limits
    }

    /// Waits for the harness of the sandbox, for as long as the sandbox exists.
    pub(crate) async fn while_there<T>(
        &self,
        ready: impl Future<Output = Result<T, HarnessError>>,
    ) -> Result<T, Refusal> {
        self.check()?;
        let ready = tokio::select! {
            biased;
            ready = ready => ready,
            refusal = self.end_watch.ended() => return Err(refusal),
        };
        match ready {
            Err(error) if error.code == HarnessErrorCode::SandboxGone => {
                Err(self.end_reason().await.unwrap_or_else(|| error.into()))
            }
            ready => ready.map_err(Refusal::from),
        }
    }

    /// The harness of the sandbox, held for this use, which must be of kind harness. Let it go
    /// before the use ends.
    #[boxed]
    pub async fn hold_harness(&self) -> Result<HeldHarness, Refusal> {
        let core = self.core();
        self.while_there(core.harnesses.hold(core, &self.grant)).await
    }

    /// Why the sandbox has ended, if it has or is about to.
    pub async fn end_reason(&self) -> Option<Refusal> {
        self.end_watch.reason().await
    }

    /// Runs a program until it exits and collects its output.
    pub async fn run(&self, spec: ExecSpec, limits: RunLimits) -> Result<Collected, Refusal> {
        let began = Instant::now();
        let ran = self.within(self.inside().run(spec, limits)).await;
        self.executed(ran.is_ok(), began.elapsed());
        ran
    }

    /// Counts a program that was started here and has exited; `run` counts its own.
    pub fn executed(&self, well: bool, took: Duration) {
        self.guard.core.metrics.executed(well, took);
    }

    /// Starts a program.
    pub async fn exec(&self, spec: ExecSpec) -> Result<Process, Refusal> {
        self.within(self.inside().exec(spec)).await
    }

    /// Waits for the end of a program that was started here.
    pub async fn exit_of(&self, process: &mut Process) -> Result<Exit, Refusal> {
        self.within(process.wait()).await
    }

    /// Opens a file for reading, from `offset` on and at most `length` bytes of it.
    #[boxed]
    pub async fn read_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, Refusal> {
        self.within(self.inside().read_file(path, offset, length)).await
    }

    /// Refuses a key that stores as much as it may.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        self.core().read(|kernel| kernel.refuse_write_above_limit(self.sandbox()))
    }

    /// Begins to write a file, which gets its name when the writer is finished. A key that stores as
    /// much as it may writes none; its programs can still remove files.
    #[boxed]
    pub async fn write_file(&self, path: &str, mode: Option<u32>) -> Result<FileWriter, Refusal> {
        self.check_room()?;
        self.within(self.inside().write_file(path, mode)).await
    }

    /// Gives a completely written file its name.
    #[boxed]
    pub async fn finish_file(&self, writer: FileWriter) -> Result<Entry, Refusal> {
        self.within(writer.finish()).await
    }

    /// Part of a directory, without parts of uploads.
    #[boxed]
    pub async fn list_files(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, Refusal> {
        let mut page = self.within(self.inside().list_files(path, after, limit)).await?;
        while let Some(after) = uploads::hide_place(&mut page) {
            page = self.within(self.inside().list_files(path, Some(&after), limit)).await?;
        }
        Ok(page)
    }

    /// Describes a file, without following a last link.
    #[boxed]
    pub async fn stat(&self, path: &str) -> Result<Entry, Refusal> {
        self.within(self.inside().stat(path)).await
    }

    /// Makes a directory.
    #[boxed]
    pub async fn make_directory(&self, path: &str, parents: bool) -> Result<(), Refusal> {
        self.within(self.inside().make_directory(path, parents)).await
    }

    /// Makes a symbolic link. Where it points is the sandbox's own affair.
    #[boxed]
    pub async fn make_link(&self, path: &str, target: &str) -> Result<(), Refusal> {
        self.within(self.inside().make_link(path, target)).await
    }

    /// Gives a file another name, a hard link.
    #[boxed]
    pub async fn link_file(&self, path: &str, target: &str) -> Result<(), Refusal> {
        self.within(self.inside().link_file(path, target)).await
    }

    /// Changes permissions and the time of the last write (milliseconds since 1970).
    #[boxed]
    pub async fn set_metadata(
        &self,
        path: &str,
        mode: Option<u32>,
        modified_ms: Option<i64>,
    ) -> Result<(), Refusal> {
        self.within(self.inside().set_metadata(path, mode, modified_ms)).await
    }

    /// Renames a file or directory.
    #[boxed]
    pub async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<(), Refusal> {
        self.within(self.inside().move_file(from, to, overwrite)).await
    }

    /// Removes a file, or a directory with everything beneath it if `recursive`.
    #[boxed]
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), Refusal> {
        self.within(self.inside().remove(path, recursive)).await
    }

    /// Looks for files beneath a directory, but not among parts of uploads.
    #[boxed]
    pub async fn find(&self, query: &FindQuery) -> Result<Found, Refusal> {
        let mut query = query.clone();
        query.exclude_directories.push(uploads::PLACE_NAME.to_owned());
        self.within(self.inside().find(&query)).await
    }

    /// Looks for a text in files beneath a directory, but not in parts of uploads.
    #[boxed]
    pub async fn search(&self, query: &SearchQuery) -> Result<Searched, Refusal> {
        let mut query = query.clone();
        query.exclude_directories.push(uploads::PLACE_NAME.to_owned());
        self.within(self.inside().search(&query)).await
    }

    /// Watches a directory; done when the watch is armed.
    #[boxed]
    pub async fn watch(&self, query: &WatchQuery) -> Result<FileWatch, Refusal> {
        self.within(self.inside().watch(query)).await
    }

    /// The next change that a watch reports; none when the watched directory is gone.
    pub async fn next_change(&self, watch: &mut FileWatch) -> Result<Option<FileChange>, Refusal> {
        loop {
            match self.within(watch.next()).await? {
                Some(change) if uploads::is_in_place(&change.path) => {}
                other => return Ok(other),
            }
        }
    }

    /// The ports on which programs in the sandbox listen.
    #[boxed]
    pub async fn ports(&self) -> Result<Vec<Port>, Refusal> {
        self.within(self.inside().ports()).await
    }

    /// Sockets of a program in the sandbox and of all its descendants.
    #[boxed]
    pub async fn sockets(&self, pid: u32) -> Result<Vec<Socket>, Refusal> {
        self.within(self.inside().sockets(pid)).await
    }

    /// Connects to a port in the sandbox. Keep the use for as long as the connection.
    #[boxed]
    pub async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, Refusal> {
        self.within(self.inside().dial(port)).await
    }

    /// Waits until the sandbox has ended, and says why.
    pub async fn wait_for_end(&self) -> Refusal {
        self.end_watch.ended().await
    }

    /// The refusal that an error of a byte stream means for the caller.
    pub async fn explain(&self, error: io::Error) -> Refusal {
        self.explain_error(RuntimeError::from_io("move bytes", error)).await
    }
}

fn crashed(cause: &'static str) -> Refusal {
    Refusal::new(ErrorCode::SandboxCrashed, cause)
}
