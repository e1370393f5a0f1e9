//! Whole lives of sandboxes at an engine that breaks, refuses and forgets at chosen moments:
//! nothing is left of them, whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use guest_protocol::message::Reply;
use model::InstanceId;
use serde_json::json;
use tokio::time::timeout;

use super::fake_engine::{Asked, FakeEngine, Guest, Odd, STDERR, STDOUT, frame};
use crate::contract::{Runtime, Sandbox};
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};

const PATIENCE: Duration = Duration::from_secs(10);

type Launched = Result<Arc<dyn Sandbox>, RuntimeError>;

async fn start(fake: &FakeEngine) -> Arc<dyn Runtime> {
    crate::docker::start(fake.config()).await.unwrap()
}

/// Launches a sandbox whose guest is played here.
async fn launch(fake: &mut FakeEngine, runtime: &Arc<dyn Runtime>) -> (Arc<dyn Sandbox>, Guest) {
    let launching = begin(runtime, 1);
    let mut guest = fake.attached().await;
    guest.ready().await;
    (launching.await.unwrap().unwrap(), guest)
}

fn begin(runtime: &Arc<dyn Runtime>, number: u128) -> tokio::task::JoinHandle<Launched> {
    let (spec, runtime) = (FakeEngine::spec(number), Arc::clone(runtime));
    tokio::spawn(async move { runtime.launch(spec).await })
}

async fn died(runtime: &Arc<dyn Runtime>, deaths: &mut crate::Deaths) -> Died {
    let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
    assert!(runtime.sandbox(died.instance).is_none());
    died
}

