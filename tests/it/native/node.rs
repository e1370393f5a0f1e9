//! What the tests stand on: a native runtime of their own, with a run directory of its own, so that
//! tests beside each other never meet.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use model::template::WorkspaceLimit;
use model::{InstanceId, Limits, Template, TemplateName, WorkspaceId};
use runtime::native::{Native, NativeConfig};
use runtime::{Collected, ExecSpec, LaunchSpec, Root, RunLimits, Runtime as _, Sandbox, Users};
use rustix::process::{Pid, Signal, kill_process};
use workspaces::{Size, Workspaces};

/// The name of the only template.
const TEMPLATE: &str = "default";

/// Nothing in these tests takes as long, whatever else the machine does.
const PATIENCE: Duration = Duration::from_secs(50);

static NODES: AtomicU64 = AtomicU64::new(0);
static INSTANCES: AtomicU64 = AtomicU64::new(1);

/// A runtime for one test.
pub(crate) struct Node {
    native: Arc<Native>,
    directory: PathBuf,
    run: String,
    users: Users,
    _own_users: OwnUsers,
}

/// Says in which mode a node must be, when tests run in more than one: see [`name_of`].
pub(crate) const USERS: &str = "SHOAL_TEST_USERS";

/// How a mode is called: as root, without root but with subordinate users, and with neither.
pub(crate) fn name_of(users: Users) -> &'static str {
    match users {
        Users::Ranges => "ranges",
        Users::Subordinate => "subordinate",
        Users::Alone => "alone",
    }
}

/// Runs a test on a node of its own, or says why not. That nothing is left at the end is part of
/// every test.
pub(crate) fn on_node(
    change: impl FnOnce(&mut NativeConfig),
    test: impl AsyncFnOnce(&Node) -> Result<()>,
) -> Result<()> {
    on_node_within(slowed(PATIENCE), change, test)
}

/// The same for a test that takes longer than others.
pub(crate) fn on_node_within(
    patience: Duration,
    change: impl FnOnce(&mut NativeConfig),
    test: impl AsyncFnOnce(&Node) -> Result<()>,
) -> Result<()> {
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    tokio.block_on(async {
        let node = Node::start(change).await?;
        let outcome = tokio::time::timeout(patience, test(&node))
            .await
            .unwrap_or_else(|_| bail!("the test took longer than {patience:?}"));
        let ended = node.end().await;
        outcome.and(ended)
    })
}

/// Whether a tool is there that a test needs; if not, says so.
pub(crate) fn needs(tool: &str) -> Result<bool> {
    if Path::new(tool).exists() {
        return Ok(true);
    }
    skip(&format!("no {tool}")).map(|()| false)
}

/// A wait, on a machine that is so many times slower than others.
pub(crate) fn slowed(wait: Duration) -> Duration {
    let slowness = std::env::var("TEST_SLOWNESS").ok().and_then(|text| text.parse().ok());
    wait * slowness.unwrap_or(1)
}

/// Users of the host that no other node of any test has while this value lives: the kernel counts
/// by user, and a neighbour's test may use up what it counts.
struct OwnUsers {
    number: u32,
    /// The kernel gives an address to one socket only, and frees it when the process ends.
    _claimed: UnixDatagram,
}

impl OwnUsers {
    /// Servers and nodes with very many slots have the usual users, so these begin behind them.
    const NUMBERS: std::ops::Range<u32> = 1..32;
    const SLOTS: u32 = 1000;

    fn claim() -> Result<Self> {
        for number in Self::NUMBERS {
            let address = SocketAddr::from_abstract_name(format!("shoal-test-users-{number}"))?;
            match UnixDatagram::bind_addr(&address) {
                Ok(claimed) => return Ok(Self { number, _claimed: claimed }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).context("cannot claim users"),
            }
        }
        bail!("all users are claimed by other nodes of tests")
    }

    fn first(&self, usual: u32) -> u32 {
        usual + self.number * (Self::SLOTS << 16)
    }
}

