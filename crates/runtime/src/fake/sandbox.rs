//! A sandbox of the fake runtime: files in a map, programs as tasks. Once it has exited it refuses
//! every call, as a real one does.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use guest_protocol::message::{Entry, ExitStatus};
use model::{ClaimSettings, WorkspaceId};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::World;
use super::faults::{Fault, Operation};
use super::network::FakeNetwork;
use super::paths::{Last, resolve};
use super::process::{Counted, FakeProcess};
use super::scale::{SCALE_FILE, Scale};
use super::test_programs::FakeProgram;
use super::tree::Tree;
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::files::FileSink;
use crate::spec::LaunchSpec;

/// How long a request waits for an answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// What fits into a pipe.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;

/// Connections that may wait to be accepted.
const BACKLOG: usize = 16;

const WORKSPACE: &str = "/workspace";

/// Whether anything can happen in it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Phase {
    pub frozen: bool,
    pub ended: Option<Died>,
}

/// Where a program listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Port(u16),
    Path(String),
}

/// A sandbox.
pub(crate) struct FakeSandbox {
    pub spec: LaunchSpec,
    pub world: Weak<World>,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub env: BTreeMap<String, String>,
    pub root: Tree,
    pub workspace: Arc<Mutex<Tree>>,
    pub processes: Vec<Arc<FakeProcess>>,
    /// The listening program, and the way to it.
    pub listeners: BTreeMap<Address, (u32, mpsc::Sender<DuplexStream>)>,
    pub last_pid: u32,
    pub scale: Scale,
    /// How many times it was wiped: streams of an earlier use are refused.
    pub generation: u64,
    /// Whether its last wipe, if any, was complete.
    pub wipe_complete: bool,
    /// What it was armed with.
    pub network: Option<FakeNetwork>,
}

impl FakeSandbox {
    pub(crate) fn new(
        spec: LaunchSpec,
        world: Weak<World>,
        workspace: Option<Arc<Mutex<Tree>>>,
    ) -> Self {
        let workspace = workspace.unwrap_or_else(|| empty_workspace(&spec));
        let root = empty_root(&spec);
        let state = State {
            env: BTreeMap::new(),
            root,
            workspace,
            processes: Vec::new(),
            listeners: BTreeMap::new(),
            last_pid: 1,
            scale: Scale::default(),
            generation: 0,
            wipe_complete: true,
            network: None,
        };
        let phase = watch::Sender::new(Phase::default());
        Self { spec, world, phase, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.phase.send_modify(|phase| phase.frozen = frozen);
    }

    /// Waits until its programs may run.
    pub(crate) async fn thawed(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as the sandbox does.
        let _ = phase.wait_for(|phase| !phase.frozen || phase.ended.is_some()).await;
    }

    /// Waits until it has exited, and returns how.
    pub(crate) async fn wait_exited(&self) -> Died {
        let mut phase = self.phase.subscribe();
        loop {
            let ended = phase.borrow_and_update().ended;
            match ended {
                Some(died) => return died,
                // The sender lives as long as the sandbox does.
                None => drop(phase.changed().await),
            }
        }
    }

    /// Refuses if it has exited.
    pub(crate) fn check(&self, step: &'static str) -> Result<(), RuntimeError> {
        self.phase().ended.map_or(Ok(()), |died| Err(died.error(step)))
    }

    /// What every request goes through: faults, and waiting while it is frozen.
    pub(crate) async fn enter(&self, operation: Operation) -> Result<(), RuntimeError> {
        self.meet_faults(operation).await?;
        let step = operation.step();
        timeout(REQUEST_TIMEOUT, self.thawed()).await.map_err(|_| RuntimeError::deadline(step))?;
        self.check(step)
    }

    /// Injected faults happen here.
    pub(crate) async fn meet_faults(&self, operation: Operation) -> Result<(), RuntimeError> {
        let step = operation.step();
        self.check(step)?;
        // A real answer takes time; at this await the caller may be dropped.
        tokio::task::yield_now().await;
        match self.world.upgrade().and_then(|world| world.take_fault(operation)) {
            None => {}
            Some(Fault::Fail(error)) => return Err(error),
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::Die { out_of_memory }) => {
                self.die(Some(ExitStatus::Signal(9)), out_of_memory);
            }
            Some(Fault::Hang) => {
                let mut phase = self.phase.subscribe();
                let over = phase.wait_for(|phase| phase.ended.is_some());
                if timeout(REQUEST_TIMEOUT, over).await.is_err() {
                    return Err(RuntimeError::deadline(step));
                }
            }
        }
        self.check(step)
    }

