//! As many idle sandboxes as one machine is meant to hold, each of them alive; and when they are
//! gone, so is all that they took. What the kernel holds is compared before and after, not what all
//! programs hold: the memory of ours ends with them, and that of others is not ours to count.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jail::machine::parse::memory_bytes;
use runtime::{Runtime as _, RuntimeError, Sandbox};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::node::{Node, on_node_within, skip};

/// How many there are if `IDLE_SANDBOXES` does not say; `scripts/long.sh` says 5,000.
const SANDBOXES: usize = 500;

/// How many are made, asked or ended at once: more would only wait for each other.
const AT_ONCE: usize = 32;

/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_mins(4);

/// What each needs, with room for others.
const NEEDED_BYTES_EACH: u64 = 2_500_000;

/// What the kernel may hold for one of so many. Half of it is theirs alone. The other half grows
/// with their number: in each memory group the kernel keeps 16 bytes for each file system there is
/// on the machine, and a sandbox has one of the former and eight of the latter.
const KERNEL_BYTES_EACH_AT_MOST: u64 = 1_500_000;

/// How much of what it held the kernel may keep, and what it may keep besides. It gives its objects
/// back by the page, and a page goes only with the last object in it.
const KEPT_AT_MOST_PERCENT: u64 = 5;
const KEPT_BESIDES_BYTES: u64 = 16 << 20;

/// How often to look whether it has given everything back: namespaces go after their processes.
const LOOKS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(500);

/// Descriptors of a process for each sandbox, and beside them.
const DESCRIPTORS_EACH: usize = 2;
const DESCRIPTORS_BESIDE: usize = 64;

/// Who else may come and go on the machine meanwhile.
const OTHER_PROCESSES: usize = 500;

#[test]
fn thousands_of_idle_sandboxes() -> Result<()> {
    // The first of a process makes a pair of sockets for signals that stays for good.
    drop(tokio::runtime::Builder::new_current_thread().enable_all().build()?);
    let before = Held::now()?;
    let count = std::env::var("IDLE_SANDBOXES").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(SANDBOXES);
    if before.available_bytes < NEEDED_BYTES_EACH * count as u64 {
        return skip("not enough memory for so many sandboxes");
    }
    let mut full = before;
    on_node_within(
        PATIENCE,
        |config| config.slots = count as u32,
        async |node: &Node| {
            let sandboxes = launch(node, count).await?;
            at_once(&sandboxes, async |sandbox| sandbox.inside().ping().await).await?;
            full = Held::now()?;
            ensure!(node.native().list().await?.len() == count);
            for pid in [std::process::id(), node.launcher()] {
                let descriptors = descriptors_of(pid)?;
                let at_most = count * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE;
                ensure!(descriptors <= at_most, "process {pid} has {descriptors} descriptors");
            }
            let started_at = Instant::now();
            at_once(&sandboxes, async |sandbox| sandbox.kill().await).await?;
            say(&format!("all ended after {:.1} s", started_at.elapsed().as_secs_f64()));
            ensure!(node.native().list().await?.is_empty());
            Ok(())
        },
    )?;
    let each = full.kernel_bytes.saturating_sub(before.kernel_bytes) / count as u64;
    let used = before.available_bytes.saturating_sub(full.available_bytes) / count as u64;
    say(&format!("for each the kernel holds {each} bytes, all in all {used} bytes"));
    ensure!(each <= KERNEL_BYTES_EACH_AT_MOST, "the kernel holds {each} bytes for each");
    settled(before, full)
}

async fn launch(node: &Node, count: usize) -> Result<Vec<Arc<dyn Sandbox>>> {
    let started_at = Instant::now();
    let mut launches = JoinSet::new();
    let mut made = Vec::with_capacity(count);
    while made.len() < count {
        while launches.len() < AT_ONCE && made.len() + launches.len() < count {
            let (native, spec) = (node.native(), node.spec());
            launches.spawn(async move { native.launch(spec).await });
        }
        let launched = launches.join_next().await.context("one is on its way")??;
        made.push(launched.with_context(|| format!("after {} sandboxes", made.len()))?);
    }
    say(&format!("launched in {:.1} s", started_at.elapsed().as_secs_f64()));
    Ok(made)
}

