//! What a program is told about a container: one description for all of them, made from a spec, purely.
//! It is as narrow as what native sandboxes have: a user without capabilities, a root that nobody
//! writes to, the places that every container has, and no network but loopback. The filter of system
//! calls is not in here: the guest loads the one that all sandboxes have.

use std::path::Path;

use jail::plan::{DESCRIPTORS, MASKED, READ_ONLY, USER, WORKSPACE};
use model::{InstanceId, Limits};
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Linux, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpuBuilder,
    LinuxDeviceCgroupBuilder, LinuxMemoryBuilder, LinuxNamespace, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder, Mount,
    MountBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process, ProcessBuilder,
    RootBuilder, Spec, SpecBuilder, UserBuilder,
};
use rustix::process::{Resource, getrlimit};

use super::Program;
use crate::container::{GUEST_PATH, Place, places};
use crate::spec::LaunchSpec;

/// What a bundle says it is written for: what all of them know.
const VERSION: &str = "1.0.2";

const MIB: i64 = 1 << 20;
/// How long the time is of which a container may use a part.
const CPU_PERIOD_US: u64 = 100_000;
/// A file of its own takes at least this much of a place.
const BYTES_PER_INODE: u64 = 4096;
const INODES_MIN: u64 = 1024;
/// What a program that counts processes itself needs on the host for each, and besides.
const HOSTS_EACH: u64 = 4;
const HOSTS_BESIDES: u64 = 256;

/// What the description depends on besides the spec.
#[derive(Debug, Clone)]
pub(super) struct Surroundings<'a> {
    pub(super) program: Program,
    /// The run that the container belongs to.
    pub(super) run: &'a str,
    /// Where its root is.
    pub(super) root: &'a Path,
    /// How likely we are to be killed when memory runs out, as the kernel counts it.
    pub(super) oom_score: i32,
}

/// What an instance of a run is called.
pub(super) fn container_id(run: &str, instance: InstanceId) -> String {
    format!("shoal-{run}-{instance}")
}

/// Describes a container.
pub(super) fn describe(spec: &LaunchSpec, around: &Surroundings<'_>) -> Result<Spec, OciSpecError> {
    // It is mounted for reading only already, without devices and ids to set.
    let read_only = !around.program.keeps_the_root_as_mounted();
    let root = RootBuilder::default().path(around.root).readonly(read_only).build()?;
    SpecBuilder::default()
        .version(VERSION)
        .root(root)
        .hostname(hostname(spec.instance))
        .process(process(spec, around)?)
        .mounts(mounts(spec, around.program)?)
        .linux(linux(spec, around)?)
        .build()
}

fn hostname(instance: InstanceId) -> String {
    // The first bytes of an id are its time, which neighbours share.
    format!("shoal-{:08x}", instance.as_u128() as u32)
}

fn process(spec: &LaunchSpec, around: &Surroundings<'_>) -> Result<Process, OciSpecError> {
    let none = Capabilities::default;
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(none())
        .effective(none())
        .inheritable(none())
        .permitted(none())
        .ambient(none())
        .build()?;
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(USER).gid(USER).umask(0o022_u32).build()?)
        .args([GUEST_PATH, "contained", "stdin"].map(str::to_owned))
        .env(["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()])
        .cwd(WORKSPACE)
        .capabilities(capabilities)
        .rlimits(limits_of_processes(&spec.limits, around.program)?)
        .no_new_privileges(true);
    // Whoever is spared when memory runs out must not have sandboxes that are. To be spared more than
    // before is not for everybody to ask for.
    let process = if around.oom_score < 0 { process.oom_score_adj(0) } else { process };
    process.build()
}

/// The same as native sandboxes have, as far as we have it ourselves.
fn limits_of_processes(
    limits: &Limits,
    program: Program,
) -> Result<Vec<PosixRlimit>, OciSpecError> {
    use PosixRlimitType::{
        RlimitCore, RlimitMemlock, RlimitMsgqueue, RlimitNice, RlimitNofile, RlimitNproc,
        RlimitRtprio, RlimitSigpending,
    };
    let counted = program.counts_processes().then(|| (RlimitNproc, processes(limits)));
    // One byte: too little for a file, and the only value at which nothing is piped to a program of
    // the host either.
    let fixed = [(RlimitCore, 1), (RlimitNice, 0), (RlimitRtprio, 0)];
    let bounded = [
        (RlimitNofile, Resource::Nofile, DESCRIPTORS),
        (RlimitMsgqueue, Resource::Msgqueue, 819_200),
        (RlimitSigpending, Resource::Sigpending, 4096),
        (RlimitMemlock, Resource::Memlock, 8 << 20),
    ];
    let bounded = bounded.into_iter().map(|(kind, resource, most)| {
        (kind, getrlimit(resource).maximum.map_or(most, |now| now.min(most)))
    });
    let limit = |(kind, value): (PosixRlimitType, u64)| {
        PosixRlimitBuilder::default().typ(kind).hard(value).soft(value).build()
    };
    fixed.into_iter().chain(bounded).chain(counted).map(limit).collect()
}

fn mount(
    path: &str,
    kind: &str,
    source: &str,
    options: impl IntoIterator<Item = String>,
) -> Result<Mount, OciSpecError> {
    MountBuilder::default()
        .destination(path)
        .typ(kind)
        .source(source)
        .options(options.into_iter().collect::<Vec<_>>())
        .build()
}

fn mounts(spec: &LaunchSpec, program: Program) -> Result<Vec<Mount>, OciSpecError> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let proc = words(&["nosuid", "noexec", "nodev"]);
    let mut devices = words(&["nosuid", "noexec", "strictatime", "mode=755", "size=65536"]);
    // gVisor's devices cannot be written to where the directory cannot.
    if program.shares_our_kernel() {
        devices.push("ro".to_owned());
    }
    let terminals = words(&[
        "nosuid",
        "noexec",
        "newinstance",
        "ptmxmode=0666",
        "mode=0620",
        "gid=5",
        "max=32",
    ]);
    let mut all = vec![
        mount("/proc", "proc", "proc", proc)?,
        mount("/dev", "tmpfs", "tmpfs", devices)?,
        mount("/dev/pts", "devpts", "devpts", terminals)?,
    ];
    for place in places(spec) {
        all.push(mount(place.path, "tmpfs", "tmpfs", options_of(&place, program))?);
    }
    for shown in &spec.mounts {
        let access = if shown.read_only { "ro" } else { "rw" };
        let options = words(&["bind", access, "nosuid", "nodev", "private"]);
        all.push(mount(&shown.path, "bind", &shown.host_path, options)?);
    }
    Ok(all)
}