    /// It exits. The first call wakes waiting callers and reports the death to subscribers.
    pub(crate) fn die(&self, status: Option<ExitStatus>, out_of_memory: bool) {
        let died = Died::alone(self.spec.instance, status, out_of_memory);
        let first = self.phase.send_if_modified(|phase| {
            let first = phase.ended.is_none();
            phase.ended.get_or_insert(died);
            first
        });
        if !first {
            return;
        }
        let processes = {
            let mut state = self.state();
            state.listeners.clear();
            std::mem::take(&mut state.processes)
        };
        for process in &processes {
            process.finish_tree(Err(died.error("exec")));
        }
        // Kept until they are gone, because a kill waits for that.
        self.state().processes = processes;
        if let Some(world) = self.world.upgrade() {
            world.remove_dead(died);
        }
    }

    /// Waits until no task of it is left.
    pub(crate) async fn vanished(&self) {
        let processes = self.state().processes.clone();
        for process in processes {
            process.vanished().await;
        }
    }

    /// Binds settings, and perhaps a workspace.
    pub(crate) fn bind(
        &self,
        settings: &ClaimSettings,
        workspace: Option<WorkspaceId>,
    ) -> Result<(), RuntimeError> {
        check_settings(settings)?;
        let tree = match workspace {
            None => None,
            Some(id) => Some(
                self.world.upgrade().and_then(|world| world.workspace(id)).ok_or_else(|| {
                    RuntimeError::new(
                        RuntimeErrorCode::SandboxUnknown,
                        "attach a workspace",
                        format!("no workspace {id}"),
                    )
                })?,
            ),
        };
        let mut state = self.state();
        state.env.clone_from(&settings.env);
        if let Some(tree) = tree {
            state.workspace = tree;
        }
        Ok(())
    }

    /// Does something with the files that a path belongs to.
    pub(crate) fn with_tree<T>(&self, path: &str, act: impl FnOnce(&mut Tree) -> T) -> T {
        let mut state = self.state();
        if path == WORKSPACE || path.starts_with("/workspace/") {
            let workspace = Arc::clone(&state.workspace);
            drop(state);
            let mut tree = workspace.lock().unwrap_or_else(PoisonError::into_inner);
            act(&mut tree)
        } else {
            act(&mut state.root)
        }
    }

    /// Where a path leads.
    pub(crate) fn place(&self, cwd: &str, path: &str, last: Last) -> Result<String, RuntimeError> {
        resolve(&|place| self.with_tree(place, |tree| tree.look(place)), cwd, path, last)
    }

    /// What a program finds in a file.
    pub(crate) fn contents(&self, cwd: &str, path: &str) -> Result<Vec<u8>, RuntimeError> {
        let path = self.place(cwd, path, Last::Follow)?;
        if path == SCALE_FILE {
            return Ok(self.state().scale.shown());
        }
        Ok(self.with_tree(&path, |tree| tree.read(&path))?.1)
    }

    /// A program writes a file.
    pub(crate) fn append(
        &self,
        cwd: &str,
        path: &str,
        mut bytes: Vec<u8>,
        append: bool,
    ) -> Result<(), RuntimeError> {
        let path = self.place(cwd, path, Last::Follow)?;
        if path == SCALE_FILE {
            self.write_scale(&bytes);
            return Ok(());
        }
        self.with_tree(&path, |tree| {
            if append && let Ok((_, mut old)) = tree.read(&path) {
                old.append(&mut bytes);
                bytes = old;
            }
            tree.write(&path, bytes, None, false).map(|_| ())
        })
    }

    /// A program removes a file.
    pub(crate) fn remove_path(&self, cwd: &str, path: &str) -> Result<(), RuntimeError> {
        let path = self.place(cwd, path, Last::Keep)?;
        self.with_tree(&path, |tree| tree.remove(&path, false))
    }

    /// A program that a test has added.
    pub(crate) fn added(&self, name: &str) -> Option<Arc<dyn FakeProgram>> {
        self.world.upgrade()?.state().test_programs.get(name).map(Arc::clone)
    }

