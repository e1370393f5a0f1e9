//! Findings about the host: from what `jail` found to what works, why not, and what to do about it.
//! Pure, so that tests can check every kind of machine on this one.

use jail::groups::{Use, Version};
use jail::machine::{Access, CgroupLayout, Machine, Presence};
use serde::Serialize;

/// Whether something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Yes,
    Partly,
    No,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was checked.
    pub(crate) name: &'static str,
    /// Whether it works.
    pub(crate) state: State,
    /// Why.
    pub(crate) why: String,
    /// What to do about it; none if it works.
    pub(crate) remedy: Option<String>,
    /// Whether sandboxes need it.
    pub(crate) needed: bool,
}

impl Finding {
    pub(crate) fn yes(name: &'static str, why: impl Into<String>) -> Self {
        Self { name, state: State::Yes, why: why.into(), remedy: None, needed: false }
    }

    pub(crate) fn no(name: &'static str, why: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { name, state: State::No, why: why.into(), remedy, needed: false }
    }

    pub(crate) fn partly(name: &'static str, why: impl Into<String>, remedy: &str) -> Self {
        Self { state: State::Partly, ..Self::no(name, why, remedy) }
    }

    pub(crate) fn needed(mut self) -> Self {
        self.needed = true;
        self
    }

    /// Whether this check alone stops all sandboxes.
    pub(crate) fn is_fatal(&self) -> bool {
        self.needed && self.state == State::No
    }
}

/// The oldest kernel that has everything that every sandbox needs.
const KERNEL_MIN: (u32, u32) = (5, 12);
/// Descriptors that a host process needs besides those of sandboxes.
const DESCRIPTORS_RESERVED: u64 = 512;
/// Descriptors of one sandbox in a host process.
const DESCRIPTORS_EACH: u64 = 2;
/// How many sandboxes one machine is meant to hold.
const SANDBOXES_TARGET: u64 = 5000;
/// How many processes a sandbox may have by default.
const PIDS_EACH: u64 = 128;

/// All findings about a machine, the most important first.
pub(crate) fn findings(machine: &Machine) -> Vec<Finding> {
    let mut found = vec![
        who(machine),
        privileges(machine),
        kernel(machine),
        namespaces(machine),
        mount_api(machine).needed(),
        call("mount_setattr", "change mounts", machine.calls.mount_setattr, "5.12").needed(),
        call("pidfd_open", "watch and signal processes", machine.calls.pidfd_open, "5.3").needed(),
        call("openat2", "open paths without leaving a directory", machine.calls.openat2, "5.6")
            .needed(),
        call("close_range", "close descriptors", machine.calls.close_range, "5.9").needed(),
        call("seccomp", "filter system calls", machine.calls.seccomp, "4.14").needed(),
        host_programs(machine),
    ];
    found.extend(USES.map(|(used, name, lost)| group(machine, used, name, lost)));
    found.push(group_entry(machine));
    found.push(idmapped(machine));
    found.push(overlays(machine));
    found.push(descriptors(machine));
    found.push(processes(machine));
    found
}

/// The user who makes sandboxes. An ordinary user is root in a user namespace.
fn who(machine: &Machine) -> Finding {
    if machine.is_root {
        Finding::yes("user", "shoal runs as root").needed()
    } else if machine.user_namespaces.for_unprivileged {
        Finding::yes("user", "shoal runs as an ordinary user, who may make user namespaces")
            .needed()
    } else {
        let why = "shoal runs as an ordinary user, and only root may make user namespaces here";
        let remedy = "sysctl kernel.unprivileged_userns_clone=1, or \
                      kernel.apparmor_restrict_unprivileged_userns=0; or run shoal with sudo";
        Finding::no("user", why, remedy).needed()
    }
}

fn privileges(machine: &Machine) -> Finding {
    if !machine.is_root {
        return Finding::yes(
            "privileges",
            "shoal has all privileges inside a user namespace of its own",
        )
        .needed();
    }
    let missing: Vec<_> = machine.capabilities_missing.iter().map(|one| one.name).collect();
    if missing.is_empty() {
        return Finding::yes("privileges", "the launcher has all capabilities that it needs")
            .needed();
    }
    let why = format!("the launcher lacks {}", missing.join(", "));
    let remedy = "start shoal as root outside of a container, or give the container these \
                  capabilities (docker run --privileged)";
    Finding::no("privileges", why, remedy).needed()
}

