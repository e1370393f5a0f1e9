//! The acceptance tests of conversations: what went wrong in systems before this one must not go
//! wrong here. Named after the list they come from.

use std::sync::Arc;
use std::time::Duration;

use engine::EngineConfig;
use model::{NodeConfig, Role};
use runtime::fake::{Fault, Operation};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::conversation_client::{Piece, active, outcome, output, rest, until};
use crate::stage::{Plan, Stage, request, template, text};

fn plan(change: impl FnOnce(&mut NodeConfig)) -> Plan {
    let mut node = NodeConfig::default();
    change(&mut node);
    let templates = vec![template("default")];
    Plan { engine: EngineConfig { node, templates, ..EngineConfig::default() }, ..Plan::default() }
}

#[tokio::test]
async fn acceptance_12_two_conversations_interleaved_stay_in_their_own() {
    let stage = Stage::start().await;
    let (a, b) = (stage.session().await, stage.session().await);
    assert_ne!(stage.shown(&a).await["sandbox_id"], stage.shown(&b).await["sandbox_id"]);
    for round in 0..3 {
        stage.talk(&a, &format!("echo a{round} >> log")).await;
        stage.talk(&b, &format!("echo b{round} >> log")).await;
    }
    assert_eq!(output(&stage.talk(&a, "cat log").await), "a0\na1\na2\n");
    assert_eq!(output(&stage.talk(&b, "cat log").await), "b0\nb1\nb2\n");
    let mut running = stage.say(&b, json!({"input": "echo begun; sleep 1; echo still here"})).await;
    until(&mut running, "output").await;
    let before = stage.shown(&b).await;
    let aborted = stage.act(&a, "abort", Value::Null).await.expect(200);
    assert_eq!(aborted["turn_id"], Value::Null, "there was none in this one");
    assert_eq!(output(&rest(&mut running).await), "still here\n");
    assert_eq!(stage.shown(&b).await["sandbox_id"], before["sandbox_id"]);
}

#[tokio::test]
async fn acceptance_13_what_belongs_to_another_key_does_not_exist() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    stage.talk(&id, "echo hi").await;
    let history = stage.get(&format!("/v1/sessions/{id}/turns")).await.expect(200);
    let turn = text(&history["turns"][0]["id"]);
    let sandbox = text(&stage.shown(&id).await["sandbox_id"]);
    let stranger = stage.key(Role::Use).await;
    let at = format!("/v1/sessions/{id}");
    for (method, path, body) in [
        ("GET", at.clone(), Value::Null),
        ("PATCH", at.clone(), json!({})),
        ("DELETE", at.clone(), Value::Null),
        ("POST", format!("{at}/turns"), json!({"input": "id"})),
        ("GET", format!("{at}/turns"), Value::Null),
        ("POST", format!("{at}/exec"), json!({"command": "id"})),
        ("GET", format!("{at}/files?path=/workspace"), Value::Null),
        ("POST", format!("{at}/abort"), Value::Null),
        ("POST", format!("{at}/pause"), Value::Null),
        ("POST", format!("{at}/resume"), Value::Null),
        ("POST", format!("{at}/stop"), Value::Null),
        ("POST", format!("{at}/fork"), Value::Null),
        ("GET", format!("{at}/events"), Value::Null),
        ("GET", format!("{at}/logs"), Value::Null),
    ] {
        let refused = stage.call_as(&stranger, method, &path, body).await;
        assert_eq!(refused.status, 404, "{method} {path}");
        refused.problem("session_unknown");
    }
    for path in [format!("{at}/turns/{turn}"), format!("{at}/turns/{turn}/events")] {
        stage.call_as(&stranger, "GET", &path, Value::Null).await.problem("turn_unknown");
    }
    let exec = format!("/v1/sandboxes/{sandbox}/exec");
    let refused = stage.call_as(&stranger, "POST", &exec, json!({"command": "id"})).await;
    refused.problem("sandbox_unknown");
    let listed = stage.call_as(&stranger, "GET", "/v1/sessions", Value::Null).await.expect(200);
    assert_eq!(listed["sessions"], json!([]));
}

