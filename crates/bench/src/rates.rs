//! Rates: launches per second, memory of an idle sandbox, and bytes per second from a program to
//! this process.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jail::machine::parse::memory_bytes;
use model::Limits;
use runtime::{ExecSpec, Runtime, Sandbox, Sink};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::failed;
use command::failure::Failure;
use command::native;

/// Memory is stable when it has changed by at most this much for this long.
const STILL_BYTES: u64 = 1 << 20;
const STILL_FOR: Duration = Duration::from_secs(1);
/// How often to look. On a busy machine memory is never stable.
const SETTLE_LOOKS: u32 = 20;
/// Launches at once when only their result counts.
const CROWD: u32 = 8;
const READ_BYTES: usize = 1 << 20;

/// Launches per second, and launches with removal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LaunchRate {
    pub(crate) network: &'static str,
    pub(crate) concurrency: u32,
    /// Only launching.
    pub(crate) launches_per_s: f64,
    /// Launching and removing, each in turn.
    pub(crate) cycles_per_s: f64,
}

/// Measures launches per second, with several callers at once.
pub(crate) async fn launches(
    runtime: &Arc<dyn Runtime>,
    network: &'static str,
    concurrency: u32,
    count: u32,
) -> Result<LaunchRate, Failure> {
    let started_at = Instant::now();
    let sandboxes = launch_many(runtime, concurrency, count).await?;
    let launching = started_at.elapsed();
    kill_all(sandboxes).await?;

    let started_at = Instant::now();
    let left = Arc::new(AtomicU32::new(count));
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (runtime, left) = (Arc::clone(runtime), Arc::clone(&left));
        workers.spawn(async move {
            while take_one(&left) {
                let sandbox = launch(runtime.as_ref()).await?;
                sandbox.kill().await.map_err(failed)?;
            }
            Ok::<(), Failure>(())
        });
    }
    joined(workers).await?;
    let cycling = started_at.elapsed();
    let per_s = |time: Duration| f64::from(count) / time.as_secs_f64();
    let (launches_per_s, cycles_per_s) = (per_s(launching), per_s(cycling));
    Ok(LaunchRate { network, concurrency, launches_per_s, cycles_per_s })
}

/// Memory of one idle sandbox: how much more is in use with many of them than without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Footprint {
    /// Whether limits were enforced.
    pub(crate) limits: bool,
    pub(crate) sandboxes: u32,
    /// By `MemAvailable` of the kernel.
    pub(crate) mb_each_available: f64,
    /// By memory that is neither free nor cache.
    pub(crate) mb_each_used: f64,
    /// How long it took to launch them all.
    pub(crate) launch_s: f64,
}

/// Launches many sandboxes and leaves them idle.
pub(crate) async fn footprint(
    runtime: &Arc<dyn Runtime>,
    limits: bool,
    sandboxes: u32,
) -> Result<Footprint, Failure> {
    // A few sandboxes first: what every run needs once must not be counted.
    kill_all(launch_many(runtime, CROWD, CROWD).await?).await?;
    let before = Memory::at_rest().await?;
    let started_at = Instant::now();
    let launched = launch_many(runtime, CROWD, sandboxes).await?;
    let launch_s = started_at.elapsed().as_secs_f64();
    let after = Memory::at_rest().await?;
    kill_all(launched).await?;
    let (mb_each_available, mb_each_used) = after.more_than(&before, sandboxes);
    Ok(Footprint { limits, sandboxes, mb_each_available, mb_each_used, launch_s })
}

/// Memory of the whole machine that is in use, counted in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    unavailable: u64,
    used: u64,
}

impl Memory {
    fn now() -> Result<Self, Failure> {
        let text = std::fs::read_to_string("/proc/meminfo");
        let text = text.map_err(|error| Failure::new("cannot read memory", error))?;
        Self::of(&text)
            .ok_or_else(|| Failure::new("cannot read memory", "/proc/meminfo is not understood"))
    }

    /// Waits until memory is stable: the kernel frees namespaces long after their last process.
    pub(crate) async fn at_rest() -> Result<Self, Failure> {
        let mut last = Self::now()?;
        for _ in 0..SETTLE_LOOKS {
            sleep(STILL_FOR).await;
            let now = Self::now()?;
            if now.used.abs_diff(last.used) <= STILL_BYTES {
                return Ok(now);
            }
            last = now;
        }
        Ok(last)
    }

    /// How much more than before, for each of so many, in megabytes: by what is not available, and by
    /// what is used.
    pub(crate) fn more_than(&self, before: &Self, many: u32) -> (f64, f64) {
        let each = |before: u64, after: u64| {
            let grown = number(after) - number(before);
            grown / 1e6 / f64::from(many)
        };
        (each(before.unavailable, self.unavailable), each(before.used, self.used))
    }

    fn of(meminfo: &str) -> Option<Self> {
        let value = |key| memory_bytes(meminfo, key);
        let total = value("MemTotal")?;
        let caches = value("Cached")? + value("Buffers")? + value("SReclaimable")?;
        // The kernel counts memory file systems as cache, but they are in use.
        let caches = caches.saturating_sub(value("Shmem")?);
        let used = total.saturating_sub(value("MemFree")?).saturating_sub(caches);
        Some(Self { unavailable: total.saturating_sub(value("MemAvailable")?), used })
    }
}

