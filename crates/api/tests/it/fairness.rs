//! One key that takes all it can get, beside one that wants its due.

use std::time::Duration;

use model::Role;
use serde_json::json;
use tokio::time::Instant;

use crate::raw_client::Connection;
use crate::stage::{Plan, Stage, request, text};

/// A sandbox of a key.
async fn sandbox_of(stage: &Stage, key: &str) -> String {
    let body = json!({"template": "default"});
    let made = stage.call_as(key, "POST", "/v1/checkouts", body).await.expect(201);
    text(&made["sandbox"]["id"])
}

/// The result of an exec.
async fn exec(stage: &Stage, key: &str, sandbox: &str, command: &str) -> serde_json::Value {
    let path = format!("/v1/sandboxes/{sandbox}/exec");
    stage.call_as(key, "POST", &path, json!({"command": command})).await.expect(200)
}

/// Begins an exec and reads nothing of its answer.
async fn begun(stage: &Stage, key: &str, sandbox: &str, command: &str) -> Connection {
    let body = json!({"command": command}).to_string();
    let mut connection = stage.connect().await;
    let path = format!("/v1/sandboxes/{sandbox}/exec");
    connection.send(request(key, "POST", &path, "", body.as_bytes())).await;
    connection
}

#[tokio::test]
async fn output_without_memory_is_cut_and_marked_and_other_keys_have_theirs() {
    let mut plan = Plan::default();
    plan.settings.web.body_memory_bytes = 4 << 20;
    let stage = Stage::with(plan).await;
    let (eve, ada) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let (of_eve, of_ada) = (sandbox_of(&stage, &eve).await, sandbox_of(&stage, &ada).await);
    // A zero has six bytes in JSON, and one while that is written.
    let command = "head -c 500000 /dev/zero";
    let whole = exec(&stage, &eve, &of_eve, command).await;
    assert_eq!((text(&whole["stdout"]).len(), &whole["truncated"]), (500_000, &json!(false)));
    // More than the sockets of this machine take is left on the server.
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(begun(&stage, &eve, &of_eve, command).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let theirs = exec(&stage, &ada, &of_ada, "head -c 100000 /dev/zero").await;
    assert_eq!((text(&theirs["stdout"]).len(), &theirs["truncated"]), (100_000, &json!(false)));
    let mut cut = 0;
    for connection in &mut unread {
        let answer = connection.answer().await.expect(200);
        let is_short = text(&answer["stdout"]).len() < 500_000;
        assert_eq!(answer["truncated"], json!(is_short), "what is cut says so");
        assert_eq!(answer["stdout_truncated"], json!(is_short));
        cut += usize::from(is_short);
    }
    assert!(cut > 0, "8 answers of 3 MB cannot all be in 4 MiB");
    let again = exec(&stage, &eve, &of_eve, command).await;
    assert_eq!(again["truncated"], false, "what was read no longer counts");
}

#[tokio::test]
async fn output_of_a_tool_counts_too() {
    let mut plan = Plan::default();
    plan.settings.web.body_memory_bytes = 1 << 20;
    let stage = Stage::with(plan).await;
    let id = sandbox_of(&stage, &stage.admin).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "exec", "arguments": {"sandbox_id": id, "command": "head -c 300000 /dev/zero"}}});
    let answer = stage.call("POST", "/mcp", call).await.expect(200);
    let result = &answer["result"]["structuredContent"];
    assert_eq!(result["truncated"], true, "{}", &answer.to_string()[..200]);
    assert!(text(&result["stdout"]).len() < 100_000);
}

#[tokio::test]
async fn a_stalled_body_of_one_key_leaves_room_for_others() {
    let mut plan = Plan::default();
    plan.settings.web.body_memory_bytes = 1 << 20;
    let stage = Stage::with(plan).await;
    let (eve, ada) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let (of_eve, of_ada) = (sandbox_of(&stage, &eve).await, sandbox_of(&stage, &ada).await);
    let body = |kib: usize| json!({"command": "true", "stdin": "x".repeat(kib << 10)}).to_string();
    let exec = |key: &str, id: &str, kib| {
        request(key, "POST", &format!("/v1/sandboxes/{id}/exec"), "", body(kib).as_bytes())
    };
    let mut stalled = stage.connect().await;
    let mut half = exec(&eve, &of_eve, 1000);
    half.truncate(half.len() - 10);
    stalled.send(half).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stage.raw(&exec(&eve, &of_eve, 200)).await.problem("overloaded");
    stage.raw(&exec(&ada, &of_ada, 400)).await.expect(200);
}