#[tokio::test]
async fn acceptance_14_an_abort_and_three_messages_make_one_replacement() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let before = stage.shown(&id).await;
    let mut running = stage.say(&id, json!({"input": "echo begun; sleep 1000"})).await;
    until(&mut running, "output").await;
    let aborted = stage.act(&id, "abort", json!({"keep_sandbox": false})).await.expect(200);
    assert_eq!(aborted["sandbox_kept"], false);
    assert_eq!(aborted["session"]["sandbox_status"], "disconnected", "{aborted}");
    let told = rest(&mut running).await;
    assert_eq!(outcome(&told), "aborted");
    assert_terminated_last(&told, &before["sandbox_id"], "user_abort");
    let old = format!("/v1/sandboxes/{}", text(&before["sandbox_id"]));
    let gone = stage.get(&old).await.problem("sandbox_gone");
    assert_eq!(gone["session_id"], json!(id), "{gone}");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let told = stage.talk(&id, "echo on").await;
        assert_eq!(outcome(&told), "completed");
        let active = active(&told);
        seen.push((active["sandbox_id"].clone(), text(&active["cause"])));
    }
    assert!(seen.iter().all(|(sandbox, _)| *sandbox == seen[0].0), "{seen:?}");
    assert!(seen[1..].iter().all(|(_, cause)| cause == "reconnected"), "{seen:?}");
    let terminated = stage.told(&id, "sandbox_terminated").await;
    assert_eq!(terminated.len(), 1, "{terminated:?}");
    assert_eq!(
        (&terminated[0]["sandbox_id"], &terminated[0]["reason"]),
        (&before["sandbox_id"], &"user_abort".into())
    );
    let active = stage.told(&id, "sandbox_active").await;
    let new = active
        .iter()
        .filter(|event| event["cause"] != "reconnected" && event["cause"] != "created");
    assert_eq!(new.count(), 1, "{active:?}");
}

/// The last pieces of a turn are the end of its sandbox and its own end.
#[track_caller]
fn assert_terminated_last(told: &[Piece], sandbox: &Value, reason: &str) {
    let [.., (_, first, terminated), (_, last, _)] = told else { panic!("{told:?}") };
    assert_eq!((&**first, &**last), ("sandbox_terminated", "turn_ended"), "{told:?}");
    assert_eq!((&terminated["sandbox_id"], &terminated["reason"]), (sandbox, &json!(reason)));
}

#[tokio::test]
async fn a_turn_whose_sandbox_dies_hears_of_that_before_its_own_end() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let before = stage.shown(&id).await;
    let mut running = stage.say(&id, json!({"input": "echo begun; sleep 1000"})).await;
    until(&mut running, "output").await;
    let turn = text(&stage.shown(&id).await["turn"]);
    let sandbox = text(&before["sandbox_id"]).parse().unwrap();
    let view = stage.engine.sandbox(admin(&stage), sandbox).unwrap();
    stage.runtime.crash(view.instance.unwrap(), false);
    let told = rest(&mut running).await;
    assert_eq!(outcome(&told), "sandbox_crashed");
    assert_terminated_last(&told, &before["sandbox_id"], "crash");
    assert_terminated_last(&stage.follow(&id, &turn, 0).await, &before["sandbox_id"], "crash");
}

#[tokio::test]
async fn acceptance_15_a_probe_that_hangs_replaces_and_one_that_flaps_does_not() {
    let stage = Stage::with(plan(|node| {
        node.probe_fresh_ms = 0;
        node.probe_timeout_ms = 200;
    }))
    .await;
    let id = stage.session().await;
    stage.talk(&id, "echo hi").await;
    let before = stage.shown(&id).await;
    stage.runtime.inject(Operation::Exec, Fault::Hang);
    let told = stage.talk(&id, "echo flapped").await;
    assert_eq!((&*output(&told), &active(&told)["cause"]), ("flapped\n", &json!("reconnected")));
    assert_eq!(stage.shown(&id).await["sandbox_id"], before["sandbox_id"]);
    stage.runtime.inject(Operation::Exec, Fault::Hang);
    stage.runtime.inject(Operation::Exec, Fault::Hang);
    let began = Instant::now();
    let told = stage.talk(&id, "echo replaced").await;
    assert!(began.elapsed() < Duration::from_secs(10), "every wait has a deadline");
    assert_eq!(output(&told), "replaced\n");
    let active = active(&told);
    assert_eq!(active["cause"], "replaced", "{told:?}");
    assert_eq!(active["previous_id"], before["sandbox_id"]);
    assert!(active["generation"].as_u64() > before["generation"].as_u64());
}

