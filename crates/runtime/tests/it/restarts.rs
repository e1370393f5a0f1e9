//! A launcher that is killed is followed by another one. Needs root on Linux; elsewhere these say
//! that they were skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{InstanceId, Template, TemplateName};
use runtime::native::{Native, NativeConfig};
use runtime::{
    Deaths, ExecSpec, LaunchSpec, RunLimits, Runtime as _, RuntimeError, RuntimeErrorCode, Sandbox,
};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

static INSTANCES: AtomicU64 = AtomicU64::new(1);

fn template() -> Template {
    Template::named(TemplateName::new("default").expect("a name"))
}

/// A runtime with a run directory of its own.
struct Node {
    native: Arc<Native>,
    place: PathBuf,
}

impl Node {
    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    async fn start(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "in CI nothing may be skipped");
            println!("!!!! skipped: only root can make native sandboxes !!!!");
            return None;
        }
        let place = std::env::temp_dir().join(format!("restarts-{}-{name}", std::process::id()));
        let mut config = NativeConfig::new(place.join("run"));
        (config.slots, config.spares, config.restart) = (64, 4, true);
        let native = Native::start(config).await.expect("started");
        Some(Self { native: Arc::new(native), place })
    }

    /// The only run there is.
    fn run(&self) -> String {
        let runs = runs(&self.place);
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs[0].clone()
    }

    /// Waits until the next launcher serves, and gives the first sandbox that it makes.
    async fn until_it_launches_again(&self) -> Arc<dyn Sandbox> {
        let again = async {
            loop {
                match launch(&self.native).await {
                    Ok(sandbox) => return sandbox,
                    Err(error) => {
                        assert_eq!(error.code, RuntimeErrorCode::LauncherLost, "{error}");
                        assert!(error.retryable() && error.cause.contains("being started"));
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        };
        timeout(PATIENCE, again).await.expect("it launches again")
    }
}

/// The runs whose locks are there. A lock goes when all else of its run is gone.
fn runs(place: &Path) -> Vec<String> {
    let files = std::fs::read_dir(place.join("run")).expect("the run directory");
    let name = |path: PathBuf| path.file_stem().map(|stem| stem.display().to_string());
    files.filter_map(|file| name(file.expect("a file").path())).collect()
}

/// Nothing is left of a runtime that had these runs.
fn check_nothing_is_left(place: &Path, had: &[String]) {
    assert_eq!(runs(place), [""; 0]);
    for run in had {
        assert_eq!(remains(run), [""; 0], "of {run}");
    }
    std::fs::remove_dir_all(place).expect("removed");
}

async fn launch(native: &Native) -> Result<Arc<dyn Sandbox>, RuntimeError> {
    let n = INSTANCES.fetch_add(1, Ordering::Relaxed);
    let id = InstanceId::from_u128(u128::from(std::process::id()) << 64 | u128::from(n));
    native.launch(LaunchSpec::of(&template(), id)).await
}

/// Succeeds also if the process has ended.
fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::KILL);
}

