//! Control groups of the second generation, with every controller, looked at where the kernel keeps
//! them. The machines that run these tests every day have the first: `scripts/vm/run.sh` boots one
//! that has the second alone, and runs what is ignored here. It is emulated and slow, so programs
//! are lines of shell, and nothing here is about time but what cannot be otherwise. All but the
//! last hold for root, and for an ordinary user in delegated groups.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use model::Limits;
use runtime::{ExecSpec, ExitStatus, LaunchSpec, RunLimits, Runtime as _, Sandbox};

use super::node::{Node, on_node_within};

const PATIENCE: Duration = Duration::from_mins(4);

const LIMITS: Limits = Limits {
    memory_mb: 64,
    cpu_milli: 500,
    pids: 24,
    best_effort: false,
    workspace_mb: 16,
    exec_output_bytes: 1 << 20,
    exec_timeout_ms: 120_000,
};

/// Programs that would take too long are ended then.
const PROGRAM_PATIENCE: Duration = Duration::from_mins(2);

/// A line that never ends by itself.
const SPIN: &str = "while :; do :; done";

/// A line that wants more memory than there is.
const HOG: &str = "exec tail /dev/zero";

/// Runs a test on a node with few slots, and sees that no group of ours is left afterwards.
fn on_small_node(test: impl AsyncFnOnce(&Node) -> Result<()>) -> Result<()> {
    on_node_within(
        PATIENCE,
        |config| {
            config.slots = 2;
            config.spares = 0;
        },
        test,
    )?;
    let left = ours_beneath(Path::new("/sys/fs/cgroup"));
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// Groups with our name.
fn ours_beneath(directory: &Path) -> Vec<PathBuf> {
    let children = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()));
    let paths = directories.map(|child| child.path());
    let (mut ours, others): (Vec<_>, Vec<_>) = paths.partition(|path| path.ends_with("shoal"));
    ours.extend(others.iter().flat_map(|path| ours_beneath(path)));
    ours
}

/// The group in which the guest of a sandbox is.
fn group_of(node: &Node, sandbox: &Arc<dyn Sandbox>) -> Result<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", node.guest_of(sandbox)?))?;
    let path = text.trim().strip_prefix("0::/").context("there is a second generation alone")?;
    Ok(Path::new("/sys/fs/cgroup").join(path))
}

fn read(group: &Path, file: &str) -> Result<String> {
    let text = std::fs::read_to_string(group.join(file));
    Ok(text.with_context(|| format!("{file} of {}", group.display()))?.trim().to_owned())
}

/// A number in a file of lines with a name and a number each.
fn number(group: &Path, file: &str, name: &str) -> Result<u64> {
    let text = read(group, file)?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(found.with_context(|| format!("no {name} in {text}"))?.parse()?)
}

async fn sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<runtime::Collected> {
    let limits = RunLimits { timeout: PROGRAM_PATIENCE, ..RunLimits::from(&LIMITS) };
    Ok(sandbox.inside().run(ExecSpec::shell(line), limits).await?)
}

#[test]
#[ignore = "needs control groups of the second generation alone: scripts/vm/run.sh"]
fn cgroup_v2_limits_are_written_where_the_kernel_enforces_them() -> Result<()> {
    on_small_node(async |node: &Node| {
        let sandbox = node.sandbox_with(LIMITS).await?;
        let group = group_of(node, &sandbox)?;
        ensure!(read(&group, "memory.max")? == (64 << 20).to_string());
        if group.join("memory.swap.max").exists() {
            ensure!(read(&group, "memory.swap.max")? == "0");
        }
        ensure!(read(&group, "cpu.max")? == "50000 100000");
        // The guest is one of them.
        ensure!(read(&group, "pids.max")? == "25");
        // What all have together is less than the machine has.
        let all = group.parent().context("a group is in another")?;
        let memory: u64 = read(all, "memory.max")?.parse()?;
        let machine = rustix::system::sysinfo();
        ensure!(memory < machine.totalram * u64::from(machine.mem_unit), "{memory}");
        let pids: u64 = read(all, "pids.max")?.parse()?;
        let pid_max = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
        ensure!(pids < pid_max.trim().parse()?, "{pids}");
        Ok(())
    })
}