#[tokio::test]
async fn acceptance_16_two_first_commands_at_once_make_one_sandbox() {
    let stage = Arc::new(Stage::start().await);
    let id = stage.session().await;
    stage.act(&id, "stop", Value::Null).await.expect(200);
    stage.act(&id, "resume", Value::Null).await.expect(200);
    stage.act(&id, "pause", Value::Null).await.expect(200);
    let generation = stage.shown(&id).await["generation"].as_u64().unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (stage, id) = (Arc::clone(&stage), id.clone());
        calls.spawn(async move {
            let command = json!({"command": format!("echo {n}")});
            stage.act(&id, "exec", command).await.expect(200)
        });
    }
    while let Some(ran) = calls.join_next().await {
        assert_eq!(ran.unwrap()["exit_code"], 0);
    }
    let after = stage.shown(&id).await["generation"].as_u64().unwrap();
    assert!(after <= generation + 1, "{generation} {after}");
    let sandboxes = stage.get("/v1/sandboxes").await.expect(200);
    let of_session = |one: &&Value| one["session"] == json!(id);
    assert_eq!(sandboxes["sandboxes"].as_array().unwrap().iter().filter(of_session).count(), 1);
}

#[tokio::test]
async fn acceptance_17_aborts_at_any_moment_leak_nothing_and_are_told_later() {
    let stage = Stage::with(plan(|_| {})).await;
    let id = stage.session().await;
    // Before its headers: the client is gone before anything was answered.
    let path = format!("/v1/sessions/{id}/turns");
    let body = json!({"input": "sleep 2; echo done"});
    drop(stage.ask_for_stream("POST", &path, "", &body).await);
    // During creation: no client learns of the session.
    stage.runtime.inject(Operation::Claim, Fault::Delay(Duration::from_millis(500)));
    let body = br#"{"template":"default","env":{"A":"b"}}"#;
    let create = request(&stage.admin, "POST", "/v1/sessions", "", body);
    let mut creating = stage.connect().await;
    creating.send(&create).await;
    sleep(Duration::from_millis(50)).await;
    drop(creating);
    // In the middle of a command, by the endpoint.
    let other = stage.session().await;
    let mut running = stage.say(&other, json!({"input": "echo begun; sleep 1000"})).await;
    until(&mut running, "output").await;
    let turn = text(&stage.shown(&other).await["turn"]);
    drop(running);
    let aborted = stage.act(&other, "abort", Value::Null).await.expect(200);
    assert_eq!(aborted["turn_id"], json!(turn));
    assert_eq!(outcome(&stage.follow(&other, &turn, 0).await), "aborted", "told after a reconnect");
    assert_eq!(stage.told(&other, "sandbox_terminated").await.len(), 1);
    stage
        .until("only the two that are known are left", |stage| {
            let owned = stage.engine.sandboxes(admin(stage));
            let sessions =
                owned.iter().filter(|one| matches!(one.owner, model::record::Owner::Session(_)));
            sessions.count() <= 2
        })
        .await;
    let listed = stage.get("/v1/sessions").await.expect(200);
    let mut known: Vec<_> = listed["sessions"].as_array().unwrap().iter().collect();
    known.retain(|one| one["status"] != "ended");
    assert_eq!(known.len(), 2, "{listed}");
    assert_eq!(outcome(&stage.talk(&other, "echo on").await), "completed");
}

fn admin(stage: &Stage) -> engine::Caller {
    let keys = stage.engine.keys();
    let key = keys.iter().find(|key| key.role == Role::Admin).unwrap();
    engine::Caller { key: key.id, role: key.role }
}