fn options_of(place: &Place, program: Program) -> Vec<String> {
    let mut options = vec![
        "nosuid".to_owned(),
        "nodev".to_owned(),
        format!("mode={:o}", place.mode),
        format!("size={}", place.bytes),
        format!("uid={}", place.uid),
        format!("gid={}", place.uid),
    ];
    // An inode costs the kernel memory too. gVisor's are its own, and it knows no such option.
    if program.shares_our_kernel() {
        options.push(format!("nr_inodes={}", (place.bytes / BYTES_PER_INODE).max(INODES_MIN)));
    }
    if place.no_programs {
        options.push("noexec".to_owned());
    }
    options
}

fn linux(spec: &LaunchSpec, around: &Surroundings<'_>) -> Result<Linux, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, Uts};
    let kinds = [Some(Pid), Some(Mount), Some(Ipc), Some(Uts), Some(Cgroup)];
    // Otherwise the program begins in one that is the container's alone.
    let network = (!around.program.begins_in_a_network()).then_some(Network);
    let namespaces = kinds.into_iter().chain([network]).flatten();
    let namespaces: Vec<LinuxNamespace> = namespaces
        .map(|kind| LinuxNamespaceBuilder::default().typ(kind).build())
        .collect::<Result<_, _>>()?;
    let absolute = |paths: &[&str]| paths.iter().map(|path| format!("/{path}")).collect::<Vec<_>>();
    LinuxBuilder::default()
        .namespaces(namespaces)
        .cgroups_path(format!("/shoal/{}/{}", around.run, spec.instance))
        .resources(resources(&spec.limits, around.program)?)
        .masked_paths(absolute(MASKED))
        .readonly_paths(absolute(READ_ONLY))
        .rootfs_propagation("private")
        .build()
}

/// The guest is one of them.
fn processes(limits: &Limits) -> u64 {
    u64::from(limits.pids) + 1
}

fn resources(limits: &Limits, program: Program) -> Result<LinuxResources, OciSpecError> {
    let memory_bytes = i64::from(limits.memory_mb) * MIB;
    let memory = LinuxMemoryBuilder::default().limit(memory_bytes).swap(memory_bytes).build()?;
    let quota_us = i64::from(limits.cpu_milli) * CPU_PERIOD_US.cast_signed() / 1000;
    let cpu = LinuxCpuBuilder::default().quota(quota_us).period(CPU_PERIOD_US).build()?;
    let pids = if program.counts_processes() {
        HOSTS_EACH * processes(limits) + HOSTS_BESIDES
    } else {
        processes(limits)
    };
    let pids = LinuxPidsBuilder::default().limit(pids.cast_signed()).build()?;
    // Each program then allows those that every container has.
    let no_devices = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
    LinuxResourcesBuilder::default()
        .devices(vec![no_devices])
        .memory(memory)
        .cpu(cpu)
        .pids(pids)
        .build()
}
