//! The runtime in memory goes wrong exactly when it is asked to.

use std::sync::Arc;
use std::time::Duration;

use model::{InstanceId, Template, TemplateName};
use runtime::fake::{Alive, FakeRuntime, FakeSettings, Fault, Operation};
use runtime::{
    ExecSpec, LaunchSpec, RunLimits, Runtime as _, RuntimeError, RuntimeErrorCode, Sandbox,
};
use tokio::time::{Instant, timeout};

const LIMITS: RunLimits = RunLimits { output_bytes: 100, timeout: Duration::from_mins(1) };

fn spec(n: u128) -> LaunchSpec {
    let template = Template::named(TemplateName::new("default").expect("a name"));
    LaunchSpec::of(&template, InstanceId::from_u128(n))
}

fn broken() -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "test", "asked for")
}

async fn launch(runtime: &FakeRuntime, n: u128) -> Arc<dyn Sandbox> {
    runtime.launch(spec(n)).await.expect("launched")
}

#[tokio::test(start_paused = true)]
async fn injected_faults_come_in_order_and_once() {
    let runtime = FakeRuntime::default();
    runtime.inject(Operation::Launch, Fault::Fail(broken()));
    runtime.inject(Operation::Launch, Fault::Hang);
    runtime.inject(Operation::Launch, Fault::Delay(Duration::from_secs(5)));
    assert_eq!(runtime.launch(spec(1)).await.err(), Some(broken()));
    let hung = runtime.launch(spec(1)).await.err().expect("it hangs");
    assert_eq!(hung.code, RuntimeErrorCode::ReadyTimeout);
    let started_at = Instant::now();
    launch(&runtime, 1).await;
    assert_eq!(started_at.elapsed(), Duration::from_secs(5));
    assert_eq!(runtime.alive(), Alive { sandboxes: 1, ..Alive::default() });
}

#[tokio::test(start_paused = true)]
async fn a_kill_ends_a_launch_that_hangs() {
    let runtime = Arc::new(FakeRuntime::default());
    runtime.inject(Operation::Launch, Fault::Hang);
    let launcher = Arc::clone(&runtime);
    let launching = tokio::spawn(async move { launcher.launch(spec(1)).await.map(|_| ()) });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.list().await.expect("listed"), [InstanceId::from_u128(1)]);
    runtime.kill(InstanceId::from_u128(1)).await.expect("killed");
    let error = launching.await.expect("no panic").unwrap_err();
    assert_eq!(error.code, RuntimeErrorCode::SandboxGone);
    assert_eq!(runtime.alive(), Alive::default());
}

#[tokio::test(start_paused = true)]
async fn sandbox_death_during_a_call_fails_the_call() {
    let runtime = FakeRuntime::default();
    let mut deaths = runtime.events();
    let sandbox = launch(&runtime, 1).await;
    let mut process = sandbox.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    runtime.inject(Operation::Ping, Fault::Die { out_of_memory: true });
    assert_eq!(sandbox.inside().ping().await.unwrap_err().code, RuntimeErrorCode::OutOfMemory);
    assert_eq!(process.wait().await.unwrap_err().code, RuntimeErrorCode::OutOfMemory);
    let died = deaths.next().await.expect("a death");
    assert!(died.out_of_memory);
    assert_eq!(sandbox.ended(), Some(died));
    sandbox.kill().await.expect("killed");
    assert_eq!(runtime.alive(), Alive::default());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_hangs_misses_the_deadline_and_can_be_killed() {
    let runtime = FakeRuntime::default();
    let sandbox = launch(&runtime, 1).await;
    for operation in [Operation::Ping, Operation::Files, Operation::Kill] {
        runtime.inject(operation, Fault::Hang);
    }
    assert_eq!(sandbox.inside().ping().await.unwrap_err().code, RuntimeErrorCode::DeadlineExceeded);
    let stat = timeout(Duration::from_secs(1), sandbox.inside().stat("x")).await;
    assert!(stat.is_err(), "it hangs until it is cancelled");
    assert_eq!(sandbox.kill().await.unwrap_err().code, RuntimeErrorCode::DeadlineExceeded);
    assert_eq!(runtime.alive().sandboxes, 1, "a kill that failed has killed nothing");
    sandbox.kill().await.expect("killed");
}

#[tokio::test(start_paused = true)]
async fn fake_slots_run_out_and_come_back() {
    let runtime = FakeRuntime::new(FakeSettings { slots: 2, ..FakeSettings::default() });
    let (first, _second) = (launch(&runtime, 1).await, launch(&runtime, 2).await);
    let full = runtime.launch(spec(3)).await.err().expect("full");
    assert_eq!((full.code, full.retryable()), (RuntimeErrorCode::Full, true));
    first.kill().await.expect("killed");
    launch(&runtime, 3).await;
}

#[tokio::test(start_paused = true)]
async fn fake_programs_may_crash_or_run_out_of_memory() {
    let runtime = FakeRuntime::default();
    let sandbox = launch(&runtime, 1).await;
    let hog = sandbox.inside().run(ExecSpec::argv(["oom"]), LIMITS).await.expect("run");
    assert!(hog.exit.out_of_memory);
    sandbox.inside().ping().await.expect("only the program died");
    let crash = sandbox.inside().run(ExecSpec::argv(["crash"]), LIMITS).await.unwrap_err();
    assert_eq!(crash.code, RuntimeErrorCode::SandboxGone);
    assert!(sandbox.ended().is_some());
    runtime.leave_orphan("earlier");
    assert_eq!(runtime.reap_orphans().await.expect("reaped").runs, ["earlier"]);
    assert_eq!(runtime.reap_orphans().await.expect("reaped").runs, Vec::<String>::new());
}