    /// A program listens at an address, if it is free.
    pub(crate) fn listen(self: &Arc<Self>, pid: u32, address: Address) -> Option<Listener> {
        let mut state = self.state();
        if state.listeners.contains_key(&address) {
            return None;
        }
        let (sender, connections) = mpsc::channel(BACKLOG);
        state.listeners.insert(address.clone(), (pid, sender));
        Some(Listener { sandbox: Arc::downgrade(self), address, connections })
    }

    /// Connects to the program that listens at an address.
    pub(crate) fn connect(
        self: &Arc<Self>,
        address: &Address,
    ) -> Result<Stream<DuplexStream>, RuntimeError> {
        let refuse = |code, cause| Err(RuntimeError::new(code, "dial", cause));
        let listener = self.state().listeners.get(address).cloned();
        let Some((_, listener)) = listener else {
            return refuse(RuntimeErrorCode::NotFound, "no program listens there");
        };
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        if listener.try_send(theirs).is_err() {
            return refuse(RuntimeErrorCode::LimitReached, "the program accepts no connections");
        }
        Ok(self.counted(ours))
    }

    /// Counts a stream of this sandbox while it exists.
    pub(crate) fn counted<S>(self: &Arc<Self>, stream: S) -> Stream<S> {
        let counter = self.world.upgrade().map(|world| Arc::clone(&world.streams));
        let counted = counter.map(|counter| Counted::in_each(&[&counter]));
        let generation = self.state().generation;
        Stream { sandbox: Arc::clone(self), generation, stream, _counted: counted }
    }
}

/// What there is besides the workspace.
pub(crate) fn empty_root(spec: &LaunchSpec) -> Tree {
    let scratch_bytes = u64::from(spec.limits.memory_mb) << 20;
    let mut root = Tree::new(&["/", "/etc", "/tmp", "/usr"], scratch_bytes);
    for name in &spec.aliases {
        // A name that is taken was refused before.
        let _ = root.make_link(&format!("/{name}"), WORKSPACE);
    }
    root
}

/// An empty workspace in memory.
pub(crate) fn empty_workspace(spec: &LaunchSpec) -> Arc<Mutex<Tree>> {
    let bytes = u64::from(spec.limits.workspace_mb) << 20;
    Arc::new(Mutex::new(Tree::new(&[WORKSPACE], bytes)))
}

/// Refuses settings that would silently not be applied.
pub(crate) fn check_settings(settings: &ClaimSettings) -> Result<(), RuntimeError> {
    crate::claim::environment(settings).map(drop)
}

/// Where a program listens, for as long as this exists.
pub struct Listener {
    sandbox: Weak<FakeSandbox>,
    address: Address,
    connections: mpsc::Receiver<DuplexStream>,
}

impl Listener {
    /// The next that connects.
    pub async fn accept(&mut self) -> Option<DuplexStream> {
        self.connections.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(sandbox) = self.sandbox.upgrade() {
            sandbox.state().listeners.remove(&self.address);
        }
    }
}

/// Bytes to or from a sandbox: counted, and broken when the sandbox has exited.
pub(crate) struct Stream<S> {
    sandbox: Arc<FakeSandbox>,
    generation: u64,
    stream: S,
    _counted: Option<Counted>,
}

impl<S> Stream<S> {
    /// Refuses if the sandbox has exited, or the use that this stream belongs to has ended.
    fn check(&self, step: &'static str) -> Result<(), RuntimeError> {
        self.sandbox.check(step)?;
        if self.sandbox.state().generation == self.generation {
            return Ok(());
        }
        Err(RuntimeError::new(
            RuntimeErrorCode::SandboxGone,
            step,
            "the use of the sandbox has ended",
        ))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check("read").map_err(RuntimeError::into_io)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check("write").map_err(RuntimeError::into_io)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A file that is being written.
pub(crate) struct NewFile {
    pub path: String,
    pub mode: Option<u32>,
    pub bytes: Vec<u8>,
}

impl FileSink for Stream<NewFile> {
    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<Entry, RuntimeError>> {
        self.check("write a file")?;
        let NewFile { path, mode, bytes } = &mut self.stream;
        let bytes = std::mem::take(bytes);
        Poll::Ready(self.sandbox.with_tree(path, |tree| tree.write(path, bytes, *mode, true)))
    }
}

impl AsyncWrite for NewFile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bytes.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
