//! The `config.json` of a bundle, computed from a launch spec without I/O. It is as strict as a
//! native sandbox: a user without capabilities, a read-only root, the writable mounts of every
//! container, and no network but loopback. The system call filter is not in here: the guest loads
//! the one that all sandboxes have.
//!
//! The description is plain JSON: types of the whole standard would be most of what this crate
//! compiles.

use jail::plan::{DESCRIPTORS, MASKED, OOM_SCORE, READ_ONLY, USER, WORKSPACE};
use model::{InstanceId, Limits};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::Program;
use crate::container::{GUEST_PATH, WritableMount, writable_mounts};
use crate::spec::{LaunchSpec, host_name};

/// The version of the OCI specification, which all programs know.
const VERSION: &str = "1.0.2";

const MIB: u64 = 1 << 20;
/// The period of the CPU quota.
const CPU_PERIOD_US: u64 = 100_000;
/// Bytes per inode of a writable mount.
const BYTES_PER_INODE: u64 = 4096;
const INODES_MIN: u64 = 1024;
/// How many host processes gVisor needs for each process inside, and in addition.
const HOSTS_EACH: u64 = 4;
const HOSTS_BESIDES: u64 = 256;

/// What the description depends on besides the spec.
#[derive(Debug, Clone)]
pub(super) struct BundleContext<'a> {
    pub(super) program: Program,
    /// The run that the container belongs to.
    pub(super) run: &'a str,
    /// Where its root is.
    pub(super) root: &'a str,
    /// The server's own `oom_score_adj`.
    pub(super) oom_score: i32,
}

/// The container id of an instance.
pub(super) fn container_id(run: &str, instance: InstanceId) -> String {
    format!("shoal-{run}-{instance}")
}

/// The `config.json` of a container's bundle.
pub(super) fn describe(spec: &LaunchSpec, around: &BundleContext<'_>) -> Value {
    // The root is mounted read-only already, with nodev and nosuid.
    let read_only = !around.program.keeps_the_root_as_mounted();
    json!({
        "ociVersion": VERSION,
        "root": {"path": around.root, "readonly": read_only},
        "hostname": host_name(spec.instance),
        "process": process(spec, around),
        "mounts": mounts(spec, around.program),
        "linux": linux(spec, around),
    })
}

fn process(spec: &LaunchSpec, around: &BundleContext<'_>) -> Value {
    let mut process = json!({
        "terminal": false,
        "user": {"uid": USER, "gid": USER, "umask": 0o022},
        "args": [GUEST_PATH, "contained", "stdin"],
        "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        "cwd": WORKSPACE,
        "capabilities": {
            "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [],
        },
        "rlimits": limits_of_processes(&spec.limits, around.program),
        "noNewPrivileges": true,
    });
    // To lower the value needs a privilege, so it is set only where that raises it.
    if around.oom_score < OOM_SCORE {
        process["oomScoreAdj"] = OOM_SCORE.into();
    }
    process
}

/// The limits of native sandboxes, bounded by the server's own.
fn limits_of_processes(limits: &Limits, program: Program) -> Vec<Value> {
    let counted = program.counts_processes().then(|| ("RLIMIT_NPROC", processes(limits)));
    // One byte: too little for a file, and the only value at which nothing is piped to a program of
    // the host either.
    let fixed = [("RLIMIT_CORE", 1), ("RLIMIT_NICE", 0), ("RLIMIT_RTPRIO", 0)];
    let bounded = [
        ("RLIMIT_NOFILE", Resource::Nofile, DESCRIPTORS),
        ("RLIMIT_MSGQUEUE", Resource::Msgqueue, 819_200),
        ("RLIMIT_SIGPENDING", Resource::Sigpending, 4096),
        ("RLIMIT_MEMLOCK", Resource::Memlock, 8 << 20),
    ];
    let bounded = bounded.into_iter().map(|(kind, resource, most)| {
        (kind, getrlimit(resource).maximum.map_or(most, |now| now.min(most)))
    });
    let limit = |(kind, value): (&str, u64)| json!({"type": kind, "hard": value, "soft": value});
    fixed.into_iter().chain(bounded).chain(counted).map(limit).collect()
}

fn mount(path: &str, kind: &str, source: &str, options: &[String]) -> Value {
    json!({"destination": path, "type": kind, "source": source, "options": options})
}

