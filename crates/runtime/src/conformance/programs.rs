//! Programs: how they end, what they say, and what happens when they say or take too much.

use std::time::Duration;

use guest_protocol::message::ExitStatus;
use tokio::time::Instant;

use super::stage::{PATIENCE, eventually, run, said, shell};
use super::{CaseResult, Stage, code_of};
use crate::collect::RunLimits;
use crate::error::RuntimeErrorCode;
use crate::exec::ExecSpec;

pub(super) async fn exit_codes_are_exact(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    for (line, code) in [("true", 0), ("false", 1), ("exit 3", 3), ("exit 255", 255)] {
        let collected = shell(&*sandbox, line).await;
        assert_eq!(collected.exit.status, ExitStatus::Code(code), "{line}");
        assert!(!collected.exit.out_of_memory && !collected.timed_out);
    }
    let collected = run(&*sandbox, ExecSpec::argv(["false"])).await;
    assert_eq!(collected.exit.status, ExitStatus::Code(1));
    Ok(())
}

pub(super) async fn signals_are_exact(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    for signal in [9, 15, 10] {
        let collected = shell(&*sandbox, &format!("kill -{signal} $$")).await;
        assert_eq!(collected.exit.status, ExitStatus::Signal(signal));
        assert!(!collected.exit.out_of_memory, "a kill is not a want of memory");
    }
    Ok(())
}

pub(super) async fn output_is_separate(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let collected = shell(&*sandbox, "echo out; echo err >&2; echo more").await;
    assert_eq!(collected.stdout, b"out\nmore\n");
    assert_eq!(collected.stderr, b"err\n");
    assert!(!collected.stdout_truncated && !collected.stderr_truncated);
    let quiet = run(&*sandbox, ExecSpec::argv(["true"])).await;
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty());
    let mut spec = ExecSpec::shell("echo out; echo err >&2");
    spec.stdout = crate::exec::Sink::Null;
    let half = run(&*sandbox, spec).await;
    assert_eq!((half.stdout.as_slice(), half.stderr.as_slice()), (&b""[..], &b"err\n"[..]));
    Ok(())
}

pub(super) async fn missing_programs_are_reported(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let spec = ExecSpec::argv(["no-such-program-anywhere"]);
    let mut process = sandbox.inside().exec(spec.clone()).await.expect("asked to start");
    assert_eq!(code_of(process.wait().await), RuntimeErrorCode::NotFound);
    let confirmed = ExecSpec { confirm_start: true, ..spec };
    assert_eq!(code_of(sandbox.inside().exec(confirmed).await), RuntimeErrorCode::NotFound);
    let none = ExecSpec::argv(Vec::<String>::new());
    let refused = ExecSpec { confirm_start: true, ..none };
    assert_eq!(code_of(sandbox.inside().exec(refused).await), RuntimeErrorCode::Invalid);
    let shell = shell(&*sandbox, "no-such-program-anywhere").await;
    assert_eq!(shell.exit.status, ExitStatus::Code(127));
    let mut known = sandbox
        .inside()
        .exec(ExecSpec { confirm_start: true, ..ExecSpec::argv(["true"]) })
        .await
        .expect("ok");
    assert!(known.pid().is_some_and(|pid| pid > 1));
    assert!(known.wait().await.expect("an exit").success());
    assert!(known.wait().await.expect("the same again").success());
    Ok(())
}

pub(super) async fn output_over_the_limit_is_dropped(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let limits = RunLimits { output_bytes: 1000, timeout: PATIENCE };
    let spec = ExecSpec::shell("head -c 300000 /dev/zero; echo e >&2; exit 7");
    let collected = sandbox.inside().run(spec, limits).await.expect("run");
    assert_eq!(collected.stdout, [0; 1000]);
    assert_eq!((collected.stdout_truncated, collected.stderr_truncated), (true, false));
    assert_eq!(collected.exit.status, ExitStatus::Code(7), "it was not killed for it");
    let exact = ExecSpec::shell("head -c 1000 /dev/zero");
    let collected = sandbox.inside().run(exact, limits).await.expect("run");
    assert_eq!((collected.stdout.len(), collected.stdout_truncated), (1000, false));
    Ok(())
}

pub(super) async fn programs_over_their_time_are_killed(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let started_at = Instant::now();
    let mut limits = RunLimits { output_bytes: 1000, timeout: Duration::from_millis(150) };
    let collected = loop {
        let spec = ExecSpec::shell("echo early; sleep 1000 & sleep 1000");
        let collected = sandbox.inside().run(spec, limits).await.expect("run");
        // On a busy machine the shell may not have begun in so short a time.
        if !collected.stdout.is_empty() || limits.timeout > PATIENCE / 4 {
            break collected;
        }
        limits.timeout *= 4;
    };
    assert!(collected.timed_out);
    assert_eq!(collected.exit.status, ExitStatus::Signal(9));
    assert_eq!(collected.stdout, b"early\n");
    assert!(started_at.elapsed() < PATIENCE);
    eventually("its children are gone too", || async {
        let left = sandbox.inside().processes().await.expect("listed");
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    let never = RunLimits { output_bytes: 1, timeout: Duration::ZERO };
    let refused = sandbox.inside().run(ExecSpec::shell("true"), never).await;
    assert_eq!(code_of(refused), RuntimeErrorCode::Invalid);
    Ok(())
}

pub(super) async fn exec_ends_although_a_background_child_lives(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let started_at = Instant::now();
    let collected = shell(&*sandbox, "sleep 1000 & echo done").await;
    assert_eq!(collected.stdout, b"done\n");
    assert!(collected.exit.success() && !collected.timed_out);
    assert!(started_at.elapsed() < PATIENCE);
    Ok(())
}

pub(super) async fn working_directory_and_shell(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    assert_eq!(said(&*sandbox, "pwd").await, "/workspace\n");
    let spec = ExecSpec { cwd: Some("/tmp".to_owned()), ..ExecSpec::argv(["pwd"]) };
    assert_eq!(run(&*sandbox, spec).await.stdout, b"/tmp\n");
    assert_eq!(said(&*sandbox, "true && echo 'a  b'; echo c").await, "a  b\nc\n");
    let argv = run(&*sandbox, ExecSpec::argv(["sh", "-c", "exit 4"])).await;
    assert_eq!(argv.exit.status, ExitStatus::Code(4));
    Ok(())
}
