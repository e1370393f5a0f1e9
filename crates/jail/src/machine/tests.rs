//! Each kind of machine is understood.

use std::fmt::Write as _;

use super::cgroups::{Access, USES, controller_of};
use super::samples::{self, Sample};
use super::{Calls, CgroupLayout, Machine, Presence};
use crate::groups::Version;

const CALLS: Calls = Calls {
    new_mount_api: Presence::There,
    mount_setattr: Presence::There,
    open_tree: Presence::There,
    clone3: Presence::There,
    openat2: Presence::There,
    pidfd_open: Presence::There,
    close_range: Presence::There,
    seccomp: Presence::There,
    landlock_abi: Some(7),
};

/// A layout in a few words: which directory serves which use.
fn described(sample: &Sample, is_root: bool) -> String {
    let layout = CgroupLayout::find(sample, is_root);
    let mut text = format!("{:?}", layout.arrangement);
    for used in USES {
        let Some(found) = layout.placement(used) else { continue };
        let version = match found.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        };
        let place = found.directory.display();
        write!(text, "\n{} {version} {:?} {place}", controller_of(used), found.access).unwrap();
    }
    if let Some(place) = layout.to_vacate() {
        write!(text, "\nvacate {}", place.display()).unwrap();
    }
    text
}

#[track_caller]
fn check(sample: &Sample, is_root: bool, expected: &[&str]) {
    assert_eq!(described(sample, is_root), expected.join("\n"));
}

#[test]
fn cgroups_of_root_on_a_modern_server_are_at_the_top() {
    let top = "/sys/fs/cgroup";
    check(
        &samples::systemd_root(),
        true,
        &[
            "V2",
            &format!("memory v2 Writable {top}"),
            &format!("cpu v2 Writable {top}"),
            &format!("pids v2 Writable {top}"),
            &format!("freezer v2 Writable {top}"),
        ],
    );
}

#[test]
fn cgroups_of_a_service_are_in_its_delegated_group() {
    let own = "/sys/fs/cgroup/system.slice/shoal.service";
    check(
        &samples::systemd_service(),
        true,
        &[
            "V2",
            &format!("memory v2 Writable {own}"),
            &format!("cpu v2 Writable {own}"),
            &format!("pids v2 Writable {own}"),
            &format!("freezer v2 Writable {own}"),
            &format!("vacate {own}"),
        ],
    );
}

#[test]
fn cgroups_of_a_child_group_are_in_the_delegated_group() {
    let own = "/sys/fs/cgroup/system.slice/shoal.service";
    for part in ["main", "shoal-host"] {
        check(
            &samples::systemd_service_in(part),
            true,
            &[
                "V2",
                &format!("memory v2 Writable {own}"),
                &format!("cpu v2 Writable {own}"),
                &format!("pids v2 Writable {own}"),
                &format!("freezer v2 Writable {own}"),
            ],
        );
    }
    let own = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/a.scope";
    for scope in ["a.scope", "a.scope/shoal-host"] {
        check(
            &samples::systemd_user_in(scope),
            false,
            &[
                "V2",
                &format!("memory v2 Writable {own}"),
                &format!("pids v2 Writable {own}"),
                &format!("freezer v2 Writable {own}"),
            ],
        );
    }
}

#[test]
fn cgroups_in_threaded_mode_are_not_used() {
    for kind in ["threaded\n", "domain threaded\n", "domain invalid\n"] {
        let layout = CgroupLayout::find(&samples::threaded(kind), true);
        let access = layout.memory.as_ref().map(|found| found.access);
        assert_eq!(access, Some(Access::Threaded), "{kind}");
        assert_eq!((layout.hierarchies(), layout.to_vacate()), (Vec::new(), None), "{kind}");
    }
}

#[test]
fn cgroups_of_an_ordinary_user_are_those_of_the_session() {
    let own = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope";
    check(
        &samples::systemd_user(),
        false,
        &[
            "V2",
            &format!("memory v2 Writable {own}"),
            &format!("pids v2 Writable {own}"),
            &format!("freezer v2 Writable {own}"),
            &format!("vacate {own}"),
        ],
    );
    let own = "/sys/fs/cgroup/user.slice/user-1000.slice/session-9.scope";
    check(
        &samples::user_without_delegation(),
        false,
        &[
            "V2",
            &format!("memory v2 Denied {own}"),
            &format!("pids v2 Denied {own}"),
            &format!("freezer v2 Denied {own}"),
        ],
    );
    assert_eq!(CgroupLayout::find(&samples::user_without_delegation(), false).hierarchies(), []);
}

