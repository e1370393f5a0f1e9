//! Connections that are slow, many, half closed or gone.

use std::time::Duration;

use api::ConnectionLimits;
use serde_json::json;
use tower_service::Service as _;

use crate::raw_client::Answer;
use crate::stage::{Plan, Stage, request};

fn short() -> Plan {
    let mut plan = Plan::default();
    plan.limits.head = Duration::from_millis(200);
    plan.limits.idle = Duration::from_millis(400);
    plan.settings.web.body_stall = Duration::from_millis(200);
    plan
}

#[tokio::test]
async fn request_heads_that_do_not_end_are_cut() {
    let stage = Stage::with(short()).await;
    for start in ["", "GET", "GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: "] {
        let mut connection = stage.connect().await;
        connection.send(start).await;
        assert!(connection.is_closed().await, "{start:?}");
    }
    stage.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect(200);
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_kept() {
    let stage = Stage::with(short()).await;
    let mut connection = stage.connect().await;
    for _ in 0..3 {
        connection.send(request(&stage.admin, "GET", "/v1/stats", "", b"")).await;
        connection.answer().await.expect(200);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(connection.is_closed().await);
}

#[tokio::test]
async fn body_that_does_not_arrive_is_refused() {
    let stage = Stage::with(short()).await;
    let mut connection = stage.connect().await;
    let mut bytes = request(&stage.admin, "POST", "/v1/checkouts", "", &[b' '; 100]);
    bytes.truncate(bytes.len() - 50);
    connection.send(bytes).await;
    connection.answer().await.problem("request_timeout");
    assert!(connection.is_closed().await);
}

/// A client keeps its connection unless the answer says that it ends.
#[tokio::test]
async fn connection_that_ends_after_a_refusal_says_so() {
    let stage = Stage::start().await;
    let key = "not a key";
    let said = |answer: &Answer| answer.headers.get("connection").cloned();
    // The body comes later, or never.
    let whole = request(key, "POST", "/v1/checkouts", "", b"{}");
    let mut connection = stage.connect().await;
    connection.send(&whole[..whole.len() - 2]).await;
    let refused = connection.answer().await;
    assert_eq!((refused.status, said(&refused)), (401, Some("close".to_owned())));
    assert!(connection.is_closed().await);
    // It came with the head, and the connection goes on.
    let mut connection = stage.connect().await;
    for _ in 0..3 {
        connection.send(&whole).await;
        let refused = connection.answer().await;
        assert_eq!((refused.status, said(&refused)), (401, None));
    }
}

#[tokio::test]
async fn request_heads_have_a_maximum_size() {
    let stage = Stage::start().await;
    let mut connection = stage.connect().await;
    let long =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: {}\r\n\r\n", "a".repeat(300_000));
    connection.send(long).await;
    assert_eq!(connection.head().await.status, 431);
    let many =
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x-a: b\r\n".repeat(500));
    assert_eq!(stage.raw(many.as_bytes()).await.status, 431);
    for nonsense in ["hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{0}\u{0}\r\n\r\n"] {
        let mut connection = stage.connect().await;
        connection.send(nonsense).await;
        assert_eq!(connection.head().await.status, 400, "{nonsense:?}");
    }
}

#[tokio::test]
async fn connection_above_the_limit_is_refused() {
    let mut plan = Plan::default();
    plan.limits.connections = 2;
    let stage = Stage::with(plan).await;
    // Connections in use, which give way to none.
    let mut held = Vec::new();
    for key in [&stage.admin, &stage.key(model::Role::Read).await] {
        let mut connection = stage.connect().await;
        let accept = "accept: text/event-stream\r\n";
        connection.send(request(key, "GET", "/v1/events", accept, b"")).await;
        assert_eq!(connection.head().await.status, 200);
        held.push(connection);
    }
    let mut third = stage.connect().await;
    let refused = third.answer().await;
    assert_eq!(refused.json()["code"], "overloaded");
    assert_eq!(refused.status, 503);
    assert!(third.is_closed().await);
    drop(held);
    tokio::time::sleep(Duration::from_millis(100)).await;
    stage.raw(&request(&stage.admin, "GET", "/v1/stats", "", b"")).await.expect(200);
}

#[tokio::test]
async fn too_many_requests_at_once_are_refused() {
    let mut plan = Plan::default();
    plan.settings.web.max_requests = 1;
    plan.engine.templates[0].pool.pool_size = 0;
    plan.engine.templates[0].pool.max_overflow = 1;
    let stage = Stage::with(plan).await;
    stage.checkout().await;
    let mut waiting = stage.connect().await;
    let body = json!({"template": "default"}).to_string();
    waiting.send(request(&stage.admin, "POST", "/v1/checkouts", "", body.as_bytes())).await;
    stage.until("waits", |stage| stage.engine.pools()[0].waiters == 1).await;
    let refused = stage.get("/v1/stats").await;
    refused.problem("overloaded");
    drop(waiting);
    stage.until("gone", |stage| stage.engine.pools()[0].waiters == 0).await;
    stage.get("/v1/stats").await.expect(200);
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_waits_holds_nothing() {
    let mut plan = Plan::default();
    plan.engine.templates[0].pool.pool_size = 1;
    plan.engine.templates[0].pool.max_overflow = 0;
    let stage = Stage::with(plan).await;
    let (lease, _) = stage.checkout().await;
    let body = json!({"template": "default", "wait_ms": 600_000}).to_string();
    let mut waiting = stage.connect().await;
    waiting.send(request(&stage.admin, "POST", "/v1/checkouts", "", body.as_bytes())).await;
    stage.until("waits", |stage| stage.engine.pools()[0].waiters == 1).await;
    drop(waiting);
    stage.until("gone", |stage| stage.engine.pools()[0].waiters == 0).await;
    let path = format!("/v1/checkouts/{lease}");
    stage.call("DELETE", &path, serde_json::Value::Null).await.expect(204);
    stage.until("free", |stage| stage.engine.stats().warm == 1 && stage.leased() == 0).await;
    let metrics = String::from_utf8(stage.get("/metrics").await.body).unwrap();
    let gone =
        "shoal_http_requests_total{route=\"/v1/checkouts\",method=\"POST\",status=\"499\"} 1";
    assert!(metrics.contains(gone), "{metrics}");
}

#[tokio::test]
async fn client_disconnect_is_seen_behind_unread_bytes() {
    let mut plan = Plan::default();
    plan.limits.head = Duration::from_millis(400);
    plan.engine.templates[0].pool.pool_size = 1;
    plan.engine.templates[0].pool.max_overflow = 0;
    let stage = Stage::with(plan).await;
    let (_, id) = stage.checkout().await;
    let exec = format!("/v1/sandboxes/{id}/exec");
    let checkout = json!({"template": "default", "wait_ms": 600_000}).to_string();
    let sleep = json!({"command": "sleep 1000"}).to_string();
    // One byte more, and more than is read at once.
    for more in [1, 48 << 10] {
        let more = vec![b'G'; more];
        let mut waiting = stage.connect().await;
        let checkout = request(&stage.admin, "POST", "/v1/checkouts", "", checkout.as_bytes());
        waiting.send([checkout, more.clone()].concat()).await;
        stage.until("waits", |stage| stage.engine.pools()[0].waiters == 1).await;
        drop(waiting);
        stage.until("gone", |stage| stage.engine.pools()[0].waiters == 0).await;
        for accept in ["accept: text/event-stream\r\n", ""] {
            let mut running = stage.connect().await;
            let sleep = request(&stage.admin, "POST", &exec, accept, sleep.as_bytes());
            running.send([sleep, more.clone()].concat()).await;
            stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
            drop(running);
            stage.until("it is gone", |stage| stage.runtime.alive().tasks == 0).await;
        }
    }
}

#[tokio::test]
async fn lease_whose_answer_is_not_read_is_returned() {
    let stage = Stage::start().await;
    for mark in ["", "one"] {
        let request = axum::extract::Request::post("/v1/checkouts")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", stage.admin))
            .header(if mark.is_empty() { "x-none" } else { "idempotency-key" }, mark)
            .body(axum::body::Body::from(json!({"template": "default"}).to_string()))
            .unwrap();
        let answer = stage.api.router().call(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), stage.leased()), (201, 1));
        drop(answer);
        stage.until("returned", |stage| stage.leased() == 0).await;
    }
    let body = json!({"template": "default"}).to_string();
    let again =
        request(&stage.admin, "POST", "/v1/checkouts", "idempotency-key: one\r\n", body.as_bytes());
    let again = stage.raw(&again).await;
    again.expect(201);
    assert!(!again.headers.contains_key("idempotency-replayed"), "the first came to nothing");
}

#[tokio::test]
async fn server_stop_finishes_requests_in_progress() {
    let mut stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let mut idle = stage.connect().await;
    let mut busy = stage.connect().await;
    let body = json!({"command": "sleep 0.5; echo done"}).to_string();
    let path = format!("/v1/sandboxes/{id}/exec");
    busy.send(request(&stage.admin, "POST", &path, "", body.as_bytes())).await;
    stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
    let address = stage.address;
    let served = stage.stop();
    assert_eq!(busy.answer().await.expect(200)["stdout"], "done\n");
    assert!(busy.is_closed().await && idle.is_closed().await);
    assert_eq!(served.await.unwrap().cut, 0);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_socket_in_the_file_system_serves_too() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let stage = Stage::start().await;
    let path = std::env::temp_dir().join(format!("shoal-api-{}.sock", std::process::id()));
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let serving =
        api::serve(listener, &stage.api, ConnectionLimits::default(), std::future::pending());
    let asking = async {
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let request = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = tokio::select! {
        _ = serving => unreachable!("the server is not stopped"),
        answer = asking => answer,
    };
    std::fs::remove_file(&path).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn server_stop_has_a_deadline() {
    let mut plan = Plan::default();
    plan.limits.stop_grace = Duration::from_millis(100);
    let mut stage = Stage::with(plan).await;
    let (_, id) = stage.checkout().await;
    let mut busy = stage.connect().await;
    let body = json!({"command": "sleep 1000"}).to_string();
    let path = format!("/v1/sandboxes/{id}/exec");
    busy.send(request(&stage.admin, "POST", &path, "", body.as_bytes())).await;
    stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
    let served = stage.stop();
    assert_eq!(served.await.unwrap().cut, 1);
    assert!(busy.is_closed().await);
}