fn mounts(spec: &LaunchSpec, program: Program) -> Vec<Value> {
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
        mount("/proc", "proc", "proc", &proc),
        mount("/dev", "tmpfs", "tmpfs", &devices),
        mount("/dev/pts", "devpts", "devpts", &terminals),
    ];
    for place in writable_mounts(spec) {
        all.push(mount(place.path, "tmpfs", "tmpfs", &options_of(&place, program)));
    }
    for shown in &spec.mounts {
        let access = if shown.read_only { "ro" } else { "rw" };
        let options = words(&["bind", access, "nosuid", "nodev", "private"]);
        all.push(mount(&shown.path, "bind", &shown.host_path, &options));
    }
    all
}

fn options_of(place: &WritableMount, program: Program) -> Vec<String> {
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

fn linux(spec: &LaunchSpec, around: &BundleContext<'_>) -> Value {
    let mut namespaces = vec!["pid", "mount", "ipc", "uts", "cgroup"];
    // Otherwise the program is started in a network namespace of the container.
    if !around.program.begins_in_a_network() {
        namespaces.push("network");
    }
    let namespaces: Vec<_> = namespaces.into_iter().map(|kind| json!({"type": kind})).collect();
    let absolute = |paths: &[&str]| paths.iter().map(|path| format!("/{path}")).collect::<Vec<_>>();
    json!({
        "namespaces": namespaces,
        "cgroupsPath": format!("/shoal/{}/{}", around.run, spec.instance),
        "resources": resources(&spec.limits, around.program),
        "maskedPaths": absolute(MASKED),
        "readonlyPaths": absolute(READ_ONLY),
        "rootfsPropagation": "private",
    })
}

/// The guest is one of them.
fn processes(limits: &Limits) -> u64 {
    u64::from(limits.pids) + 1
}

fn resources(limits: &Limits, program: Program) -> Value {
    let memory_bytes = u64::from(limits.memory_mb) * MIB;
    let quota_us = u64::from(limits.cpu_milli) * CPU_PERIOD_US / 1000;
    let pids = if program.counts_processes() {
        HOSTS_EACH * processes(limits) + HOSTS_BESIDES
    } else {
        processes(limits)
    };
    json!({
        // Each program then allows those that every container has.
        "devices": [{"allow": false, "access": "rwm"}],
        "memory": {"limit": memory_bytes, "swap": memory_bytes},
        "cpu": {"quota": quota_us, "period": CPU_PERIOD_US},
        "pids": {"limit": pids},
    })
}

#[cfg(test)]
mod tests {
    use model::{Template, TemplateName};

    use super::*;

    fn described(program: Program, oom_score: i32) -> Value {
        let template = Template::named(TemplateName::new("t").unwrap());
        let mut spec = LaunchSpec::of(&template, InstanceId::from_u128(5));
        spec.limits = Limits { memory_mb: 256, cpu_milli: 1500, pids: 7, ..spec.limits };
        describe(&spec, &BundleContext { program, run: "run", root: "/root-of-it", oom_score })
    }

    #[test]
    fn bundle_has_no_capability_no_network_and_no_device() {
        for program in [Program::Runc, Program::Crun, Program::Runsc] {
            let it = described(program, 0);
            for (set, capabilities) in it["process"]["capabilities"].as_object().unwrap() {
                assert_eq!(capabilities, &json!([]), "{set}");
            }
            assert_eq!(it["process"]["capabilities"].as_object().unwrap().len(), 5);
            assert_eq!(it["process"]["noNewPrivileges"], json!(true));
            assert_eq!(it["process"]["user"]["uid"], json!(USER));
            let network = json!({"type": "network"});
            let namespaces = it["linux"]["namespaces"].as_array().unwrap();
            assert_eq!(namespaces.contains(&network), !program.begins_in_a_network());
            assert_eq!(
                it["linux"]["resources"]["devices"],
                json!([{"allow": false, "access": "rwm"}])
            );
            let masked = it["linux"]["maskedPaths"].as_array().unwrap();
            assert!(masked.contains(&json!("/proc/kcore")), "{masked:?}");
        }
    }

    #[test]
    fn bundle_limits_are_those_of_the_template() {
        let resources = &described(Program::Runc, 0)["linux"]["resources"];
        assert_eq!(resources["memory"], json!({"limit": 256 << 20, "swap": 256 << 20}));
        assert_eq!(resources["cpu"], json!({"quota": 150_000, "period": 100_000}));
        assert_eq!(resources["pids"], json!({"limit": 8}));
    }

    #[test]
    fn bundle_gives_up_its_processes_before_the_server() {
        for of_server in [-500, 0, 499] {
            let process = &described(Program::Runc, of_server)["process"];
            assert_eq!(process["oomScoreAdj"], json!(OOM_SCORE), "{of_server}");
        }
        assert_eq!(described(Program::Runc, 900)["process"]["oomScoreAdj"], Value::Null);
    }
}