#[test]
#[ignore = "needs control groups of the second generation alone: scripts/vm/run.sh"]
fn cgroup_v2_sandboxes_start_in_their_groups() -> Result<()> {
    on_small_node(async |node: &Node| {
        let sandbox = node.sandbox_with(LIMITS).await?;
        let group = group_of(node, &sandbox)?;
        ensure!(read(&group, "cgroup.procs")? == node.guest_of(&sandbox)?.to_string());
        let launcher = std::fs::read_to_string(format!("/proc/{}/cgroup", node.launcher()))?;
        ensure!(!launcher.contains("slot-"), "{launcher}");
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            ensure!(name.trim() != "shoal-seed", "there is a slot parent, which v2 does not need");
        }
        let inside = sh(&sandbox, "cat /proc/self/cgroup").await?;
        ensure!(inside.stdout == b"0::/\n", "it sees where it is: {inside:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs control groups of the second generation alone: scripts/vm/run.sh"]
fn cgroup_v2_out_of_memory_is_reported_once_and_not_to_the_next_sandbox() -> Result<()> {
    on_small_node(async |node: &Node| {
        let neighbour = node.sandbox_with(LIMITS).await?;
        let mut deaths = node.native().events();
        let mut groups = Vec::new();
        for _ in 0..2 {
            let greedy = node.sandbox_with(LIMITS).await?;
            let group = group_of(node, &greedy)?;
            let killed = sh(&greedy, "kill -9 $$").await?;
            ensure!(killed.exit.status == ExitStatus::Signal(9), "{killed:?}");
            ensure!(!killed.exit.out_of_memory, "it reports the end of the one before");
            let before = number(&group, "memory.events", "oom_kill")?;
            let ran = sh(&greedy, HOG).await?;
            ensure!(ran.exit.status == ExitStatus::Signal(9), "{ran:?}");
            ensure!(ran.exit.out_of_memory, "it was killed without a reported cause");
            ensure!(number(&group, "memory.events", "oom_kill")? > before);
            ensure!(sh(&greedy, "echo alive").await?.stdout == b"alive\n");
            greedy.kill().await?;
            let died = tokio::time::timeout(PROGRAM_PATIENCE, deaths.next()).await?;
            ensure!(
                died.context("a death is reported")?.out_of_memory,
                "its end says nothing of it"
            );
            groups.push(group);
        }
        ensure!(groups[0] == groups[1], "the slot was not used again: {groups:?}");
        ensure!(sh(&neighbour, "echo here").await?.stdout == b"here\n");
        neighbour.kill().await?;
        let died = tokio::time::timeout(PROGRAM_PATIENCE, deaths.next()).await?;
        ensure!(
            !died.context("a death is reported")?.out_of_memory,
            "it reports its neighbour's end"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs control groups of the second generation alone: scripts/vm/run.sh"]
fn cgroup_v2_process_limit_stops_forks() -> Result<()> {
    on_small_node(async |node: &Node| {
        let greedy = node.sandbox_with(LIMITS).await?;
        let group = group_of(node, &greedy)?;
        // The shell ends with its first fork that fails.
        let fork = "n=0; while [ $n -lt 100 ]; do sleep 100 & n=$((n + 1)); echo $n; done";
        let ran = sh(&greedy, fork).await?;
        let text = String::from_utf8(ran.stdout)?;
        let made: u32 = text.lines().last().context("it counts")?.parse()?;
        // The shell is one of them.
        ensure!(made + 1 == LIMITS.pids, "{made} beside the shell: {:?}", ran.exit);
        ensure!(number(&group, "pids.events", "max")? > 0);
        greedy.inside().ping().await?;
        Ok(())
    })
}

#[test]
#[ignore = "needs control groups of the second generation alone: scripts/vm/run.sh"]
fn cgroup_v2_cpu_limit_holds_and_a_frozen_sandbox_gets_nothing() -> Result<()> {
    on_small_node(async |node: &Node| {
        let sandbox = node.sandbox_with(Limits { cpu_milli: 100, ..LIMITS }).await?;
        let group = group_of(node, &sandbox)?;
        let used_us = || number(&group, "cpu.stat", "usage_usec");
        let _busy = sandbox.inside().exec(ExecSpec::shell(SPIN)).await?;
        let before_us = used_us()?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let share_us = used_us()? - before_us;
        // A tenth of five seconds, and generously more: without a limit it would be all of them.
        ensure!((100_000..2_000_000).contains(&share_us), "{share_us} µs of 5 s");
        ensure!(number(&group, "cpu.stat", "nr_throttled")? > 0);

        sandbox.freeze().await?;
        ensure!(number(&group, "cgroup.events", "frozen")? == 1);
        let frozen_us = used_us()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(used_us()? == frozen_us, "what is frozen has computed");
        sandbox.thaw().await?;
        sandbox.inside().ping().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(used_us()? > frozen_us, "what was thawed does nothing");

        // What is frozen can be killed, and its slot works again.
        sandbox.freeze().await?;
        sandbox.kill().await?;
        for _ in 0..2 {
            node.sandbox_with(LIMITS).await?.inside().ping().await?;
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs a user to whom no control group was handed over: scripts/vm/run.sh"]
fn cgroup_v2_without_groups_refuses_limits() -> Result<()> {
    on_small_node(async |node: &Node| {
        let strict = LaunchSpec { limits: LIMITS, ..node.spec() };
        let refused = node.native().launch(strict).await.err().context("it was launched")?;
        ensure!(refused.code().as_str() == "unsupported", "{refused}");
        ensure!(refused.to_string().contains("memory_mb"), "it names no field: {refused}");
        let limits = Limits { best_effort: true, ..LIMITS };
        let sandbox = node.sandbox_with(limits).await?;
        ensure!(sh(&sandbox, "echo here").await?.stdout == b"here\n");
        let unfrozen = sandbox.freeze().await.err().context("it was frozen")?;
        ensure!(unfrozen.code().as_str() == "unsupported", "{unfrozen}");
        Ok(())
    })
}
