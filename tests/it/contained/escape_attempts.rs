//! What a program in a container tries and must not get: the attempts are those that native
//! sandboxes meet. A container may refuse with another error than a native sandbox does; what it
//! does not refuse is listed here, and why it does no harm.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{Kind, over_kinds, place, python, sandbox, start};
use crate::native::{Bait, FILES, KERNEL, LISTENER, NETWORK, OWN_API, PROBE, PROCESSES, Seen};

use Kind::{Docker, Runc, Runsc};

/// What is not refused, of which group, by whom, and why that does no harm.
const REACHED: &[(&str, &[Kind], &[&str])] = &[
    // What hides a file of the kernel is the null device, and takes everything.
    ("files", &[Runc, Docker], &["write /proc/kmsg"]),
    // No program gets privileges by being started, and devices are refused by the control group.
    (
        "files",
        &[Docker, Runc, Runsc],
        &["mounts_on_which_programs_change_users", "mounts_with_devices"],
    ),
    // The engine makes them for every container. Who is not root writes to none of them but the
    // queues, which are wiped; what is beneath /sys is hidden.
    ("files", &[Docker], &["other_devices", "other_mounts", "writable_mounts"]),
    // The engine mounts what it shows, and the kernel tells where that is from.
    (
        "files",
        &[Docker],
        &["the host in mountinfo", "the host in mounts", "the host in mountstats"],
    ),
    ("own_api", &[Docker], &["names_of_the_host_in_what_is_told"]),
    // The guest's connection, which no other process can join.
    ("own_api", &[Docker], &["sockets_of_the_guest_in_the_tables"]),
    // These are files and devices of gVisor's own kernel, which runs for this sandbox alone.
    (
        "files",
        &[Runsc],
        &[
            "read /sys/class",
            "read /proc/cmdline",
            "open /dev/fuse",
            "open /dev/net/tun",
            "other_devices",
            "other_mounts",
            "writable_mounts",
        ],
    ),
    // Its network is the sandbox's own and leads nowhere, whatever is set there.
    ("network", &[Docker], &["a port below 1024"]),
    (
        "network",
        &[Runsc],
        &[
            "option: mark",
            "option: larger input than allowed",
            "option: debug",
            "option: transparent",
            "option: a priority above others",
            "a port below 1024",
        ],
    ),
    // Guest and programs are the same user, as in a native sandbox of an ordinary user. The kernel
    // spares the first process what it did not ask for; gVisor does not keep programs from what it
    // has open, which is of this sandbox.
    ("own_api", &[Docker, Runc, Runsc], &["taking_the_place_of_the_guest"]),
    (
        "own_api",
        &[Runsc],
        &[
            "open descriptor 0 of the guest",
            "open descriptor 1 of the guest",
            "open descriptor 2 of the guest",
            "open descriptor 6 of the guest",
            "open descriptor 8 of the guest",
        ],
    ),
    (
        "processes",
        &[Docker, Runc, Runsc],
        &[
            "signal 9 to the guest",
            "signal 15 to the guest",
            "signal 19 to the guest",
            "signal 18 to the guest",
            "signal 17 to the guest",
            "signal 10 to the guest",
            "signal 0 to the guest",
            "signal to the guest's thread",
            "signal_with_a_forged_sender",
            "signal_through_a_process_descriptor",
        ],
    ),
    // In gVisor a process of the same user may also read the guest, which has no secrets;
    // priorities and what is spared when memory is short are among the programs of its own kernel.
    (
        "processes",
        &[Runsc],
        &[
            "read /proc/1/environ",
            "read /proc/1/maps",
            "read /proc/1/smaps",
            "read /proc/1/auxv",
            "list /proc/1/fd",
            "list /proc/1/task/1/fd",
            "follow /proc/1/ns/mnt",
            "follow /proc/1/ns/user",
            "follow /proc/1/ns/pid",
            "follow /proc/1/fd/0",
            "follow /proc/1/fd/3",
            "a priority above others",
            "being spared when memory is short",
            "files_as_another",
        ],
    ),
    // No container has a user namespace: this is the machine's, and no program inside may enter it.
    ("kernel", &[Docker, Runc], &["user namespace that owns the pid namespace"]),
];

