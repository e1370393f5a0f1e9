//! Requests that are sent twice are done once.

use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Plan, Stage, request, text};

async fn send(stage: &Stage, path: &str, mark: &str, body: &Value) -> Answer {
    let headers = format!("idempotency-key: {mark}\r\n");
    let body = body.to_string();
    stage.raw(&request(&stage.admin, "POST", path, &headers, body.as_bytes())).await
}

#[tokio::test]
async fn idempotent_request_has_the_same_answer_twice() {
    let stage = Stage::start().await;
    let body = json!({"template": "default"});
    for path in ["/v1/checkouts", "/v1/sandboxes"] {
        let first = send(&stage, path, path.rsplit('/').next().unwrap(), &body).await;
        assert!(!first.headers.contains_key("idempotency-replayed"));
        let first = first.expect(201);
        let again = send(&stage, path, path.rsplit('/').next().unwrap(), &body).await;
        assert_eq!(again.headers["idempotency-replayed"], "true");
        assert_eq!(again.expect(201)["id"], first["id"]);
    }
    assert_eq!(stage.leased(), 2);
    let other = json!({"template": "default", "ttl_s": 5});
    send(&stage, "/v1/checkouts", "checkouts", &other).await.problem("idempotency_conflict");
    send(&stage, "/v1/sandboxes", "checkouts", &body).await.problem("idempotency_conflict");
    let template = serde_json::to_value(crate::stage::template("two")).unwrap();
    let made = send(&stage, "/v1/templates", "t", &template).await.expect(201);
    assert_eq!(send(&stage, "/v1/templates", "t", &template).await.expect(201), made);
    let key = json!({"name": "ci", "role": "use"});
    let made = send(&stage, "/v1/keys", "k", &key).await.expect(201);
    let again = send(&stage, "/v1/keys", "k", &key).await;
    let problem = again.problem("idempotency_conflict");
    assert!(text(&problem["detail"]).contains(&text(&made["id"])), "{problem}");
    assert!(!problem.to_string().contains(&text(&made["secret"])), "the secret is shown once");
    assert_eq!(stage.engine.keys().len(), 2);
    let stage = stage.kill_and_start().await;
    let later = send(&stage, "/v1/keys", "k", &key).await;
    assert_eq!(later.problem("idempotency_conflict")["detail"], problem["detail"]);
    assert_eq!(stage.engine.keys().len(), 2, "a restarted server knows it too");
}

#[tokio::test]
async fn two_idempotent_requests_at_once_are_one() {
    let stage = Stage::start().await;
    let body = json!({"template": "default"});
    let requests = (0..20).map(|_| send(&stage, "/v1/checkouts", "one", &body));
    let answers = futures_util::future::join_all(requests).await;
    let leases: std::collections::BTreeSet<_> =
        answers.iter().map(|answer| text(&answer.expect(201)["id"])).collect();
    assert_eq!(leases.len(), 1);
    assert_eq!(stage.leased(), 1);
    let fresh = answers.iter().filter(|a| !a.headers.contains_key("idempotency-replayed"));
    assert_eq!(fresh.count(), 1);
}

#[tokio::test]
async fn a_lease_that_ended_is_not_given_out_again() {
    let stage = Stage::start().await;
    let body = json!({"template": "default"});
    let lease = text(&send(&stage, "/v1/checkouts", "a", &body).await.expect(201)["id"]);
    stage.call("DELETE", &format!("/v1/checkouts/{lease}"), Value::Null).await.expect(204);
    send(&stage, "/v1/checkouts", "a", &body).await.problem("lease_lost");
    let second = send(&stage, "/v1/checkouts", "b", &body).await;
    second.expect(201);
    let stage = stage.kill_and_start().await;
    send(&stage, "/v1/checkouts", "b", &body).await.problem("lease_lost");
    send(&stage, "/v1/checkouts", "c", &body).await.expect(201);
}

#[tokio::test]
async fn a_request_that_failed_may_be_sent_again() {
    let mut plan = Plan::default();
    plan.engine.templates[0].pool.pool_size = 1;
    plan.engine.templates[0].pool.max_overflow = 0;
    let stage = Stage::with(plan).await;
    let (lease, _) = stage.checkout().await;
    let body = json!({"template": "default", "policy": "fail_fast"});
    send(&stage, "/v1/checkouts", "a", &body).await.problem("capacity_exhausted");
    stage.call("DELETE", &format!("/v1/checkouts/{lease}"), Value::Null).await.expect(204);
    stage.until("free", |stage| stage.engine.stats().warm == 1).await;
    send(&stage, "/v1/checkouts", "a", &body).await.expect(201);
}

/// Gives up whatever was asked for with a key.
async fn abandon(stage: &Stage, mark: &str) -> Answer {
    let headers = format!("idempotency-key: {mark}\r\n");
    stage.raw(&request(&stage.admin, "DELETE", "/v1/checkouts", &headers, b"")).await
}

#[tokio::test]
async fn checkout_whose_answer_was_not_read_leaves_nothing() {
    let stage = Stage::start().await;
    let body = json!({"template": "default"});
    // The request was answered, and the client did not read the answer.
    let lease = text(&send(&stage, "/v1/checkouts", "read", &body).await.expect(201)["id"]);
    assert_eq!(stage.leased(), 1);
    for _ in 0..2 {
        abandon(&stage, "read").await.expect(204);
    }
    stage.get(&format!("/v1/checkouts/{lease}")).await.problem("lease_lost");
    // It arrives after it was given up.
    abandon(&stage, "late").await.expect(204);
    send(&stage, "/v1/checkouts", "late", &body).await.problem("idempotency_conflict");
    // It waits while it is given up.
    let all: Vec<_> = (0..12).map(|n| n.to_string()).collect();
    for mark in &all {
        send(&stage, "/v1/checkouts", mark, &body).await.expect(201);
    }
    let waiting = stage.connect().await;
    let mut waiting = waiting;
    let text = body.to_string();
    let headers = "idempotency-key: waits\r\n";
    waiting.send(&request(&stage.admin, "POST", "/v1/checkouts", headers, text.as_bytes())).await;
    stage.until("it waits", |stage| stage.engine.pools()[0].waiters == 1).await;
    drop(waiting);
    abandon(&stage, "waits").await.expect(204);
    for mark in &all {
        abandon(&stage, mark).await.expect(204);
    }
    stage.until("nothing is left", |stage| stage.leased() == 0).await;
    stage.call("DELETE", "/v1/checkouts", Value::Null).await.problem("bad_request");
}
