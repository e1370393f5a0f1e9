//! Launch, list, freeze, recreate, kill, shut down.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::stage::{PATIENCE, new_instance, said, shell};
use super::{CaseResult, Stage, code_of};
use crate::error::RuntimeErrorCode;
use crate::exec::ExecSpec;

pub(super) async fn launch_ready_list_kill(stage: &Stage) -> CaseResult {
    let runtime = &stage.runtime;
    let (a, b) = (stage.launch().await, stage.launch().await);
    a.inside().ping().await.expect("it answers");
    let mut expected = vec![a.instance(), b.instance()];
    expected.sort_unstable();
    let mut listed = runtime.list().await.expect("listed");
    listed.sort_unstable();
    assert_eq!(listed, expected);
    let found = runtime.sandbox(a.instance()).expect("it is found by its id");
    assert_eq!(found.instance(), a.instance());
    assert_eq!(a.ended(), None);
    a.kill().await.expect("killed");
    assert!(a.ended().is_some());
    assert!(runtime.sandbox(a.instance()).is_none());
    assert_eq!(runtime.list().await.expect("listed"), [b.instance()]);
    b.inside().ping().await.expect("the other one is not concerned");
    Ok(())
}

pub(super) async fn launch_twice_is_refused(stage: &Stage) -> CaseResult {
    let a = stage.launch().await;
    let again = stage.runtime.launch(a.spec().clone()).await;
    assert_eq!(code_of(again), RuntimeErrorCode::Duplicate);
    a.inside().ping().await.expect("the first one is not concerned");
    Ok(())
}

pub(super) async fn kill_is_idempotent(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let (one, two) = tokio::join!(sandbox.kill(), sandbox.kill());
    one.and(two).expect("killed twice at once");
    sandbox.kill().await.expect("killed again");
    stage.runtime.kill(sandbox.instance()).await.expect("killed by its id");
    stage.runtime.kill(new_instance()).await.expect("one that never existed");
    assert_eq!(code_of(sandbox.inside().ping().await), RuntimeErrorCode::SandboxGone);
    let run = sandbox.inside().exec(ExecSpec::shell("true")).await;
    let refused = match run {
        Ok(mut process) => process.wait().await.expect_err("nothing runs in it"),
        Err(error) => error,
    };
    assert_eq!(refused.code, RuntimeErrorCode::SandboxGone);
    assert!(!refused.retryable());
    Ok(())
}

pub(super) async fn kill_ends_what_waits(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let runner = Arc::clone(&sandbox);
    let waiting = tokio::spawn(async move {
        let mut process = runner.inside().exec(ExecSpec::shell("sleep 1000")).await?;
        process.wait().await
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    sandbox.kill().await.expect("killed");
    let failed = timeout(Duration::from_secs(1), waiting).await.expect("failed within a second");
    assert_eq!(code_of(failed.expect("no panic")), RuntimeErrorCode::SandboxGone);
    Ok(())
}

pub(super) async fn recreate_gives_a_fresh_sandbox(stage: &Stage) -> CaseResult {
    let old = stage.launch().await;
    old.inside().write_all("/workspace/secret", b"x", None).await.expect("written");
    let (was, new_id) = (old.instance(), new_instance());
    let new = stage.runtime.recreate(old, new_id).await.expect("recreated");
    assert_eq!(new.instance(), new_id);
    assert_eq!(stage.runtime.list().await.expect("listed"), [new_id]);
    assert!(stage.runtime.sandbox(was).is_none());
    assert_eq!(code_of(new.inside().stat("/workspace/secret").await), RuntimeErrorCode::NotFound);
    Ok(())
}

pub(super) async fn freeze_stops_and_thaw_goes_on(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    if !stage.runtime.capabilities().freeze {
        assert_eq!(code_of(sandbox.freeze().await), RuntimeErrorCode::Unsupported);
        return Ok(());
    }
    let mut process = sandbox
        .inside()
        .exec(ExecSpec::shell("sleep 0.1; echo done > done"))
        .await
        .expect("started");
    sandbox.freeze().await.expect("frozen");
    sandbox.freeze().await.expect("frozen already");
    let early = timeout(Duration::from_millis(400), process.wait()).await;
    assert!(early.is_err(), "a frozen program came to its end: {early:?}");
    sandbox.thaw().await.expect("thawed");
    sandbox.thaw().await.expect("thawed already");
    let exit = timeout(PATIENCE, process.wait()).await.expect("in time").expect("an exit");
    assert!(exit.success());
    assert_eq!(said(&*sandbox, "cat done").await, "done\n");
    // A frozen one can be killed.
    sandbox.freeze().await.expect("frozen");
    timeout(PATIENCE, sandbox.kill()).await.expect("in time").expect("killed");
    Ok(())
}

pub(super) async fn sync_flushes_the_workspace_of_a_frozen_sandbox(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    said(&*sandbox, "echo kept > kept").await;
    timeout(PATIENCE, sandbox.sync()).await.expect("in time").expect("flushed");
    if stage.runtime.capabilities().freeze {
        sandbox.freeze().await.expect("frozen");
        timeout(PATIENCE, sandbox.sync()).await.expect("in time").expect("flushed");
        sandbox.thaw().await.expect("thawed");
    }
    assert_eq!(said(&*sandbox, "cat kept").await, "kept\n");
    sandbox.kill().await.expect("killed");
    assert_eq!(code_of(sandbox.sync().await), RuntimeErrorCode::SandboxGone);
    Ok(())
}

pub(super) async fn shutdown_leaves_nothing(stage: &Stage) -> CaseResult {
    let mut deaths = stage.runtime.events();
    let (a, b) = (stage.launch().await, stage.launch().await);
    let _busy = b.inside().exec(ExecSpec::shell("sleep 1000")).await.expect("started");
    stage.runtime.shutdown().await.expect("shut down");
    let mut reported = Vec::new();
    while let Some(died) = timeout(PATIENCE, deaths.next()).await.expect("in time") {
        reported.push(died.instance);
    }
    reported.sort_unstable();
    let mut expected = vec![a.instance(), b.instance()];
    expected.sort_unstable();
    assert_eq!(reported, expected);
    let late = stage.runtime.launch(stage.spec()).await;
    assert_eq!(code_of(late), RuntimeErrorCode::ShuttingDown);
    stage.runtime.shutdown().await.expect("shut down already");
    Ok(())
}

pub(super) async fn many_launches_at_once(stage: &Stage) -> CaseResult {
    let started_at = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..12 {
        let (runtime, spec) = (Arc::clone(&stage.runtime), stage.spec());
        tasks.push(tokio::spawn(async move {
            let sandbox = runtime.launch(spec).await.expect("launched");
            for round in 0..4 {
                let line = format!("echo {n} {round}");
                let collected = shell(&*sandbox, &line).await;
                assert_eq!(collected.stdout, format!("{n} {round}\n").as_bytes());
            }
            sandbox.kill().await.expect("killed");
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(started_at.elapsed() < 3 * PATIENCE);
    stage.until_empty().await;
    Ok(())
}

pub(super) async fn reap_orphans_spares_the_living(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    stage.runtime.reap_orphans().await.expect("reaped");
    sandbox.inside().ping().await.expect("it lives");
    Ok(())
}