fn kernel(machine: &Machine) -> Finding {
    let release = &machine.release;
    if machine.version >= KERNEL_MIN {
        Finding::yes("kernel", format!("Linux {release}")).needed()
    } else {
        let (major, minor) = KERNEL_MIN;
        let why = format!("Linux {release} is older than {major}.{minor}");
        Finding::no("kernel", why, "use a newer kernel").needed()
    }
}

fn namespaces(machine: &Machine) -> Finding {
    let name = "namespaces";
    let users = machine.user_namespaces;
    if !users.there {
        return Finding::no(
            name,
            "the kernel was built without user namespaces",
            "use a kernel with CONFIG_USER_NS",
        )
        .needed();
    }
    if users.most == 0 {
        let remedy = "sysctl user.max_user_namespaces=65536";
        return Finding::no(name, "the number of user namespaces is limited to 0", remedy).needed();
    }
    if !machine.namespaces_missing.is_empty() {
        let why = format!("the kernel lacks: {}", machine.namespaces_missing.join(", "));
        return Finding::no(name, why, "use a kernel of a common distribution").needed();
    }
    if users.most < SANDBOXES_TARGET {
        let why = format!("at most {} user namespaces", users.most);
        return Finding::partly(name, why, "sysctl user.max_user_namespaces=65536").needed();
    }
    Finding::yes(name, "user, mount, pid, network, ipc, uts, cgroup").needed()
}

/// An ordinary user may not call it outside a user namespace; then only the trial can find out.
fn mount_api(machine: &Machine) -> Finding {
    let (name, purpose) = ("fsopen", "make mounts");
    if !machine.is_root
        && !machine.filtered
        && machine.calls.new_mount_api == Presence::Denied
        && machine.version >= KERNEL_MIN
    {
        return Finding::yes(name, "only root may call it here, and the kernel is new enough");
    }
    call(name, purpose, machine.calls.new_mount_api, "5.2")
}

/// A system call that sandboxes need for `purpose`.
fn call(name: &'static str, purpose: &str, presence: Presence, since: &str) -> Finding {
    match presence {
        Presence::There => {
            Finding::yes(name, format!("the kernel has this system call (to {purpose})"))
        }
        Presence::Missing => Finding::no(
            name,
            format!(
                "this kernel lacks this system call (to {purpose}); Linux {since} and newer have it"
            ),
            "use a newer kernel",
        ),
        Presence::Denied => Finding::no(
            name,
            format!("a filter or missing privileges forbid this system call (to {purpose})"),
            "run shoal as root and outside of containers that filter system calls \
             (docker run --security-opt seccomp=unconfined)",
        ),
    }
}

fn host_programs(machine: &Machine) -> Finding {
    let name = "host programs";
    if machine.usr {
        Finding::yes(name, "sandboxes see /usr of this machine, read-only")
    } else {
        let remedy = "install the programs that sandboxes need, or use a template with a root \
                      directory of its own";
        Finding::no(name, "there is no /usr/bin to show to sandboxes", remedy)
    }
}

const USES: [(Use, &str, &str); 4] = [
    (Use::Memory, "memory limit", "a sandbox may use all memory of the machine"),
    (Use::Cpu, "cpu limit", "a sandbox may use all processors"),
    (Use::Pids, "process limit", "a sandbox may use up all processes of the machine"),
    (Use::Freezer, "freezing", "idle sandboxes keep running"),
];

/// Since this version the kernel counts processes per user namespace.
const COUNTS_BY_NAMESPACE: (u32, u32) = (5, 14);