#[test]
fn hybrid_cgroups_limit_by_v1_and_freeze_by_v2() {
    let expected = [
        "Hybrid",
        "memory v1 Writable /sys/fs/cgroup/memory",
        "cpu v1 Writable /sys/fs/cgroup/cpu",
        "pids v1 Writable /sys/fs/cgroup/pids",
        "freezer v2 Writable /sys/fs/cgroup/unified",
    ];
    check(&samples::hybrid_microvm(), true, &expected);
    check(&samples::windows(), true, &expected);
}

#[test]
fn cgroups_of_an_old_server_are_v1() {
    check(
        &samples::v1_server(),
        true,
        &[
            "V1",
            "memory v1 Writable /sys/fs/cgroup/memory",
            "cpu v1 Writable /sys/fs/cgroup/cpu,cpuacct",
            "pids v1 Writable /sys/fs/cgroup/pids",
            "freezer v1 Writable /sys/fs/cgroup/freezer",
        ],
    );
}

#[test]
fn cgroups_in_a_container_are_read_only() {
    let top = "/sys/fs/cgroup";
    check(
        &samples::container(),
        true,
        &[
            "V2",
            &format!("memory v2 ReadOnly {top}"),
            &format!("cpu v2 ReadOnly {top}"),
            &format!("pids v2 ReadOnly {top}"),
            &format!("freezer v2 ReadOnly {top}"),
        ],
    );
    check(
        &samples::v1_container(),
        true,
        &[
            "V1",
            "memory v1 ReadOnly /sys/fs/cgroup/memory",
            "cpu v1 ReadOnly /sys/fs/cgroup/cpu,cpuacct",
            "pids v1 ReadOnly /sys/fs/cgroup/pids",
            "freezer v1 ReadOnly /sys/fs/cgroup/freezer",
        ],
    );
}

#[test]
fn a_privileged_container_must_vacate_its_cgroup() {
    let layout = CgroupLayout::find(&samples::privileged_container(), true);
    assert_eq!(layout.to_vacate(), Some("/sys/fs/cgroup".as_ref()));
    let hierarchies = layout.hierarchies();
    assert_eq!((hierarchies.len(), hierarchies[0].uses.len()), (1, 4));
}

#[test]
fn a_machine_without_cgroups_has_none() {
    check(&samples::bare(), true, &["None"]);
}

#[test]
fn a_mount_over_another_hides_it() {
    let mounts = "\
30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
31 25 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro
";
    check(&samples::systemd_root().with("/proc/self/mountinfo", mounts), true, &["None"]);
}

#[test]
fn hierarchies_are_grouped_by_directory() {
    let layout = CgroupLayout::find(&samples::hybrid_microvm(), true);
    let uses: Vec<usize> = layout.hierarchies().iter().map(|one| one.uses.len()).collect();
    assert_eq!(uses, [1, 1, 1, 1]);
}

#[test]
fn machine_facts_are_read() {
    let sample = samples::systemd_root()
        .with("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffdfffff\nSeccomp:\t0\n")
        .with("/proc/self/ns/user", "")
        .with("/proc/self/ns/mnt", "")
        .with("/proc/sys/user/max_user_namespaces", "63432\n")
        .with("/proc/sys/kernel/unprivileged_userns_clone", "0\n")
        .with("/proc/sys/kernel/pid_max", "4194304\n")
        .with("/proc/filesystems", "nodev\ttmpfs\n\text4\nnodev\toverlay\n")
        .with("/proc/meminfo", "MemTotal:        1024 kB\nSwapTotal:  0 kB\n")
        .with("/usr/bin/env", "");
    let machine = Machine::describe(&sample, CALLS);
    assert!(machine.is_root && !machine.filtered && machine.usr);
    assert_eq!(machine.version, (6, 12));
    let missing: Vec<_> = machine.capabilities_missing.iter().map(|one| one.name).collect();
    assert_eq!(missing, ["SYS_ADMIN"]);
    assert_eq!(machine.namespaces_missing, ["pid", "net", "ipc", "uts", "cgroup"]);
    assert!(machine.user_namespaces.there && !machine.user_namespaces.for_unprivileged);
    assert!(machine.clone_into_cgroup && machine.idmapped_mounts && machine.overlay_in_userns);
    assert_eq!((machine.pid_max, machine.memory_bytes), (4_194_304, 1 << 20));
}

#[test]
fn an_old_kernel_lacks_features() {
    let machine = Machine::describe(
        &samples::v1_server(),
        Calls { clone3: Presence::Missing, mount_setattr: Presence::Missing, ..CALLS },
    );
    assert!(!machine.clone_into_cgroup && !machine.idmapped_mounts && !machine.overlay_in_userns);
}

#[test]
fn probing_this_machine_changes_nothing() {
    let machine = Machine::probe();
    assert!(machine.version >= (4, 0), "{machine:?}");
    assert!(machine.memory_bytes > 0);
    assert_eq!(machine, Machine::probe(), "looking changes nothing");
}
