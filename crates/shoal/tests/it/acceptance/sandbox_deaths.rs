//! Sandboxes that are killed behind the server's back: their users get an error, no client gets
//! them afterwards, and the pool is full again.

use std::time::Duration;

use client::EventsQuery;
use model::{EndCause, ErrorCode, SandboxId};
use serde_json::json;
use tokio::time::{sleep, timeout};
use wire::{EventBody, ExecRequest, Why};

use super::stage::{Kind, PATIENCE, Stage};

on_every_runtime!(
    lease_of_a_killed_sandbox_reports_its_end,
    killed_idle_sandbox_is_never_handed_out
);

fn lease_of_a_killed_sandbox_reports_its_end(kind: Kind) {
    let Some(stage) = Stage::start(kind, "killed-leased") else { return };
    stage.act(async {
        stage.pool(json!({ "pool_size": 1, "max_overflow": 0 })).await;
        let lease = stage.checkout().await;
        let id = lease.sandbox().id;
        let container = stage.container_of(id);
        lease.exec(ExecRequest::shell("echo mine > /workspace/mine")).await.unwrap();
        let endless = stage.client().sandbox(id);
        let endless = tokio::spawn(async move {
            endless.exec(ExecRequest::shell("touch /workspace/begun; exec sleep 1000")).await
        });
        while lease.stat("/workspace/begun").await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        let waiter = stage.waiter().await;
        stage.kill_the_only_one(id);
        let error = endless.await.unwrap().unwrap_err();
        assert!(reports_the_end(error.code()), "the running call reports it: {error:?}");
        let late = lease.exec(ExecRequest::shell("true")).await.unwrap_err();
        assert!(reports_the_end(late.code()), "a later call reports it: {late:?}");
        let served = waiter.await.unwrap().unwrap();
        assert_ne!(served.sandbox().id, id);
        let seen = served.exec(ExecRequest::shell("ls -A /workspace")).await.unwrap();
        assert_eq!(seen.stdout.as_deref(), Some(""), "{seen:?}");
        assert!(container.is_none() || stage.container_of(served.sandbox().id) != container);
        died_once(&stage, id).await;
        // A return after the end is accepted, and the sandbox is not handed out again.
        let _ = lease.give_back().await;
        assert_eq!(stage.stats().await.leased, 1);
        served.give_back().await.unwrap();
        assert_eq!(stage.full().await.counters.crashed, 1);
        assert_eq!(stage.found(), 1);
    });
    stage.end();
}

/// Whether its death is known before the next checkout, or the checkout probes each sandbox.
fn killed_idle_sandbox_is_never_handed_out(kind: Kind) {
    let asked_first = "[node]\nprobe_fresh_ms = 0";
    let Some(stage) = Stage::start_with(kind, "killed-idle", asked_first) else { return };
    stage.act(async {
        stage.pool(json!({ "pool_size": 1, "max_overflow": 0 })).await;
        for is_known in [true, false] {
            let listed = stage.listed().await;
            let [idle] = &listed[..] else { panic!("{listed:?}") };
            let crashed = stage.stats().await.counters.crashed;
            stage.kill_the_only_one(idle.id);
            if is_known {
                stage.until("the death is counted", |pool| pool.counters.crashed > crashed).await;
            }
            let lease = stage.checkout().await;
            assert_ne!(lease.sandbox().id, idle.id, "a dead one was handed out");
            let worked = lease.exec(ExecRequest::shell("echo works")).await.unwrap();
            assert_eq!(worked.stdout.as_deref(), Some("works\n"), "{worked:?}");
            died_once(&stage, idle.id).await;
            lease.give_back().await.unwrap();
            stage.full().await;
            assert_eq!(stage.found(), 1);
            let left = stage.listed().await;
            assert!(left.iter().all(|one| one.id != idle.id), "{left:?}");
        }
    });
    stage.end();
}

/// How a client hears that a sandbox died.
fn reports_the_end(code: Option<ErrorCode>) -> bool {
    matches!(code, Some(ErrorCode::SandboxCrashed | ErrorCode::SandboxGone))
}

/// Its tombstone has the cause, and its end was published once.
async fn died_once(stage: &Stage, id: SandboxId) {
    let gone = async {
        loop {
            if let Why::Ended(ended) = stage.client().sandbox(id).why().await.unwrap() {
                return ended;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = timeout(PATIENCE, gone).await.expect("its end is known");
    assert!(matches!(ended.cause, EndCause::Crash | EndCause::ProbeFailed), "{ended:?}");
    let query = EventsQuery { after: Some(0), sandbox: Some(id), ..EventsQuery::default() };
    let events = stage.client().events(query).await.unwrap().events;
    let ends = events
        .iter()
        .filter(|event| matches!(event.body, EventBody::SandboxTerminated { .. }))
        .count();
    assert_eq!(ends, 1, "{events:?}");
}