/// Does the same with all of them.
async fn at_once(
    sandboxes: &[Arc<dyn Sandbox>],
    act: impl AsyncFn(&Arc<dyn Sandbox>) -> Result<(), RuntimeError>,
) -> Result<()> {
    for some in sandboxes.chunks(AT_ONCE) {
        for acted in super::programs::all_of(some.iter().map(|one| act(one))).await {
            acted?;
        }
    }
    Ok(())
}

/// Waits until everything is back where it was.
fn settled(before: Held, full: Held) -> Result<()> {
    let taken = full.kernel_bytes.saturating_sub(before.kernel_bytes);
    let kept_at_most = taken * KEPT_AT_MOST_PERCENT / 100 + KEPT_BESIDES_BYTES;
    let mut now = Held::now()?;
    for _ in 0..LOOKS {
        // Threads of ours that wait for a launcher's end have a descriptor each until they ended.
        if now.kernel_bytes.saturating_sub(before.kernel_bytes) <= kept_at_most
            && now.descriptors <= before.descriptors
        {
            break;
        }
        std::thread::sleep(PAUSE);
        now = Held::now()?;
    }
    let kept = now.kernel_bytes.saturating_sub(before.kernel_bytes);
    say(&format!("of {taken} bytes the kernel keeps {kept}"));
    ensure!(kept <= kept_at_most, "the kernel keeps {kept} of {taken} bytes");
    ensure!(now.descriptors <= before.descriptors, "{:?}, before {before:?}", open_files());
    ensure!(now.mounts <= before.mounts, "{now:?}, before {before:?}");
    ensure!(now.groups <= before.groups, "{now:?}, before {before:?}");
    ensure!(now.processes <= before.processes + OTHER_PROCESSES, "{now:?}, before {before:?}");
    Ok(())
}

/// What is held on the whole machine, and by this process where it says so.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Memory that could be had.
    available_bytes: u64,
    /// Memory of the kernel's objects, and of files that are nowhere but in memory.
    kernel_bytes: u64,
    /// Control groups of ours, in all hierarchies that can be seen.
    groups: usize,
    /// Mounts that this process sees.
    mounts: usize,
    processes: usize,
    /// Descriptors of this process.
    descriptors: usize,
}

impl Held {
    fn now() -> Result<Self> {
        let meminfo = std::fs::read_to_string("/proc/meminfo")?;
        let value = |key| memory_bytes(&meminfo, key).with_context(|| format!("no {key}"));
        let of_kernel = ["SUnreclaim", "Percpu", "KernelStack", "PageTables", "Shmem"];
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        Ok(Self {
            available_bytes: value("MemAvailable")?,
            kernel_bytes: of_kernel.into_iter().map(value).sum::<Result<_>>()?,
            groups: groups_beneath(Path::new("/sys/fs/cgroup"), false),
            mounts: std::fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
            processes: std::fs::read_dir("/proc")?
                .flatten()
                .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
                .count(),
            descriptors: descriptors_of(std::process::id())?,
        })
    }
}

/// What our own descriptors are.
fn open_files() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    all.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

fn descriptors_of(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// How many groups there are beneath those with our name.
fn groups_beneath(directory: &Path, ours: bool) -> usize {
    let children = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .map(|child| {
            let ours = ours || child.file_name() == "shoal";
            usize::from(ours) + groups_beneath(&child.path(), ours)
        })
        .sum()
}

#[expect(clippy::print_stderr, reason = "a person who runs it by hand wants the numbers")]
fn say(text: &str) {
    eprintln!("{text}");
}