#[tokio::test]
async fn an_archive_with_too_many_bytes_is_cut_off_and_never_short() {
    let mut plan = Plan::default();
    plan.settings.web.archive_bytes_max = 200_000;
    let stage = Stage::with(plan).await;
    let id = sandbox_of(&stage, &stage.admin).await;
    let put = |bytes: usize| {
        let path = format!("/v1/sandboxes/{id}/files?path=/workspace/up/f");
        request(&stage.admin, "PUT", &path, "", &vec![0; bytes])
    };
    let get = request(
        &stage.admin,
        "GET",
        &format!("/v1/sandboxes/{id}/archive?path=/workspace/up"),
        "accept: application/gzip\r\n",
        b"",
    );
    assert!(stage.raw(&put(100_000)).await.status < 300);
    let small = stage.raw(&get).await;
    assert_eq!(small.status, 200);
    assert!(stage.raw(&put(300_000)).await.status < 300);
    let mut connection = stage.connect().await;
    connection.send(&get).await;
    assert_eq!(connection.head().await.status, 200);
    let sent = connection.rest().await;
    assert!(!sent.ends_with(b"0\r\n\r\n"), "the end of a whole body is missing");
}

#[tokio::test]
async fn streams_of_all_dialects_count_for_their_key() {
    let mut plan = Plan::default();
    plan.settings.web.max_lasting_per_key = 2;
    let stage = Stage::with(plan).await;
    let id = sandbox_of(&stage, &stage.admin).await;
    let stream =
        |path: &str| request(&stage.admin, "GET", path, "accept: text/event-stream\r\n", b"");
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut connection = stage.connect().await;
        connection.send(stream("/v1/events")).await;
        assert_eq!(connection.head().await.status, 200);
        held.push(connection);
    }
    stage.raw(&stream("/v1/events")).await.problem("quota_exceeded");
    let exec = request(
        &stage.admin,
        "POST",
        &format!("/v1/sandboxes/{id}/exec"),
        "accept: text/event-stream\r\n",
        json!({"command": "true"}).to_string().as_bytes(),
    );
    stage.raw(&exec).await.problem("quota_exceeded");
    let archive = format!("/v1/sandboxes/{id}/archive?path=/workspace");
    stage.raw(&request(&stage.admin, "GET", &archive, "", b"")).await.problem("quota_exceeded");
    let other = stage.key(Role::Read).await;
    let mut connection = stage.connect().await;
    connection
        .send(request(&other, "GET", "/v1/events", "accept: text/event-stream\r\n", b""))
        .await;
    assert_eq!(connection.head().await.status, 200, "another key has its own");
}

#[tokio::test]
async fn connections_without_a_key_do_not_keep_callers_out() {
    let mut plan = Plan::default();
    plan.limits.connections = 8;
    let stage = Stage::with(plan).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(stage.connect().await);
    }
    let began = Instant::now();
    stage.get("/v1/stats").await.expect(200);
    assert!(began.elapsed() < Duration::from_secs(5), "not when they time out");
    // Requests in progress stay.
    let id = sandbox_of(&stage, &stage.admin).await;
    let mut running = begun(&stage, &stage.admin, &id, "sleep 0.5").await;
    stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
    for _ in 0..30 {
        silent.push(stage.connect().await);
    }
    running.answer().await.expect(200);
}

#[tokio::test]
async fn connections_without_a_key_are_limited_per_address() {
    let mut plan = Plan::default();
    plan.limits.strangers_per_address = 3;
    let stage = Stage::with(plan).await;
    let mut known = Vec::new();
    for _ in 0..10 {
        let mut connection = stage.connect().await;
        connection.send(request(&stage.admin, "GET", "/v1/stats", "", b"")).await;
        connection.answer().await.expect(200);
        known.push(connection);
    }
    let mut silent = stage.connect().await;
    let later = [stage.connect().await, stage.connect().await, stage.connect().await];
    assert!(silent.is_closed().await, "the oldest gives way");
    stage.get("/v1/stats").await.expect(200);
    for connection in &mut known {
        connection.send(request(&stage.admin, "GET", "/v1/stats", "", b"")).await;
        connection.answer().await.expect(200);
    }
    drop(later);
}

#[tokio::test]
async fn a_request_with_two_hosts_is_refused() {
    let stage = Stage::start().await;
    let two = b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n";
    let problem = stage.raw(two).await.problem("bad_request");
    assert_eq!(problem["field"], "Host");
}