#[tokio::test]
async fn a_stream_that_ends_in_the_middle_of_a_frame_is_the_end_of_the_sandbox() {
    for end in [frame(STDOUT, b"half of it")[..12].to_vec(), vec![], frame(9, b"torn")] {
        let mut fake = FakeEngine::start();
        let runtime = start(&fake).await;
        let mut deaths = runtime.events();
        let (sandbox, mut guest) = launch(&mut fake, &runtime).await;
        guest.raw(&end).await;
        drop(guest);
        let died = died(&runtime, &mut deaths).await;
        assert_eq!(died.instance, sandbox.instance());
        assert_eq!(fake.containers(), Vec::<String>::new(), "removed before the death is reported");
        assert!(sandbox.inside().ping().await.is_err());
        runtime.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn guest_calls_work_through_the_engines_frames() {
    let mut fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let (sandbox, mut guest) = launch(&mut fake, &runtime).await;
    let pinging = tokio::spawn(async move { sandbox.inside().ping().await });
    let (channel, _) = guest.request().await.unwrap();
    guest.raw(&frame(STDERR, b"noise\n")).await;
    guest.say(channel, &Reply::Done).await;
    pinging.await.unwrap().unwrap();
    runtime.shutdown().await.unwrap();
    assert!(guest.request().await.is_none(), "its input has ended");
}

#[tokio::test]
async fn docker_engine_may_start_after_the_server() {
    let mut fake = FakeEngine::away();
    let runtime = start(&fake).await;
    let refused = begin(&runtime, 1).await.unwrap().err().unwrap();
    assert_eq!(refused.code, RuntimeErrorCode::LaunchFailed);
    assert!(refused.retryable());
    for part in ["does not answer", "docker.sock", "start it or set docker.host"] {
        assert!(refused.cause.contains(part), "{refused}");
    }
    fake.appear();
    launch(&mut fake, &runtime).await;
    runtime.shutdown().await.unwrap();
    assert_eq!(fake.containers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_guest_that_cannot_start_says_why() {
    let mut fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let launching = begin(&runtime, 1);
    let mut guest = fake.attached().await;
    guest.raw(&frame(STDERR, b"exec format error\n")).await;
    drop(guest);
    let refused = launching.await.unwrap().err().unwrap();
    assert!(refused.cause.contains("exec format error"), "{refused}");
    assert_eq!(fake.containers(), Vec::<String>::new());
    runtime.shutdown().await.unwrap();
}

/// Nothing is left, whichever step of a launch is refused, breaks or is late.
#[tokio::test]
async fn docker_launch_that_fails_at_any_step_leaves_nothing() {
    let steps = ["/json", "/volumes/create", "/containers/create", "/attach", "/start", "/archive"];
    for step in steps {
        for odd in [Odd::Refuse(500, "no"), Odd::Break] {
            let mut fake = FakeEngine::start();
            let runtime = start(&fake).await;
            let broken = odd.clone();
            fake.odd(move |asked| {
                (asked.what.ends_with(step) && asked.what != "GET /containers/json")
                    .then(|| broken.clone())
            });
            let launching = begin(&runtime, 1);
            // Where it gets that far, the guest is ready.
            let playing = async {
                if step == "/json" || step == "/archive" {
                    return;
                }
                if let Ok(mut guest) = timeout(Duration::from_millis(300), fake.attached()).await {
                    guest.ready().await;
                    while guest.request().await.is_some() {}
                }
            };
            let (launched, ()) = tokio::join!(timeout(PATIENCE, launching), playing);
            assert!(launched.unwrap().unwrap().is_err(), "{step} {odd:?}");
            fake.odd(|_| None);
            runtime.shutdown().await.unwrap();
            assert_eq!(fake.containers(), Vec::<String>::new(), "{step} {odd:?}");
        }
    }
}

#[tokio::test]
async fn a_kill_during_a_slow_creation_leaves_nothing() {
    let fake = FakeEngine::start();
    let runtime = start(&fake).await;
    // The carrier of our program comes before it, and is the node's.
    let creates_it =
        |asked: &Asked| asked.what == "POST /containers/create" && !asked.query.contains("carrier");
    fake.odd(move |asked| creates_it(asked).then_some(Odd::Late(Duration::from_millis(300))));
    let launching = begin(&runtime, 1);
    while !fake.asked("POST /containers/create").iter().any(creates_it) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    launching.abort();
    timeout(PATIENCE, runtime.kill(InstanceId::from_u128(1))).await.expect("in time").unwrap();
    assert_eq!(fake.containers(), Vec::<String>::new());
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn instance_id_is_used_by_one_container_only() {
    let fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let labels = json!({"shoal.node": "node", "shoal.epoch": "run-0"});
    let name = format!("shoal-node-{}", InstanceId::from_u128(1));
    fake.plant(&name, &labels);
    let refused = begin(&runtime, 1).await.unwrap().err().unwrap();
    assert_eq!(refused.code, RuntimeErrorCode::Duplicate);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_emptied_guest_volume_is_filled_again() {
    let mut fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    fake.odd(move |asked| {
        let first = asked.what.ends_with("/start") && counted.fetch_add(1, Ordering::Relaxed) == 0;
        first.then_some(Odd::Refuse(400, "exec: \"/.shoal/guest\": no such file or directory"))
    });
    let launching = begin(&runtime, 1);
    drop(fake.attached().await);
    let mut guest = fake.attached().await;
    guest.ready().await;
    launching.await.unwrap().unwrap();
    assert_eq!(fake.asked("PUT /containers").len(), 2, "filled twice");
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn container_removal_is_retried_until_it_is_done() {
    let mut fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let (sandbox, _guest) = launch(&mut fake, &runtime).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    fake.odd(move |asked| {
        asked.what.starts_with("DELETE").then(|| counted.fetch_add(1, Ordering::Relaxed)).and_then(
            |tries| match tries {
                0 => Some(Odd::Refuse(409, "removal of container is already in progress")),
                1 => Some(Odd::Refuse(500, "device or resource busy")),
                _ => None,
            },
        )
    });
    timeout(PATIENCE, sandbox.kill()).await.expect("in time").unwrap();
    assert_eq!(fake.containers(), Vec::<String>::new());
    assert_eq!(tries.load(Ordering::Relaxed), 3);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn orphans_of_this_node_only_are_reaped() {
    let fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let instance = InstanceId::from_u128(5);
    let labels = |node: &str, epoch: &str| {
        let instance = instance.to_string();
        json!({"shoal.node": node, "shoal.epoch": epoch, "shoal.instance": instance})
    };
    fake.plant(&format!("shoal-node-{instance}"), &labels("node", "run-0"));
    let carrier = json!({"shoal.node": "node", "shoal.epoch": "run-00", "shoal.instance": ""});
    fake.plant("shoal-node-carrier-run-00-1", &carrier);
    let foreign = [format!("shoal-node2-{instance}"), format!("shoal-other-{instance}")];
    fake.plant(&foreign[0], &labels("node2", "run-0"));
    fake.plant(&foreign[1], &labels("other", "run-0"));
    // A user made an image of a sandbox, and runs it under another name.
    fake.plant("happy_turing", &labels("node", "run-0"));
    let reaped = runtime.reap_orphans().await.unwrap();
    assert_eq!((reaped.runs, reaped.processes), (vec!["run-0".into(), "run-00".into()], 2));
    assert_eq!(reaped.stuck, vec![]);
    let spared =
        || ["happy_turing".to_owned()].into_iter().chain(foreign.clone()).collect::<Vec<_>>();
    assert_eq!(fake.containers(), spared());
    runtime.shutdown().await.unwrap();
    assert_eq!(fake.containers(), spared());
}

#[tokio::test]
async fn a_missing_container_is_found_by_the_regular_comparison() {
    let mut fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let mut deaths = runtime.events();
    let (sandbox, _guest) = launch(&mut fake, &runtime).await;
    for name in fake.containers() {
        fake.lose(&name);
    }
    // Its streams are open, and the engine reports nothing: only the comparison finds it.
    assert_eq!(died(&runtime, &mut deaths).await.instance, sandbox.instance());
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_container_that_no_instance_owns_is_removed() {
    let fake = FakeEngine::start();
    let runtime = start(&fake).await;
    let stray = InstanceId::from_u128(77);
    let labels = json!({
        "shoal.node": "node", "shoal.epoch": "run-1", "shoal.instance": stray.to_string(),
    });
    fake.plant(&format!("shoal-node-{stray}"), &labels);
    let carrier = json!({"shoal.node": "node", "shoal.epoch": "run-1", "shoal.instance": ""});
    fake.plant("shoal-node-carrier-run-1-9", &carrier);
    let gone = async {
        while !fake.containers().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("in time");
    runtime.shutdown().await.unwrap();
}