/// What ends the sandbox that does it, and nothing else: in gVisor the first process is not spared.
const NOT_TRIED: &[(&str, &[Kind], &[&str])] = &[(
    "processes",
    &[Runsc],
    &[
        "signal 9 to the guest",
        "signal 10 to the guest",
        "signal 15 to the guest",
        "signal 19 to the guest",
        "signal to the guest's thread",
        "signal to the guest's group",
        "signal_with_a_forged_sender",
        "signal_through_a_process_descriptor",
    ],
)];

fn listed(
    table: &[(&str, &[Kind], &'static [&'static str])],
    kind: Kind,
    group: &str,
) -> Vec<&'static str> {
    let rows = table.iter().filter(|(of, kinds, _)| *of == group && kinds.contains(&kind));
    rows.flat_map(|(_, _, names)| names.iter().copied()).collect()
}

/// The name of an attempt in a line of the probe.
fn name_of<'a>(group: &str, line: &'a str) -> &'a str {
    let name = line.strip_prefix(group).and_then(|rest| rest.strip_prefix('/')).unwrap_or(line);
    name.split_once(": NOT AS MEANT").map_or(name, |(name, _)| name)
}

async fn nothing_gets_through(
    kind: Kind,
    (group, script, at_least): (&str, &str, usize),
) -> Result<()> {
    let Some(runtime) = start(kind).await? else { return Ok(()) };
    let (one, neighbour) = (sandbox(&*runtime, 1).await?, sandbox(&*runtime, 2).await?);
    let place = place(kind);
    std::fs::create_dir_all(&place)?;
    let name = place.file_name().and_then(|name| name.to_str()).context("text")?;
    let bait = Bait::lay_out(&place, name)?;
    let seen = Seen {
        users: "ranges",
        host_pids: json!({
            "the server": std::process::id(),
            "who started it": std::os::unix::process::parent_id(),
        }),
        neighbour_port: python(&*neighbour, LISTENER, "").await?.trim().parse()?,
    };
    let mut given = bait.described(group, &seen)?;
    given["not_tried"] = json!(listed(NOT_TRIED, kind, group));
    let said = python(&*one, &format!("{PROBE}\n{script}"), &given.to_string()).await?;
    let tried: Vec<&str> = said.lines().filter(|line| line.contains(": ")).collect();
    let (last, attempts) = tried.split_last().context("the probe said nothing")?;
    let known = listed(REACHED, kind, group);
    // A container may refuse with another error.
    let through: Vec<&&str> = attempts
        .iter()
        .filter(|line| line.contains(": NOT AS MEANT REACHED "))
        .filter(|line| !known.contains(&name_of(group, line)))
        .collect();
    ensure!(through.is_empty(), "not refused:\n{through:#?}");
    ensure!(*last == format!("tried: {}", attempts.len()), "some were not tried:\n{said}");
    ensure!(attempts.len() >= at_least, "only {} attempts", attempts.len());
    one.inside().ping().await?;
    neighbour.inside().ping().await?;
    runtime.shutdown().await?;
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

macro_rules! groups {
    ($($case:ident as $name:ident: $group:ident;)+) => {
        $(async fn $case(kind: Kind) -> Result<()> {
            nothing_gets_through(kind, $group).await
        }
        over_kinds! { $case as $name: docker Docker runc Runc runsc Runsc })+
    };
}
groups! {
    files as files_outside_are_out_of_reach: FILES;
    processes as processes_outside_are_out_of_reach: PROCESSES;
    kernel as the_kernel_is_out_of_reach: KERNEL;
    networks as networks_outside_are_out_of_reach: NETWORK;
    own_api as our_own_interfaces_are_out_of_reach: OWN_API;
}
