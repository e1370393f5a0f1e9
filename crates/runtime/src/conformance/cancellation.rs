//! Any future may be dropped at any await: each is polled once, twice, three times, ... and then
//! dropped, until it comes to its end. What was begun is undone, and all else goes on.

use model::ClaimSettings;

use super::stage::{MOST_POLLS, cut, eventually, said};
use super::{CaseResult, Stage};
use crate::collect::RunLimits;
use crate::contract::Sandbox;
use crate::exec::{ExecSpec, Stdin};

const LIMITS: RunLimits =
    RunLimits { output_bytes: 1 << 20, timeout: std::time::Duration::from_mins(1) };

/// No program is left, and the sandbox is as good as new.
async fn settled(sandbox: &dyn Sandbox) {
    eventually("no program is left", || async {
        let left = sandbox.inside().processes().await.expect("listed");
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    assert_eq!(said(sandbox, "echo on").await, "on\n");
}

pub(super) async fn dropped_launches_leave_nothing(stage: &Stage) -> CaseResult {
    let mut deaths = stage.runtime.events();
    for polls in 0..MOST_POLLS {
        let spec = stage.spec();
        let instance = spec.instance;
        match cut(polls, stage.runtime.launch(spec)).await {
            None => assert!(stage.runtime.sandbox(instance).is_none()),
            Some(made) => {
                made.expect("launched").kill().await.expect("killed");
                assert_eq!(deaths.next().await.expect("a death").instance, instance);
                break;
            }
        }
    }
    stage.until_empty().await;
    assert_eq!(deaths.try_next(), None, "what was never handed out does not die");
    stage.launch().await.inside().ping().await.expect("all is well");
    Ok(())
}

pub(super) async fn dropped_execs_leave_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let spec = ExecSpec { confirm_start: true, ..ExecSpec::shell("sleep 1000 & sleep 1000") };
    for polls in 0..MOST_POLLS {
        let started = cut(polls, sandbox.inside().exec(spec.clone())).await;
        if let Some(process) = started {
            drop(process.expect("started"));
            break;
        }
    }
    settled(&*sandbox).await;
    Ok(())
}

pub(super) async fn dropped_runs_leave_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    for polls in 0..MOST_POLLS {
        let spec =
            ExecSpec::shell("cat; sleep 0.01; echo done").stdin(Stdin::Bytes(vec![b'x'; 200_000]));
        if let Some(done) = cut(polls, sandbox.inside().run(spec, LIMITS)).await {
            assert!(done.expect("run").exit.success());
            break;
        }
    }
    settled(&*sandbox).await;
    Ok(())
}

pub(super) async fn dropped_claims_break_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let mut settings = ClaimSettings::default();
    settings.env.insert("A".to_owned(), "1".to_owned());
    for polls in 0..MOST_POLLS {
        if cut(polls, sandbox.claim(&settings, None)).await.is_some() {
            break;
        }
    }
    for polls in 0..MOST_POLLS {
        if cut(polls, sandbox.inside().ping()).await.is_some() {
            break;
        }
    }
    assert_eq!(said(&*sandbox, "printenv A").await, "1\n");
    Ok(())
}

pub(super) async fn dropped_file_calls_break_nothing(stage: &Stage) -> CaseResult {
    let sandbox = stage.launch().await;
    let bytes = vec![b'x'; 600_000];
    sandbox.inside().write_all("/workspace/file", &bytes, None).await.expect("written");
    for polls in 0..MOST_POLLS {
        let read = cut(polls, sandbox.inside().read_all("/workspace/file", 1 << 20)).await;
        let written =
            cut(polls, sandbox.inside().write_all("/workspace/other", &bytes, None)).await;
        let listed = cut(polls, sandbox.inside().list_files("/workspace", None, 10)).await;
        let stat = cut(polls, sandbox.inside().stat("/workspace/file")).await;
        if read.is_some() && written.is_some() && listed.is_some() && stat.is_some() {
            break;
        }
    }
    eventually("only whole files stay", || async {
        let page = sandbox.inside().list_files("/workspace", None, 10).await.expect("listed");
        let whole = page.entries.iter().all(|entry| entry.size == bytes.len() as u64);
        (whole && page.entries.len() <= 2).then_some(()).ok_or(format!("{page:?}"))
    })
    .await;
    settled(&*sandbox).await;
    Ok(())
}

pub(super) async fn dropped_kills_go_on(stage: &Stage) -> CaseResult {
    for polls in 1..6 {
        let sandbox = stage.launch().await;
        let _ = cut(polls, sandbox.kill()).await;
        sandbox.kill().await.expect("killed");
        assert!(sandbox.ended().is_some());
    }
    stage.until_empty().await;
    Ok(())
}

pub(super) async fn dropped_freezes_break_nothing(stage: &Stage) -> CaseResult {
    if !stage.runtime.capabilities().freeze {
        // That it is refused is asserted where freezing is.
        return Ok(());
    }
    let sandbox = stage.launch().await;
    for polls in 0..6 {
        let _ = cut(polls, sandbox.freeze()).await;
        let _ = cut(polls, sandbox.thaw()).await;
        sandbox.thaw().await.expect("thawed");
        assert_eq!(said(&*sandbox, "echo on").await, "on\n");
    }
    Ok(())
}