#[tokio::test]
async fn acceptance_18_a_reload_finds_the_same_sandbox_and_an_idle_end_is_told() {
    let stage = Stage::with(plan(|node| {
        node.sweep_interval_ms = 50;
        node.idle_timeout_ms = 300;
    }))
    .await;
    let id = stage.session().await;
    stage.talk(&id, "echo hi").await;
    let first = stage.shown(&id).await;
    assert_eq!(first["sandbox_status"], "connected");
    assert_eq!(
        stage.shown(&id).await["sandbox_id"],
        first["sandbox_id"],
        "reading changes nothing"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while stage.shown(&id).await["status"] != "paused" {
        assert!(Instant::now() < deadline, "never idle: reading must not count as use");
        sleep(Duration::from_millis(20)).await;
    }
    let asleep = stage.shown(&id).await;
    assert_eq!(
        (&asleep["sandbox_status"], &asleep["sandbox_id"]),
        (&"disconnected".into(), &Value::Null)
    );
    let terminated = stage.told(&id, "sandbox_terminated").await;
    assert_eq!((terminated.len(), &terminated[0]["reason"]), (1, &json!("idle")));
    let told = stage.talk(&id, "echo on").await;
    let active = active(&told);
    assert_ne!(active["cause"], "reconnected", "{told:?}");
    assert_eq!(active["state_lost"], asleep["state_lost"]);
    assert_eq!((&*output(&told), &*outcome(&told)), ("on\n", "completed"));
    assert!(active["generation"].as_u64() > first["generation"].as_u64());
}

#[tokio::test]
async fn manual_test_1_abort_and_resume() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let mut running = stage.say(&id, json!({"input": "echo listing; sleep 1000"})).await;
    until(&mut running, "output").await;
    stage.act(&id, "abort", Value::Null).await.expect(200);
    assert_eq!(outcome(&rest(&mut running).await), "aborted");
    let told = stage.talk(&id, "echo again").await;
    assert_eq!((&*output(&told), &*outcome(&told)), ("again\n", "completed"));
}

#[tokio::test]
async fn manual_test_2_conversation_switch() {
    let stage = Stage::start().await;
    let a = stage.session().await;
    assert_eq!(outcome(&stage.talk(&a, "echo a > f").await), "completed");
    let b = stage.session().await;
    assert_ne!(stage.shown(&a).await["sandbox_id"], stage.shown(&b).await["sandbox_id"]);
    let told = stage.talk(&b, "cat f").await;
    assert_ne!(
        told.last().unwrap().2["result"]["exit_code"],
        0,
        "the files of one are not the other's"
    );
}

#[tokio::test]
async fn manual_test_3_a_message_after_the_sandbox_timed_out() {
    let stage = Stage::with(plan(|node| {
        node.sweep_interval_ms = 50;
        node.idle_timeout_ms = 100;
    }))
    .await;
    let id = stage.session().await;
    stage.talk(&id, "echo hi").await;
    let stale = text(&stage.shown(&id).await["sandbox_id"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while stage.shown(&id).await["sandbox_status"] == "connected" {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(20)).await;
    }
    let told = stage.talk(&id, "echo back").await;
    assert_eq!((&*output(&told), &*outcome(&told)), ("back\n", "completed"));
    assert!(!stale.is_empty());
}

#[tokio::test]
async fn a_stale_id_learns_the_present_sandbox_of_its_session() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let stale = text(&stage.shown(&id).await["sandbox_id"]);
    let sandbox = stage.get(&format!("/v1/sandboxes/{stale}")).await.expect(200);
    assert_eq!(sandbox["session"], json!(id));
    let mut running = stage.say(&id, json!({"input": "echo begun; sleep 1000"})).await;
    until(&mut running, "output").await;
    let view = stage.engine.sandbox(admin(&stage), stale.parse().unwrap()).unwrap();
    stage.runtime.crash(view.instance.unwrap(), false);
    assert_eq!(outcome(&rest(&mut running).await), "sandbox_crashed");
    stage.talk(&id, "echo on").await;
    let present = stage.shown(&id).await["sandbox_id"].clone();
    assert_ne!(present, json!(stale));
    let exec = format!("/v1/sandboxes/{stale}/exec");
    let gone = stage.call("POST", &exec, json!({"command": "true"})).await;
    assert_eq!(gone.status, 410);
    let gone = gone.problem("sandbox_gone");
    assert_eq!((&gone["session_id"], &gone["sandbox_id"]), (&json!(id), &present));
    assert_eq!(gone["reason"], "crash");
    let gone = stage.get(&format!("/v1/sandboxes/{stale}")).await.problem("sandbox_gone");
    assert_eq!(gone["sandbox_id"], present);
}