/// Processes, control groups and mounts of a run.
fn remains(run: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let state = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Init reaps processes whose launcher died before them.
        let is_dead = state.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"));
        if groups.contains(run) && !is_dead {
            found.push(format!("process {}", entry.file_name().display()));
        }
    }
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten();
    for place in hierarchies.map(|entry| entry.path()).chain([root.to_owned()]) {
        let group = place.join("shoal").join(run);
        if group.exists() {
            found.push(group.display().to_string());
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    found.extend(mounts.lines().filter(|line| line.contains(run)).map(str::to_owned));
    found
}

/// Counts the reported deaths until each of these is reported.
async fn reported(deaths: &mut Deaths, expected: &[InstanceId]) -> BTreeMap<InstanceId, usize> {
    let mut reported = BTreeMap::new();
    while !expected.iter().all(|instance| reported.contains_key(instance)) {
        let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
        *reported.entry(died.instance).or_default() += 1;
    }
    reported
}

/// Numbers that look random and are the same each time.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_launcher_is_replaced_every_time() {
    let Some(node) = Node::start("again").await else { return };
    let mut dice = dice(20_261_204);
    let mut deaths = node.native.events();
    let mut runs = Vec::new();
    let mut all = Vec::new();
    for _ in 0..4 {
        let (run, pid) = (node.run(), node.native.launcher_pid());
        let mut live = Vec::new();
        for n in 0..6 {
            let sandbox = launch(&node.native).await.expect("launched");
            if n % 3 == 0 {
                let line = "setsid sleep 600 & sleep 600 & true";
                let limits = RunLimits { output_bytes: 100, timeout: PATIENCE };
                sandbox.inside().run(ExecSpec::shell(line), limits).await.expect("ran");
            }
            if n == 1 {
                sandbox.freeze().await.expect("frozen");
            }
            live.push(sandbox);
        }
        let mut waiting =
            live[0].inside().exec(ExecSpec::shell("sleep 600")).await.expect("started");
        let mut launches = JoinSet::new();
        for _ in 0..20 {
            let native = Arc::clone(&node.native);
            launches.spawn(async move { launch(&native).await });
        }
        tokio::time::sleep(Duration::from_micros(dice(8000))).await;
        kill(pid);
        let ended = timeout(PATIENCE, waiting.wait()).await.expect("ended");
        assert_eq!(ended.unwrap_err().code, RuntimeErrorCode::SandboxGone);
        while let Some(launched) = launches.join_next().await {
            match launched.expect("no panic") {
                // It may have been made just before, or by the next launcher already.
                Ok(sandbox) => live.push(sandbox),
                Err(error) => assert!(error.retryable(), "{error}"),
            }
        }
        let fresh = node.until_it_launches_again().await;
        assert_eq!(remains(&run), [""; 0], "nothing of the last run is left");
        assert_ne!(node.run(), run, "another run has another name");
        assert_ne!(node.native.launcher_pid(), pid);
        let (old, new): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|sandbox| sandbox.ended().is_some());
        assert!(old.len() >= 6, "all of the old ones are over");
        for sandbox in &old {
            sandbox.kill().await.expect("a kill of an ended sandbox succeeds");
            let refused = sandbox.inside().ping().await.unwrap_err();
            assert_eq!(refused.code, RuntimeErrorCode::SandboxGone);
            assert!(node.native.sandbox(sandbox.instance()).is_none());
        }
        let dead: Vec<_> = old.iter().map(|sandbox| sandbox.instance()).collect();
        let counts = reported(&mut deaths, &dead).await;
        assert_eq!(counts, dead.iter().map(|instance| (*instance, 1)).collect(), "each once");
        all.extend(dead);
        runs.push(run);

        fresh.inside().ping().await.expect("it has nothing to do with the old ones");
        let listed = node.native.list().await.expect("listed");
        assert_eq!(listed.len(), new.len() + 1, "{listed:?}");
        let fresh: Vec<_> = new.into_iter().chain([fresh]).collect();
        for sandbox in &fresh {
            sandbox.kill().await.expect("killed");
        }
        let killed: Vec<_> = fresh.iter().map(|sandbox| sandbox.instance()).collect();
        let counts = reported(&mut deaths, &killed).await;
        assert_eq!(counts, killed.iter().map(|instance| (*instance, 1)).collect(), "each once");
    }
    runs.push(node.run());
    node.native.shutdown().await.expect("shut down");
    assert_eq!(deaths.next().await, None, "and no death was reported twice");
    all.sort_unstable();
    all.dedup();
    assert!(all.len() >= 24);
    check_nothing_is_left(&node.place, &runs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_at_any_moment_of_a_launcher_restart_leaves_nothing() {
    // Before it is noticed, in the pause, when the next launcher starts, and when it is up.
    for after_ms in [0, 1, 20, 90, 101, 103, 106, 110, 115, 125, 150, 300] {
        for drops in [false, true] {
            let Some(node) = Node::start(&format!("end-{after_ms}-{drops}")).await else { return };
            let mut deaths = node.native.events();
            let sandbox = launch(&node.native).await.expect("launched");
            let had = [node.run()];
            kill(node.native.launcher_pid());
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            let Node { native, place } = node;
            if !drops {
                timeout(PATIENCE, native.shutdown()).await.expect("in time").expect("shut down");
                assert_eq!(runs(&place), [""; 0], "done means that nothing is left");
                let late = launch(&native).await.err().expect("refused");
                assert_eq!(late.code, RuntimeErrorCode::ShuttingDown, "{late}");
            }
            drop(native);
            let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
            assert_eq!(died.instance, sandbox.instance());
            // The launcher is gone, so it can make no further sandbox.
            assert_eq!(timeout(PATIENCE, deaths.next()).await.expect("in time"), None);
            check_nothing_is_left(&place, &had);
        }
    }
}