fn group(machine: &Machine, used: Use, name: &'static str, lost: &str) -> Finding {
    let usable = machine.cgroups.placement(used).map(|found| found.access);
    if used == Use::Pids
        && usable != Some(Access::Writable)
        && machine.version >= COUNTS_BY_NAMESPACE
    {
        return Finding::yes(name, "by a limit on the users of each sandbox");
    }
    let Some(found) = machine.cgroups.placement(used) else {
        let why = format!("this machine has no control group for it: {lost}");
        let remedy = "mount cgroup2 on /sys/fs/cgroup, or boot with cgroup_enable=memory";
        return Finding::no(name, why, remedy);
    };
    let place = found.directory.display();
    let version = match found.version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    };
    match found.access {
        Access::Writable => Finding::yes(name, format!("cgroup {version} at {place}")),
        Access::ReadOnly => Finding::no(
            name,
            format!("cgroup {version} at {place} is read-only: {lost}"),
            "run shoal outside of the container, or give the container the groups (docker run --privileged \
             --cgroupns=host)",
        ),
        Access::Denied => Finding::no(
            name,
            format!("cgroup {version} at {place} belongs to another user: {lost}"),
            "let systemd delegate the group: systemd-run --user --scope -p Delegate=yes shoal ..., or run shoal with \
             sudo",
        ),
        Access::Threaded => Finding::no(
            name,
            format!("cgroup {version} at {place} is a threaded group: {lost}"),
            "start shoal in a group of type domain, such as a systemd service with Delegate=yes",
        ),
    }
}

/// How a new sandbox gets into its control groups.
fn group_entry(machine: &Machine) -> Finding {
    let name = "joining control groups";
    let layout: &CgroupLayout = &machine.cgroups;
    if let Some(place) = layout.to_vacate() {
        let why = format!(
            "other processes are in the control group {}, which shoal must divide",
            place.display()
        );
        let remedy = "start shoal as a systemd service with Delegate=yes and DelegateSubgroup=main";
        return Finding::partly(name, why, remedy);
    }
    let v1 = layout.hierarchies().iter().any(|one| one.version == Version::V1);
    if v1 {
        let why = "control groups v1: a process joins its groups while the sandbox is a prefork";
        return Finding::yes(name, why);
    }
    if machine.clone_into_cgroup {
        return Finding::yes(name, "control groups v2: a process starts inside its group");
    }
    Finding::no(name, "there is no control group to join", "see the remedies of the limits above")
}

fn idmapped(machine: &Machine) -> Finding {
    let name = "workspaces on disk";
    if machine.idmapped_mounts {
        Finding::yes(name, "the kernel has idmapped mounts: a sandbox sees its files as its own")
    } else {
        let remedy = "use Linux 5.12 or newer; a /workspace in memory works";
        Finding::no(
            name,
            "the kernel lacks idmapped mounts: a sandbox could not own its files",
            remedy,
        )
    }
}

fn overlays(machine: &Machine) -> Finding {
    let name = "overlays";
    if machine.overlay_in_userns {
        Finding::yes(name, "overlayfs works: images can be root filesystems")
    } else {
        let remedy = "use Linux 5.11 or newer with overlayfs";
        Finding::no(name, "overlayfs is missing, or too old for user namespaces", remedy).needed()
    }
}

fn descriptors(machine: &Machine) -> Finding {
    let name = "open files";
    let Some(most) = machine.open_files.1 else {
        return Finding::yes(name, "no hard limit");
    };
    let sandboxes = most.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_EACH;
    let why = format!("the hard limit is {most}, enough for {sandboxes} sandboxes at once");
    if sandboxes >= SANDBOXES_TARGET {
        Finding::yes(name, why)
    } else {
        Finding::partly(name, why, "raise the hard limit: ulimit -Hn 65536, or LimitNOFILE=65536")
    }
}

