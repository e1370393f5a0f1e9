//! Unexpected exits of native sandboxes. Needs root on Linux; elsewhere these say that
//! they were skipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{InstanceId, Template, TemplateName};
use runtime::leftovers::Leftovers;
use runtime::native::{LauncherProcess, Native, NativeConfig};
use runtime::{ExecSpec, ExitStatus, LaunchSpec, Runtime as _, RuntimeErrorCode, Sandbox};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ends-{}-{name}", std::process::id()))
}

fn template() -> Template {
    Template::named(TemplateName::new("default").expect("a name"))
}

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("skipped: only root can make native sandboxes");
    }
    is_root
}

async fn start(place: &Path) -> Option<Native> {
    if !is_root() {
        return None;
    }
    let mut config = NativeConfig::new(place.join("run"));
    (config.slots, config.spares) = (16, 2);
    Some(Native::start(config).await.expect("started"))
}

async fn launch(native: &Native, n: u32) -> Arc<dyn Sandbox> {
    let id = InstanceId::from_u128(u128::from(std::process::id()) << 32 | u128::from(n));
    native.launch(LaunchSpec::of(&template(), id)).await.expect("launched")
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
}

/// The lock file goes when all else is gone.
async fn until_nothing_is_left(place: &Path) {
    for _ in 0..1000 {
        let left = std::fs::read_dir(place.join("run")).expect("the run directory").count();
        if left == 0 {
            std::fs::remove_dir_all(place).expect("removed");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("something is left in {}", place.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_guest_is_reported_with_its_signal() {
    let place = place("guest");
    let Some(native) = start(&place).await else { return };
    let mut deaths = native.events();
    let (sandbox, neighbour) = (launch(&native, 1).await, launch(&native, 2).await);
    let mut process = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    kill(native.guest_pid(sandbox.instance()).expect("its process"));
    let ended = timeout(Duration::from_secs(1), process.wait()).await.expect("within a second");
    let error = ended.unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::SandboxGone);
    assert!(error.cause.contains("signal 9"), "{error}");
    let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
    assert_eq!((died.instance, died.status), (sandbox.instance(), Some(ExitStatus::Signal(9))));
    sandbox.kill().await.expect("a kill of an ended sandbox succeeds");
    neighbour.inside().ping().await.expect("it is not concerned");
    native.shutdown().await.expect("shut down");
    until_nothing_is_left(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_launcher_fails_every_caller_and_leaves_nothing() {
    let place = place("launcher");
    let Some(native) = start(&place).await else { return };
    let mut deaths = native.events();
    let sandbox = launch(&native, 3).await;
    let mut process = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    sandbox.freeze().await.expect("frozen");
    kill(native.launcher_pid());
    let ended = timeout(Duration::from_secs(1), process.wait()).await.expect("within a second");
    assert_eq!(ended.unwrap_err().code, RuntimeErrorCode::SandboxGone);
    timeout(PATIENCE, sandbox.kill()).await.expect("in time").expect("killed");
    let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
    assert_eq!((died.instance, died.status), (sandbox.instance(), None));
    let late = native.launch(LaunchSpec::of(&template(), InstanceId::from_u128(9))).await;
    assert_eq!(late.err().expect("refused").code, RuntimeErrorCode::LauncherLost);
    native.shutdown().await.expect("shut down");
    until_nothing_is_left(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_dropped_leaves_nothing() {
    let place = place("dropped");
    let Some(native) = start(&place).await else { return };
    let sandbox = launch(&native, 4).await;
    let _process = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    drop(native);
    let gone = timeout(PATIENCE, async { while sandbox.inside().ping().await.is_ok() {} }).await;
    gone.expect("its sandboxes go with it");
    until_nothing_is_left(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_whose_server_dies_during_its_start_ends_too() {
    if !is_root() {
        return;
    }
    let place = place("early");
    for after_us in [0, 300, 1000, 2000, 3000, 4000, 6000, 10_000] {
        let config = NativeConfig::new(place.join("run"));
        let run = config.run.clone();
        let process = LauncherProcess::start(config).expect("started");
        tokio::time::sleep(Duration::from_micros(after_us)).await;
        drop(process);
        let leftovers = Leftovers::on_this_machine(place.join("run")).expect("a machine");
        // Its lock can be taken when it has ended.
        let ended = async {
            while leftovers.remove_run(&run).expect("looked").runs.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, ended).await.expect("it ends by itself");
    }
    until_nothing_is_left(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_dead_run_are_removed_and_a_live_run_is_spared() {
    let place = place("leftovers");
    let Some(living) = start(&place).await else { return };
    let sandbox = launch(&living, 5).await;
    // What a run leaves whose launcher and host were both killed: groups, one with a process.
    let groups = PathBuf::from("/sys/fs/cgroup/unified/shoal/dead-run/slot-7");
    let groups = if groups.ancestors().nth(3).is_some_and(Path::exists) {
        groups
    } else {
        PathBuf::from("/sys/fs/cgroup/shoal/dead-run/slot-7")
    };
    std::fs::create_dir_all(&groups).expect("groups");
    let mut orphan = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
    std::fs::write(groups.join("cgroup.procs"), orphan.id().to_string()).expect("moved");
    std::fs::write(place.join("run/dead-run.lock"), "").expect("a lock");
    let leftovers = Leftovers::on_this_machine(place.join("run")).expect("a machine");
    // The process is ours, so that it is gone only once it is waited for.
    let waiting = std::thread::spawn(move || orphan.wait());
    let reaped = living.reap_orphans().await.expect("reaped");
    assert_eq!(reaped.runs, ["dead-run"], "{reaped:?}");
    assert_eq!((reaped.processes, reaped.stuck.len()), (1, 0), "{reaped:?}");
    assert!(reaped.control_groups >= 2, "{reaped:?}");
    assert!(!groups.exists());
    waiting.join().expect("no panic").expect("it has ended");
    sandbox.inside().ping().await.expect("the living are spared");
    assert_eq!(leftovers.remove_all().expect("looked"), runtime::Reaped::default());
    living.shutdown().await.expect("shut down");
    until_nothing_is_left(&place).await;
}
