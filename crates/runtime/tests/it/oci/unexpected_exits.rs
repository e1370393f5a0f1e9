//! Unexpected exits of containers, and the removal of containers whose server is gone.

use std::os::unix::process::ExitStatusExt as _;

use runtime::leftovers::Leftovers;
use runtime::oci::{OciConfig, Program};
use runtime::{ExecSpec, Reaped, RuntimeErrorCode};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use super::{OciSubject, PATIENCE, over_programs, processes_that_know, sh, spec};
use runtime::conformance::Subject as _;

over_programs! {
    container_killed_from_outside_is_reported
    orphans_only_are_reaped
}

/// Processes in the control groups of a run. What is dead and has not been heard of is none.
fn processes_of(run: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let groups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let is_alive =
            std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty());
        if is_alive && groups.contains(&format!("/shoal/{run}/")) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    found
}

async fn container_killed_from_outside_is_reported(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let mut deaths = runtime.events();
    let sandbox = runtime.launch(spec()).await.expect("launched");
    let mut process = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    for pid in processes_of(&subject.run) {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
        // They go together.
        let _ = kill_process(pid, Signal::KILL);
    }
    let error = timeout(PATIENCE, process.wait()).await.expect("in time");
    let error = error.expect_err("it went with the sandbox");
    assert_eq!(error.code, RuntimeErrorCode::SandboxGone);
    let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
    assert_eq!((died.instance, died.out_of_memory), (sandbox.instance(), false));
    assert_eq!(runtime.list().await.expect("listed"), []);
    subject.end(&*runtime).await;
}

/// Tells a process of its own which server it is to be: the program, the run directory and the run.
const MORTAL: &str = "SHOAL_TEST_MORTAL";

/// A server that is killed, with two containers, one of them frozen. Does nothing unless the
/// environment variable is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed() {
    let Ok(setting) = std::env::var(MORTAL) else { return };
    let [program, directory, run] = setting.split(':').collect::<Vec<_>>()[..] else {
        panic!("{setting}")
    };
    let program = Program::ALL.into_iter().find(|one| one.as_str() == program).expect("a program");
    let mut config = OciConfig::new(program, directory);
    run.clone_into(&mut config.run);
    let runtime = runtime::oci::start(config).await.expect("started");
    let sandbox = runtime.launch(spec()).await.expect("launched");
    assert!(sh(&*sandbox, "sleep 1000 >&- 2>&- & true").await.exit.success());
    runtime.launch(spec()).await.expect("launched").freeze().await.expect("frozen");
    kill_process(rustix::process::getpid(), Signal::KILL).expect("killed");
}

fn let_one_die(config: &OciConfig) {
    let setting =
        format!("{}:{}:{}", config.program.as_str(), config.run_directory.display(), config.run);
    let status = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "oci::unexpected_exits::a_server_that_is_killed"])
        .env(MORTAL, setting)
        .status();
    assert_eq!(status.expect("it ran").signal(), Some(9));
}

async fn orphans_only_are_reaped(program: Program) {
    let subject = OciSubject::new(program);
    let Some(runtime) = subject.begin(|_| {}).await else { return };
    let alive = runtime.launch(spec()).await.expect("launched");
    let dead = OciConfig::new(program, subject.place.join("run"));
    let run = dead.run.clone();
    tokio::task::spawn_blocking(move || let_one_die(&dead)).await.expect("no panic");
    assert!(!processes_of(&run).is_empty(), "the frozen one is still there");

    let reaped = runtime.reap_orphans().await.expect("reaped");
    assert_eq!((reaped.runs.as_slice(), reaped.stuck.len()), (&[run.clone()][..], 0), "{reaped:?}");
    assert_eq!(processes_of(&run), Vec::<u32>::new());
    assert_eq!(processes_that_know(&run), Vec::<String>::new());
    alive.inside().ping().await.expect("a live sandbox stays alive");
    // A cleanup from elsewhere finds nothing, and touches nothing.
    let place = subject.place.join("run");
    let again = Leftovers::on_this_machine(place).expect("found").remove_all().expect("removed");
    assert_eq!(again, Reaped::default());
    alive.inside().ping().await.expect("a live sandbox stays alive");
    subject.end(&*runtime).await;
    assert_eq!(subject.remains(), Vec::<String>::new());
}
