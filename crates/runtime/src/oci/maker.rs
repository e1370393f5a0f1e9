//! Makes containers with an OCI program: it writes a bundle and runs the program once. The program
//! leaves the container running, with one end of a socket pair as the guest's connection. A
//! container that loses its guest breaks that connection, so nothing else is watched.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jail::groups::{NodeCaps, cap_together, limit_tcp};
use model::InstanceId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::abilities::Abilities;
use super::bundle::{BundleContext, container_id, describe};
use super::command::{self, Streams};
use super::host_guest::HostGuest;
use super::roots::{self, PreparedRoot, Roots};
use super::run_directory::{Bundle, RunDirectory};
use super::{OciConfig, Program, blocking};
use crate::container::{ContainerExit, MadeContainer, Maker};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::groups::{CpuCounter, Freezer, KillCounter};
use crate::leftovers::Leftovers;
use crate::spec::{Capabilities, LaunchSpec, Reaped};

const STEP: &str = "launch";
/// How long the program may take to make a container.
const MAKE_PATIENCE: Duration = Duration::from_secs(30);

/// Makes containers with one program.
pub(crate) struct OciMaker {
    pub(super) program: Program,
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) run: String,
    pub(super) run_directory: Arc<RunDirectory>,
    pub(super) leftovers: Leftovers,
    abilities: Abilities,
    guest: Arc<HostGuest>,
    roots: Roots,
    oom_score: i32,
    pub(super) known: Mutex<BTreeMap<InstanceId, KnownContainer>>,
}

/// The state of a container while it exists.
pub(super) struct KnownContainer {
    /// The root stays prepared while a container uses it.
    _root: Arc<PreparedRoot>,
    freezer: Option<Arc<Freezer>>,
    kills: Option<KillCounter>,
    cpu: Option<CpuCounter>,
}

impl OciMaker {
    /// Prepares a run. It blocks.
    pub(super) fn prepare(config: &OciConfig, abilities: Abilities) -> std::io::Result<Self> {
        let run_directory = Arc::new(RunDirectory::prepare(config)?);
        let guest = Arc::new(HostGuest::new()?);
        let leftovers = Leftovers::on_this_machine(&run_directory.runs)?;
        let oom_score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        Ok(Self {
            program: config.program,
            path: abilities.path.clone(),
            arguments: config.arguments.clone(),
            run: config.run.clone(),
            roots: Roots::new(config, &run_directory, Arc::clone(&guest)),
            run_directory,
            leftovers,
            abilities,
            guest,
            oom_score: oom_score.trim().parse().unwrap_or(0),
            known: Mutex::default(),
        })
    }

    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<InstanceId, KnownContainer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program's arguments before the verb.
    pub(super) fn before_the_verb(&self) -> Vec<String> {
        let mut words = vec!["--root".to_owned(), self.run_directory.state().display().to_string()];
        words.extend(self.program.needed_arguments().iter().map(|word| (*word).to_owned()));
        words.extend(self.arguments.iter().cloned());
        words
    }

    async fn lay_out(&self, bundle: &Bundle, spec: &LaunchSpec) -> Result<(), RuntimeError> {
        let (bundle, spec) = (bundle.clone(), spec.clone());
        let (program, run, oom_score) = (self.program, self.run.clone(), self.oom_score);
        blocking(STEP, move || {
            bundle.make()?;
            roots::add_mount_points(&bundle.top(), &spec)?;
            let root = bundle.root();
            let Some(root) = root.to_str() else {
                let cause =
                    format!("{} is not valid UTF-8, which a bundle requires", root.display());
                return Err(std::io::Error::other(cause));
            };
            let around = BundleContext { program, run: &run, root, oom_score };
            std::fs::write(bundle.config(), describe(&spec, &around).to_string())
        })
        .await
    }

    /// Makes the program create a container, in a mount namespace that has its root mounted.
    async fn run_program(
        &self,
        bundle: &Bundle,
        instance: InstanceId,
        root: &PreparedRoot,
        connection: OwnedFd,
    ) -> Result<(), RuntimeError> {
        let mut command = self.guest.command();
        command.args(["bundle", "start"]).arg(&bundle.path);
        let top = bundle.top();
        for layer in std::iter::once(&top).chain(&root.layers) {
            command.arg("layer").arg(layer);
        }
        for (at, path) in &root.parts {
            command.arg("part").arg(at).arg(path);
        }
        for path in &self.abilities.without {
            command.arg("without").arg(path);
        }
        if self.program.begins_in_a_network() {
            command.arg("network");
        }
        command.arg("--").arg(&self.path).args(self.before_the_verb());
        command.args(["run", "--detach", "--bundle"]).arg(&bundle.path);
        command.arg("--pid-file").arg(bundle.pid_file());
        command.arg(container_id(&self.run, instance));
        let output = bundle.output();
        let streams = Streams { input: Some(connection), output: Some(&output) };
        command::run(command, streams, STEP, MAKE_PATIENCE).await
    }

