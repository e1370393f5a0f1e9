//! What a program inside tries and must not get, by group: files, processes, the kernel, the
//! network and our own interfaces; what wants too much of a resource is in [`resources`]. Every
//! attempt has a name and the errors that are meant, and is a line of what the probe prints, so a
//! probe that stops early or is refused for another reason than it should be is noticed.

pub(crate) mod bait;
mod forgery;
mod races;
mod resources;
mod shared_files;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

pub(super) use self::bait::calls;
use self::bait::{Bait, Seen};
use super::node::{Node, name_of, on_node};

/// What every probe begins with.
pub(crate) const PROBE: &str = include_str!("probe.py");

/// The groups of attempts, and how many there are in each at least.
pub(crate) const FILES: (&str, &str, usize) = ("files", include_str!("files.py"), 170);
pub(crate) const PROCESSES: (&str, &str, usize) = ("processes", include_str!("processes.py"), 120);
pub(crate) const KERNEL: (&str, &str, usize) = ("kernel", include_str!("kernel.py"), 115);
pub(crate) const NETWORK: (&str, &str, usize) = ("network", include_str!("network.py"), 82);
pub(crate) const OWN_API: (&str, &str, usize) = ("own_api", include_str!("own_api.py"), 45);

/// Something that listens in a sandbox, for others not to reach. It says where.
pub(crate) const LISTENER: &str = "import os, socket\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                                   print(s.getsockname()[1], flush=True)\n\
                                   if os.fork() == 0:\n  import time; os.close(1); os.close(2); time.sleep(120)\n";

/// Runs the probe of a group; each attempt must fail as it is meant to.
fn nothing_gets_through((group, script, at_least): (&str, &str, usize)) -> Result<()> {
    on_node(
        |_| {},
        async |node: &Node| {
            let (sandbox, neighbour) = (node.sandbox().await?, node.sandbox().await?);
            let bait = Bait::lay_out(node.directory(), node.name())?;
            let seen = Seen {
                users: name_of(node.users()),
                host_pids: json!({ "the launcher": node.launcher(), "the server": std::process::id() }),
                neighbour_port: node.python(&neighbour, LISTENER, &[]).await?.trim().parse()?,
            };
            let given = bait.described(group, &seen)?.to_string();
            let program = format!("{PROBE}\n{script}");
            let said = node.python(&sandbox, &program, &[&given]).await?;
            show(&said);
            let tried: Vec<&str> = said.lines().filter(|line| line.contains(": ")).collect();
            let (last, attempts) = tried.split_last().context("the probe said nothing")?;
            let through: Vec<&&str> = attempts.iter().filter(|line| !as_meant(line)).collect();
            ensure!(through.is_empty(), "not refused, or not as meant:\n{through:#?}");
            ensure!(*last == format!("tried: {}", attempts.len()), "some were not tried:\n{said}");
            ensure!(attempts.len() >= at_least, "only {} attempts", attempts.len());
            sandbox.inside().ping().await?;
            neighbour.inside().ping().await?;
            Ok(())
        },
    )
}

/// Whether an attempt ended as it should, which in some modes is known to be a success.
pub(super) fn as_meant(line: &str) -> bool {
    line.contains(": refused ") || line.contains(": weaker ")
}

/// Prints every attempt by name, for readers of the test output.
#[expect(clippy::print_stdout, reason = "it is the report of the probe")]
pub(super) fn show(report: &str) {
    println!("{report}");
}

#[test]
fn files_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through(FILES)
}

#[test]
fn processes_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through(PROCESSES)
}

#[test]
fn the_kernel_is_out_of_reach() -> Result<()> {
    nothing_gets_through(KERNEL)
}

#[test]
fn networks_outside_are_out_of_reach() -> Result<()> {
    nothing_gets_through(NETWORK)
}

#[test]
fn our_own_interfaces_are_out_of_reach() -> Result<()> {
    nothing_gets_through(OWN_API)
}