/// Bytes per second through a pipe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Throughput {
    /// From a program in a sandbox.
    pub(crate) gb_per_s: f64,
    /// From the same program without a sandbox.
    pub(crate) bare_gb_per_s: f64,
}

/// Lets a program write so many megabytes, in a sandbox and without one. The best of a few, in
/// turn.
pub(crate) async fn throughput(
    runtime: &Arc<dyn Runtime>,
    megabytes: u32,
    times: u32,
) -> Result<Throughput, Failure> {
    let sandbox = launch(runtime.as_ref()).await?;
    let count = format!("count={megabytes}");
    let argv = ["dd", "if=/dev/zero", "bs=1M", &count, "status=none"];
    let mut best = Throughput { gb_per_s: 0.0, bare_gb_per_s: 0.0 };
    for _ in 0..times {
        let bare = tokio::task::block_in_place(|| bare_throughput(&argv))?;
        best.bare_gb_per_s = best.bare_gb_per_s.max(bare);
        let spec = ExecSpec { stderr: Sink::Null, ..ExecSpec::argv(argv) };
        let started_at = Instant::now();
        let mut process = sandbox.inside().exec(spec).await.map_err(failed)?;
        let mut total = 0;
        if let Some(mut output) = process.stdout.take() {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let read = output.read(&mut buffer).await;
                match read.map_err(|error| Failure::new("cannot read output", error))? {
                    0 => break,
                    length => total += length,
                }
            }
        }
        process.wait().await.map_err(failed)?;
        best.gb_per_s = best.gb_per_s.max(gb_per_s(total, started_at.elapsed()));
    }
    sandbox.kill().await.map_err(failed)?;
    Ok(best)
}

fn bare_throughput(argv: &[&str]) -> Result<f64, Failure> {
    let fail = |error| Failure::new("cannot run dd", error);
    let started_at = Instant::now();
    let mut child = std::process::Command::new(argv[0])
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let mut total = 0;
    if let Some(mut output) = child.stdout.take() {
        let mut buffer = vec![0; READ_BYTES];
        while let length @ 1.. = output.read(&mut buffer).map_err(fail)? {
            total += length;
        }
    }
    child.wait().map_err(fail)?;
    Ok(gb_per_s(total, started_at.elapsed()))
}

fn gb_per_s(bytes: usize, time: Duration) -> f64 {
    number(bytes as u64) / 1e9 / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one machine fit well into 52 bits")]
fn number(bytes: u64) -> f64 {
    bytes as f64
}

async fn launch(runtime: &dyn Runtime) -> Result<Arc<dyn Sandbox>, Failure> {
    runtime.launch(native::spec(Limits::default())?).await.map_err(failed)
}

fn take_one(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

async fn launch_many(
    runtime: &Arc<dyn Runtime>,
    concurrency: u32,
    count: u32,
) -> Result<Vec<Arc<dyn Sandbox>>, Failure> {
    let left = Arc::new(AtomicU32::new(count));
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (runtime, left) = (Arc::clone(runtime), Arc::clone(&left));
        workers.spawn(async move {
            let mut launched = Vec::new();
            while take_one(&left) {
                launched.push(launch(runtime.as_ref()).await?);
            }
            Ok(launched)
        });
    }
    Ok(joined(workers).await?.into_iter().flatten().collect())
}

async fn kill_all(sandboxes: Vec<Arc<dyn Sandbox>>) -> Result<(), Failure> {
    let mut workers = JoinSet::new();
    let share = sandboxes.len().div_ceil(CROWD as usize).max(1);
    for some in sandboxes.chunks(share).map(<[_]>::to_vec) {
        workers.spawn(async move {
            for sandbox in some {
                sandbox.kill().await.map_err(failed)?;
            }
            Ok(())
        });
    }
    joined(workers).await.map(|_: Vec<()>| ())
}

async fn joined<T: 'static>(mut workers: JoinSet<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    while let Some(one) = workers.join_next().await {
        all.push(one.map_err(|error| Failure::new("cannot measure", error))??);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use runtime::fake::{FakeRuntime, FakeSettings};

    use super::*;

    #[test]
    fn memory_in_use_leaves_caches_out_but_not_memory_files() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nBuffers: 10 kB\n\
                       Cached: 290 kB\nShmem: 90 kB\nSReclaimable: 50 kB\n";
        let memory = Memory::of(meminfo).unwrap();
        assert_eq!(memory, Memory { unavailable: 400 << 10, used: (1000 - 300 - 260) << 10 });
    }

    #[tokio::test]
    async fn rates_leave_nothing_behind() {
        let fake = Arc::new(FakeRuntime::new(FakeSettings::default()));
        let runtime: Arc<dyn Runtime> = fake.clone();
        let rate = launches(&runtime, "none", 4, 20).await.unwrap();
        assert!(rate.launches_per_s > 0.0 && rate.cycles_per_s > 0.0);
        assert_eq!(runtime.list().await.unwrap(), []);
    }
}