fn processes(machine: &Machine) -> Finding {
    let name = "processes";
    let sandboxes = machine.pid_max / PIDS_EACH;
    let why = format!(
        "kernel.pid_max is {}, enough for {sandboxes} sandboxes at their default limit",
        machine.pid_max
    );
    if sandboxes >= 200 {
        Finding::yes(name, why)
    } else {
        Finding::partly(name, why, "sysctl kernel.pid_max=4194304")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use jail::machine::{Arrangement, Calls, NEEDED, Placement, UserNamespaces};

    use super::*;

    fn placement(access: Access) -> Placement {
        Placement {
            version: Version::V2,
            directory: PathBuf::from("/sys/fs/cgroup"),
            access,
            must_be_vacated: false,
        }
    }

    fn good() -> Machine {
        let writable = || Some(placement(Access::Writable));
        Machine {
            release: "6.18.5".to_owned(),
            version: (6, 18),
            cgroups: CgroupLayout {
                arrangement: Arrangement::V2,
                memory: writable(),
                cpu: writable(),
                pids: writable(),
                freezer: writable(),
            },
            user_namespaces: UserNamespaces { there: true, most: 60_000, for_unprivileged: true },
            namespaces_missing: vec![],
            calls: Calls {
                new_mount_api: Presence::There,
                mount_setattr: Presence::There,
                open_tree: Presence::There,
                clone3: Presence::There,
                openat2: Presence::There,
                pidfd_open: Presence::There,
                close_range: Presence::There,
                seccomp: Presence::There,
                landlock_abi: Some(7),
            },
            clone_into_cgroup: true,
            idmapped_mounts: true,
            overlay_in_userns: true,
            is_root: true,
            capabilities_missing: vec![],
            filtered: false,
            open_files: (Some(1024), Some(1_048_576)),
            pid_max: 4_194_304,
            memory_bytes: 16 << 30,
            swap_bytes: 0,
            usr: true,
        }
    }

    /// The findings that are not a plain yes.
    fn complaints(machine: &Machine) -> Vec<(&'static str, State, bool)> {
        findings(machine)
            .iter()
            .filter(|found| found.state != State::Yes)
            .map(|found| (found.name, found.state, found.is_fatal()))
            .collect()
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Machine), expected: &[(&'static str, State, bool)]) {
        let mut machine = good();
        change(&mut machine);
        assert_eq!(complaints(&machine), expected);
    }

    #[test]
    fn doctor_finds_nothing_wrong_with_a_good_machine() {
        check(|_| {}, &[]);
    }

    #[test]
    fn doctor_calls_fatal_what_stops_all_sandboxes() {
        let closed = |machine: &mut Machine| {
            machine.is_root = false;
            machine.user_namespaces.for_unprivileged = false;
        };
        check(closed, &[("user", State::No, true)]);
        let take = |machine: &mut Machine| machine.capabilities_missing = NEEDED.to_vec();
        check(take, &[("privileges", State::No, true)]);
        check(|machine| machine.version = (5, 4), &[("kernel", State::No, true)]);
        check(|machine| machine.user_namespaces.most = 0, &[("namespaces", State::No, true)]);
        check(
            |machine| machine.namespaces_missing = vec!["net"],
            &[("namespaces", State::No, true)],
        );
        check(|machine| machine.calls.seccomp = Presence::Denied, &[("seccomp", State::No, true)]);
    }

    #[test]
    fn doctor_wants_no_privileges_of_an_ordinary_user() {
        let ordinary = |machine: &mut Machine| {
            machine.is_root = false;
            machine.capabilities_missing = NEEDED.to_vec();
            machine.calls.new_mount_api = Presence::Denied;
            machine.cgroups.memory = Some(placement(Access::Denied));
        };
        check(ordinary, &[("memory limit", State::No, false)]);
    }

    #[test]
    fn doctor_does_not_call_a_missing_limit_fatal() {
        check(
            |machine| machine.cgroups.memory = Some(placement(Access::ReadOnly)),
            &[("memory limit", State::No, false)],
        );
        check(|machine| machine.cgroups.freezer = None, &[("freezing", State::No, false)]);
        check(
            |machine| machine.open_files = (Some(1024), Some(4096)),
            &[("open files", State::Partly, false)],
        );
        check(|machine| machine.pid_max = 4096, &[("processes", State::Partly, false)]);
        check(
            |machine| machine.idmapped_mounts = false,
            &[("workspaces on disk", State::No, false)],
        );
    }

    #[test]
    fn doctor_has_a_remedy_for_every_problem() {
        let mut machine = good();
        machine.is_root = false;
        machine.cgroups.cpu = Some(placement(Access::Denied));
        machine.calls.openat2 = Presence::Missing;
        for found in findings(&machine) {
            assert_eq!(found.remedy.is_none(), found.state == State::Yes, "{}", found.name);
            assert!(!found.why.is_empty());
        }
    }
}