    async fn make_one(&self, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError> {
        let instance = spec.instance;
        let root = self.roots.prepared(&spec.root).await?;
        let kept =
            KnownContainer { _root: Arc::clone(&root), freezer: None, kills: None, cpu: None };
        self.known().insert(instance, kept);
        let bundle = self.run_directory.bundle(instance);
        self.lay_out(&bundle, spec).await?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| RuntimeError::system("make a connection", &error.into()))?;
        self.run_program(&bundle, instance, &root, theirs).await?;
        let (leftovers, run) = (self.leftovers.clone(), self.run.clone());
        let memory_bytes = u64::from(spec.limits.memory_mb) << 20;
        let (groups, pid) = blocking(STEP, move || {
            let pid = std::fs::read_to_string(bundle.pid_file())?.trim().parse();
            let groups = leftovers.groups_of(&run, &instance.to_string());
            limit_what_programs_do_not(&groups, memory_bytes)?;
            Ok((groups, pid.ok()))
        })
        .await?;
        if let Some(known) = self.known().get_mut(&instance) {
            known.freezer = freezes(&groups).map(|group| Arc::new(Freezer::new(group)));
            known.cpu = CpuCounter::among(groups.iter().map(PathBuf::as_path));
            known.kills = counts_kills(&groups).map(|group| KillCounter::new(group, 0));
        }
        let seen = self.program.shares_our_kernel();
        Ok(MadeContainer {
            link: ours,
            passes_descriptors: seen,
            container_id: container_id(&self.run, instance),
            pid: pid.filter(|_| seen),
        })
    }

    fn freezer(
        &self,
        instance: InstanceId,
        step: &'static str,
    ) -> Result<Arc<Freezer>, RuntimeError> {
        let gone = || {
            let cause = "the container is gone";
            RuntimeError::new(RuntimeErrorCode::SandboxGone, step, cause)
        };
        let unable = || {
            let cause = "this machine has no control group that can freeze sandboxes";
            RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause)
        };
        let known = self.known();
        known.get(&instance).ok_or_else(gone)?.freezer.clone().ok_or_else(unable)
    }
}

/// Limits what no OCI program does: TCP buffers where the memory limit does not count them, and all
/// containers together.
fn limit_what_programs_do_not(groups: &[PathBuf], memory_bytes: u64) -> std::io::Result<()> {
    let caps = NodeCaps::of_machine();
    for group in groups {
        limit_tcp(group, memory_bytes)?;
        if let Some(run) = group.parent() {
            cap_together(run, caps);
        }
    }
    Ok(())
}

fn freezes(groups: &[PathBuf]) -> Option<&PathBuf> {
    // On machines with both cgroup generations not every program uses v2.
    let with = |file: &str| groups.iter().find(|group| group.join(file).exists());
    with("freezer.state").or_else(|| with("cgroup.freeze"))
}

fn counts_kills(groups: &[PathBuf]) -> Option<&Path> {
    let has = |group: &&PathBuf| {
        ["memory.oom_control", "memory.events"].iter().any(|file| group.join(file).exists())
    };
    groups.iter().find(has).map(PathBuf::as_path)
}

#[async_trait]
impl Maker for OciMaker {
    fn capabilities(&self) -> Capabilities {
        self.abilities.capabilities
    }

    fn renewable(&self) -> bool {
        self.program.shares_our_kernel()
    }

    fn why_no_network(&self) -> &'static str {
        if self.program.shares_our_kernel() {
            "the keeper did not start: the server needs CAP_SYS_ADMIN, CAP_SYS_PTRACE and \
             CAP_NET_ADMIN on this machine"
        } else {
            "gVisor has a network of its own inside, which no policy of ours reaches: use another \
             runtime"
        }
    }

    fn check(&self, spec: &LaunchSpec) -> Result<(), RuntimeError> {
        roots::check(&spec.root)
    }

    async fn make(&self, spec: &LaunchSpec) -> Result<MadeContainer, RuntimeError> {
        match self.make_one(spec).await {
            Ok(made) => Ok(made),
            Err(error) => {
                // If that fails, the caller removes the container again.
                let _ = self.remove(spec.instance).await;
                Err(error)
            }
        }
    }

    async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.remove_container(instance).await
    }

    async fn freeze(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.freezer(instance, "freeze")?.freeze().await
    }

    async fn thaw(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        self.freezer(instance, "thaw")?.thaw()
    }

    fn memory_ran_out(&self, instance: InstanceId) -> bool {
        let known = self.known();
        let kills = known.get(&instance).and_then(|known| known.kills.as_ref());
        kills.is_some_and(KillCounter::has_grown)
    }

    fn cpu_time(&self, instance: InstanceId) -> Option<Duration> {
        let counter = self.known().get(&instance)?.cpu.clone()?;
        counter.read()
    }

    async fn end(&self, instance: InstanceId) -> ContainerExit {
        // The container is not our child process, so its exit status is unknown.
        ContainerExit { status: None, out_of_memory: self.memory_ran_out(instance) }
    }

    async fn next_dead(&self) -> InstanceId {
        std::future::pending().await
    }

    async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        let run_directory = Arc::clone(&self.run_directory);
        blocking("list", move || run_directory.instances()).await
    }

    async fn reap_orphans(&self) -> Result<Reaped, RuntimeError> {
        self.reap().await
    }

    async fn close(&self) -> Result<(), RuntimeError> {
        self.remove_run().await
    }
}