/// Says loudly that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stderr, reason = "readers of the test output must see it")]
pub(crate) fn skip(reason: &str) -> Result<()> {
    ensure!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    eprintln!("!!!! skipped: {reason} !!!!");
    Ok(())
}

impl Node {
    async fn start(change: impl FnOnce(&mut NativeConfig)) -> Result<Self> {
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let name = format!("shoal-test-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("workspaces"))?;
        let mut config = NativeConfig::new(&directory);
        config.workspaces = Some(directory.join("workspaces"));
        std::fs::create_dir_all(directory.join("roots"))?;
        config.directories = vec![directory.join("roots")];
        let wanted = std::env::var(USERS).ok();
        config.subordinate_users = wanted.as_deref() != Some("alone");
        config.spares = 2;
        change(&mut config);
        let own_users = OwnUsers::claim()?;
        if config.slots <= OwnUsers::SLOTS {
            config.uid_base = own_users.first(config.uid_base);
        }
        let run = config.run.clone();
        let native = Arc::new(Native::start(config).await?);
        let users = native.capabilities().users;
        let as_wanted = wanted.as_deref().is_none_or(|wanted| wanted == name_of(users));
        ensure!(as_wanted, "sandboxes have users of the kind {users:?}, not {wanted:?}");
        Ok(Self { native, directory, run, users, _own_users: own_users })
    }

    /// Ends it, and looks whether anything is left.
    async fn end(self) -> Result<()> {
        // A launcher that a test has killed cannot say goodbye.
        let _ = self.native.shutdown().await;
        self.clean().await?;
        self.remove_directory().await
    }

    /// Removes the node's directory. A thread that prepares disk images may still be creating its
    /// last one there, so a directory that is not empty is tried again.
    async fn remove_directory(&self) -> Result<()> {
        let mut removed = std::fs::remove_dir_all(&self.directory);
        for _ in 0..100 {
            match &removed {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                Err(_) | Ok(()) => break,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            removed = std::fs::remove_dir_all(&self.directory);
        }
        Ok(removed?)
    }

    /// Removes what a dead launcher left; afterwards there is nothing of this node.
    pub(crate) async fn clean(&self) -> Result<()> {
        let reaped = self.native.reap_orphans().await?;
        ensure!(reaped.stuck.is_empty(), "{:?}", reaped.stuck);
        for _ in 0..500 {
            if self.remains()?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.native.reap_orphans().await?;
        }
        bail!("left behind: {:?}", self.remains()?)
    }

    /// Processes, control groups and mounts of this node, if its launcher is dead.
    fn remains(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        if Path::new(&format!("/proc/{}", self.native.launcher_pid())).exists() {
            let comm =
                std::fs::read_to_string(format!("/proc/{}/comm", self.native.launcher_pid()));
            if comm.is_ok_and(|comm| comm.trim() == "shoal-launcher") {
                return Ok(found);
            }
        }
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let groups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            if groups.contains(&self.run) {
                found.push(format!("process {}", entry.file_name().display()));
            }
        }
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            for place in [hierarchy.path().join("shoal"), PathBuf::from("/sys/fs/cgroup/shoal")] {
                if place.join(&self.run).exists() {
                    found.push(format!("control group {}", place.display()));
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let ours = self.directory.to_string_lossy().into_owned();
        found.extend(mounts.lines().filter(|line| line.contains(&ours)).map(str::to_owned));
        Ok(found)
    }

    /// Waits until no sandbox exists.
    pub(crate) async fn until_empty(&self) -> Result<()> {
        for _ in 0..500 {
            if self.native.list().await?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("still there: {:?}", self.native.list().await?)
    }

    /// Waits until the launcher has a prefork, or makes one.
    pub(crate) async fn until_spare(&self) -> Result<()> {
        // A prefork has the process name of the guest that it becomes.
        let of_spare = format!("(shoal-guest) S {} ", self.launcher());
        for _ in 0..500 {
            for entry in std::fs::read_dir("/proc")?.flatten() {
                let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
                if stat.contains(&of_spare) {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("the launcher has no prefork")
    }

    pub(crate) fn native(&self) -> Arc<Native> {
        Arc::clone(&self.native)
    }

    /// What everything of it is called.
    pub(crate) fn name(&self) -> &str {
        &self.run
    }

    /// Whose the users of its sandboxes are, which is what its modes differ in.
    pub(crate) fn users(&self) -> Users {
        self.users
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The workspaces on disk, as a server has them.
    pub(crate) fn disk(&self) -> Result<Workspaces> {
        Ok(Workspaces::open(self.workspaces())?)
    }

    /// Makes an empty workspace on disk.
    pub(crate) fn make_workspace(&self, workspace: WorkspaceId) -> Result<()> {
        Ok(self.disk()?.create(workspace, Size::SMALLEST, WorkspaceLimit::Soft, 0)?)
    }

    pub(crate) fn workspaces(&self) -> PathBuf {
        self.directory.join("workspaces")
    }

    /// An id that nothing else has.
    #[expect(clippy::unused_self, reason = "instances belong to a node")]
    pub(crate) fn instance(&self) -> InstanceId {
        let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
        InstanceId::from_u128(u128::from(std::process::id()) << 64 | u128::from(number))
    }

    /// What to launch if nothing about it matters.
    pub(crate) fn spec(&self) -> LaunchSpec {
        let name = TemplateName::new(TEMPLATE).expect("it is a name");
        let spec = LaunchSpec::of(&Template::named(name), self.instance());
        LaunchSpec { limits: self.possible(spec.limits), ..spec }
    }

    /// Limits as far as they can be enforced here. Root can enforce all.
    fn possible(&self, limits: Limits) -> Limits {
        Limits { best_effort: self.users != Users::Ranges, ..limits }
    }

    pub(crate) async fn sandbox(&self) -> Result<Arc<dyn Sandbox>> {
        Ok(self.native.launch(self.spec()).await?)
    }

    pub(crate) async fn sandbox_with(&self, limits: Limits) -> Result<Arc<dyn Sandbox>> {
        let limits = self.possible(limits);
        Ok(self.native.launch(LaunchSpec { limits, ..self.spec() }).await?)
    }

    /// Where root filesystems are that are directories.
    pub(crate) fn root_directories(&self) -> PathBuf {
        self.directory.join("roots")
    }

    /// A sandbox whose root filesystem is one of those.
    pub(crate) async fn sandbox_from(&self, root: &str) -> Result<Arc<dyn Sandbox>> {
        let spec = LaunchSpec { root: Root::Directory(root.to_owned()), ..self.spec() };
        Ok(self.native.launch(spec).await?)
    }

    pub(crate) async fn run(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        spec: ExecSpec,
    ) -> Result<Collected> {
        let timeout = slowed(Duration::from_secs(40));
        let limits = RunLimits { output_bytes: 1 << 20, timeout };
        Ok(sandbox.inside().run(spec, limits).await?)
    }

    /// Runs a line of the shell.
    pub(crate) async fn sh(&self, sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<Collected> {
        self.run(sandbox, ExecSpec::shell(line)).await
    }

    /// Runs a Python program that must succeed, and returns what it says.
    pub(crate) async fn python(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        program: &str,
        arguments: &[&str],
    ) -> Result<String> {
        let mut argv = vec!["/usr/bin/python3", "-c", program];
        argv.extend(arguments);
        let ran = self.run(sandbox, ExecSpec::argv(argv)).await?;
        let stderr = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.exit.success(), "{:?}: {stderr}", ran.exit);
        Ok(String::from_utf8(ran.stdout)?)
    }

    /// The first process of a sandbox, as the host sees it.
    pub(crate) fn guest_of(&self, sandbox: &Arc<dyn Sandbox>) -> Result<u32> {
        self.native.guest_pid(sandbox.instance()).context("a sandbox has a first process")
    }

    pub(crate) fn launcher(&self) -> u32 {
        self.native.launcher_pid()
    }
}

/// Kills a process of ours with SIGKILL. It may have ended already.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Numbers that look random and are the same each time.
pub(crate) fn dice(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    }
}