#[tokio::test]
async fn health_shows_counts_only_to_keys() {
    let stage = Stage::start().await;
    let health = stage.raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect(200);
    assert_eq!(health, json!({"status": "ok"}));
    let key = stage.key(Role::Read).await;
    let known = stage.call_as(&key, "GET", "/health", json!(null)).await.expect(200);
    assert!(known["pool"]["max_capacity"].is_u64() && known["version"].is_string(), "{known}");
}

#[tokio::test]
async fn streams_of_a_revoked_key_end_at_once() {
    let stage = Stage::start().await;
    let made = stage.engine.create_key("eve", Role::Read, None).await.unwrap();
    let mut stream = stage.connect().await;
    stream
        .send(request(&made.secret, "GET", "/v1/events", "accept: text/event-stream\r\n", b""))
        .await;
    assert_eq!(stream.head().await.status, 200);
    let began = Instant::now();
    let path = format!("/v1/keys/{}", made.record.id);
    stage.call("DELETE", &path, json!(null)).await.expect(204);
    while stream.chunk().await.is_some() {}
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn limits_of_a_key_are_set_shown_enforced_and_kept() {
    let mut plan = Plan::default();
    plan.engine.role_limits.r#use.streams = Some(7);
    let stage = Stage::with(plan).await;
    let limits = json!({"requests_per_s": 3, "body_bytes": 100_000});
    let asked = json!({"name": "eve", "role": "use", "limits": limits});
    let made = stage.call("POST", "/v1/keys", asked).await.expect(201);
    assert_eq!(made["limits"], limits);
    let (id, eve) = (text(&made["id"]), text(&made["secret"]));
    let shown = async |stage: &Stage| {
        let listed = stage.get("/v1/keys").await.expect(200);
        let keys = listed["keys"].as_array().unwrap().clone();
        keys.into_iter().find(|key| key["id"] == id.as_str()).unwrap()
    };
    let key = shown(&stage).await;
    assert_eq!(key["limits"], limits);
    let effective = json!({"requests_per_s": 3, "streams": 7, "body_bytes": 100_000});
    assert_eq!(key["effective_limits"], effective, "those of its role are included");
    let sandbox = sandbox_of(&stage, &eve).await;
    assert_eq!(shown(&stage).await["used"]["live_sandboxes"], 1);
    let body = json!({"command": "true", "stdin": "x".repeat(200_000)});
    let large = stage.call_as(&eve, "POST", &format!("/v1/sandboxes/{sandbox}/exec"), body).await;
    let problem = large.problem("quota_exceeded");
    assert!(text(&problem["detail"]).contains("body_bytes of this key is 100000"), "{problem}");
    assert_eq!((large.status, large.headers["retry-after"].as_str()), (429, "1"));
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(stage.call_as(&eve, "GET", "/v1/stats", json!(null)).await);
    }
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert!(text(&refused.problem("quota_exceeded")["detail"]).contains("requests_per_s"));
    let path = format!("/v1/keys/{id}");
    let change = json!({"limits": {"requests_per_s": null, "sessions": 4}});
    let changed = stage.call("PATCH", &path, change).await.expect(200);
    assert_eq!(changed["limits"], json!({"sessions": 4, "body_bytes": 100_000}));
    for (change, code) in [
        (json!({"limits": {"requests_per_s": 0}}), "invalid_argument"),
        (json!({"limits": {"sandboxes": 1}}), "bad_request"),
        (json!({}), "bad_request"),
    ] {
        stage.call("PATCH", &path, change).await.problem(code);
    }
    let unknown = format!("/v1/keys/{}", model::KeyId::from_u128(7));
    stage.call("PATCH", &unknown, json!({"limits": {}})).await.problem("not_found");
    let metrics = stage.call_as(&eve, "GET", "/metrics", json!(null)).await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(metrics.contains(&format!("shoal_key_limit{{key=\"{id}\",limit=\"sessions\"}} 4")));
    let of_others = |line: &&str| line.starts_with("shoal_key_") && !line.contains(&id);
    assert_eq!(metrics.lines().find(of_others), None, "a key sees its own alone");
    assert!(metrics.ends_with("# EOF\n") && metrics.matches("# EOF").count() == 1);
    let stage = stage.kill_and_start().await;
    assert_eq!(shown(&stage).await["limits"], json!({"sessions": 4, "body_bytes": 100_000}));
    let made =
        async || stage.call_as(&eve, "POST", "/v1/sessions", json!({"template": "default"})).await;
    for _ in 0..4 {
        assert!(made().await.status < 300);
    }
    let fifth = made().await.problem("quota_exceeded");
    assert!(text(&fifth["detail"]).contains("sessions of this key is 4"), "{fifth}");
}
