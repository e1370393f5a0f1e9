//! Requests that cannot be right get an answer of Ash's shape, with a status that says so.

use serde_json::{Value, json};

use super::{call, session, stage};
use crate::stage::{Stage, request};

const UNKNOWN: &str = "00000000-0000-7000-8000-000000000000";

#[track_caller]
fn check(what: &str, status: u16, body: &[u8], kind: Option<&String>) {
    assert!((400..500).contains(&status), "{what} gave {status}");
    let told: Value = serde_json::from_slice(body).unwrap_or_else(|error| {
        panic!("{what}: {error}: {}", String::from_utf8_lossy(body));
    });
    assert_eq!(told["statusCode"], status, "{what}: {told}");
    assert!(told["error"].as_str().is_some_and(|text| !text.is_empty()), "{what}: {told}");
    assert_eq!(kind.map(String::as_str), Some("application/json; charset=utf-8"), "{what}");
}

async fn raw(stage: &Stage, method: &str, path: &str, headers: &str, body: &[u8]) {
    let bytes = request(&stage.admin, method, &format!("/compat/ash{path}"), headers, body);
    let answer = stage.raw(&bytes).await;
    let what = format!("{method} {path} {}", String::from_utf8_lossy(body));
    check(&what, answer.status, &answer.body, answer.headers.get("content-type"));
}

#[tokio::test]
async fn every_malformed_request_is_refused_in_the_shape_of_ash() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let of = |rest: &str| format!("/api/sessions/{id}{rest}");
    let unknown = "/api/sessions/00000000-0000-7000-8000-000000000000";
    let none = Value::Null;
    let requests: Vec<(&str, String, Value)> = vec![
        ("POST", "/api/agents".into(), none.clone()),
        ("POST", "/api/agents".into(), json!([])),
        ("POST", "/api/agents".into(), json!("x")),
        ("POST", "/api/agents".into(), json!({})),
        ("POST", "/api/agents".into(), json!({"name": 3})),
        ("POST", "/api/agents".into(), json!({"name": ""})),
        ("POST", "/api/agents".into(), json!({"name": "a b"})),
        ("POST", "/api/agents".into(), json!({"name": "../a"})),
        ("POST", "/api/agents".into(), json!({"name": "x".repeat(256)})),
        ("POST", "/api/agents".into(), json!({"name": "a", "path": 1})),
        ("POST", "/api/agents".into(), json!({"name": "a", "other": 1})),
        ("POST", "/api/agents".into(), json!({"name": "a", "path": "a", "files": []})),
        ("POST", "/api/agents".into(), json!({"name": "a", "path": "/etc"})),
        ("POST", "/api/agents".into(), json!({"name": "a", "path": "x".repeat(5000)})),
        ("POST", "/api/agents".into(), json!({"name": "a", "env": {"A": 1}})),
        ("POST", "/api/agents".into(), json!({"name": "a", "env": []})),
        ("POST", "/api/agents".into(), json!({"name": "a", "files": {}})),
        ("POST", "/api/agents".into(), json!({"name": "a", "files": [1]})),
        ("POST", "/api/agents".into(), json!({"name": "a", "files": [{"path": "x"}]})),
        (
            "POST",
            "/api/agents".into(),
            json!({"name": "a", "files": [{"path": "../x", "content": ""}]}),
        ),
        (
            "POST",
            "/api/agents".into(),
            json!({"name": "a", "files": [{"path": "x", "content": "*"}]}),
        ),
        ("GET", "/api/agents/unknown".into(), none.clone()),
        ("PATCH", "/api/agents/unknown".into(), json!({})),
        ("PATCH", "/api/agents/tester".into(), json!({"env": 1})),
        ("PATCH", "/api/agents/tester".into(), json!({"config": []})),
        ("DELETE", "/api/agents/unknown".into(), none.clone()),
        ("PATCH", "/api/agents/tester/config".into(), json!([])),
        ("GET", "/api/agents/tester/files/..%2Fx".into(), none.clone()),
        ("GET", "/api/agents/tester/files/missing".into(), none.clone()),
        ("GET", "/api/agents/tester/files/CLAUDE.md?format=xml".into(), none.clone()),
        ("POST", "/api/agents/tester/files".into(), json!({})),
        ("DELETE", "/api/agents/tester/files/missing".into(), none.clone()),
        ("GET", "/api/agents/tester/versions".into(), none.clone()),
        ("POST", "/api/sessions".into(), none.clone()),
        ("POST", "/api/sessions".into(), json!({})),
        ("POST", "/api/sessions".into(), json!({"agent": 1})),
        ("POST", "/api/sessions".into(), json!({"agent": "unknown"})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "credentialId": "c"})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "extraEnv": {"A": null}})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "extraEnv": {"A=": "1"}})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "model": "x".repeat(101)})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "mcpServers": {"a": 1}})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "permissionMode": "none"})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "allowedTools": "Bash"})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "startupScript": "true"})),
        ("POST", "/api/sessions".into(), json!({"agent": "tester", "other": 1})),
        ("GET", "/api/sessions?status=sleeping".into(), none.clone()),
        ("GET", "/api/sessions?limit=0".into(), none.clone()),
        ("GET", "/api/sessions?limit=x".into(), none.clone()),
        ("GET", "/api/sessions?offset=-1".into(), none.clone()),
        ("GET", "/api/sessions/nonsense".into(), none.clone()),
        ("GET", "/api/sessions/%ff".into(), none.clone()),
        ("GET", unknown.into(), none.clone()),
        ("DELETE", unknown.into(), none.clone()),
        ("POST", format!("{unknown}/pause"), none.clone()),
        ("POST", format!("{unknown}/messages"), json!({"content": "hi"})),
        ("PATCH", of("/config"), json!({"model": 1})),
        ("PATCH", of("/config"), json!({"systemPrompt": "x"})),
        ("POST", of("/messages"), json!({"content": "hi", "other": 1})),
        ("POST", of("/exec"), json!({"command": "true", "cwd": "/tmp"})),
        ("POST", of("/messages"), none.clone()),
        ("POST", of("/messages"), json!({})),
        ("POST", of("/messages"), json!({"content": 1})),
        ("POST", of("/messages"), json!({"content": []})),
        ("POST", of("/messages"), json!({"content": [{"type": "video"}]})),
        ("POST", of("/messages"), json!({"content": "hi", "maxTurns": 0})),
        ("POST", of("/messages"), json!({"content": "hi", "effort": "huge"})),
        ("GET", of("/messages?limit=1001"), none.clone()),
        ("GET", of("/messages?after=x"), none.clone()),
        ("GET", of("/events?type=other"), none.clone()),
        ("GET", of("/logs?after=-2"), none.clone()),
        ("POST", of("/exec"), json!({})),
        ("POST", of("/exec"), json!({"command": ""})),
        ("POST", of("/exec"), json!({"command": "true", "timeout": 300_001})),
        ("GET", of("/files?includeHidden=maybe"), none.clone()),
        ("GET", of("/files/..%2F..%2Fetc%2Fpasswd"), none.clone()),
        ("GET", of("/files/missing"), none.clone()),
        ("DELETE", of("/files/missing"), none.clone()),
        ("POST", of("/files"), json!({"files": []})),
        ("POST", of("/files"), json!({"files": [{"path": "a"}]})),
        (
            "POST",
            of("/files"),
            json!({"files": [{"path": "a", "content": ""}], "targetPath": "../x"}),
        ),
        ("POST", of("/workspace"), json!({"bundle": ""})),
        ("POST", of("/workspace"), json!({"bundle": "*"})),
        ("POST", of("/workspace"), json!({"bundle": "aGVsbG8="})),
        ("GET", of("/turns/nonsense/events"), none.clone()),
        ("GET", of("/attachments"), none.clone()),
        ("PUT", of(""), json!({})),
        ("POST", "/api/api-keys".into(), json!({"label": 1})),
        ("DELETE", "/api/api-keys/nonsense".into(), none.clone()),
        ("GET", "/api/queue".into(), none.clone()),
        ("GET", "/api/internal/runners".into(), none.clone()),
        ("GET", "/docs".into(), none.clone()),
    ];
    assert!(requests.len() >= 60, "{}", requests.len());
    for (method, path, body) in requests {
        let answer = call(&stage, method, &path, body.clone()).await;
        let what = format!("{method} {path} {body}");
        check(&what, answer.status, &answer.body, answer.headers.get("content-type"));
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_or_of_another_kind_are_refused_in_the_shape_of_ash() {
    let stage = stage().await;
    let json = "content-type: application/json\r\n";
    raw(&stage, "POST", "/api/sessions", json, b"{").await;
    raw(&stage, "POST", "/api/sessions", json, b"\xff").await;
    raw(&stage, "POST", "/api/agents", json, b"").await;
    raw(&stage, "POST", "/api/agents", "content-type: text/plain\r\n", b"{}").await;
    raw(&stage, "POST", "/api/api-keys", json, &vec![b' '; 2 << 20]).await;
}

#[tokio::test]
async fn unauthorized_requests_have_the_texts_of_ash() {
    let stage = stage().await;
    let read = stage.key(model::Role::Read).await;
    let path = "/compat/ash/api/agents";
    let head = |authorization: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}content-length: 0\r\n\r\n"
        )
    };
    for (authorization, text) in [
        (String::new(), "Missing Authorization header"),
        ("authorization: Basic eDp5\r\n".to_owned(), "Invalid Authorization header format"),
        ("authorization: Bearer\r\n".to_owned(), "Invalid Authorization header format"),
        (format!("authorization: bearer {read}\r\n"), "Invalid Authorization header format"),
        ("authorization: Bearer a b\r\n".to_owned(), "Invalid Authorization header format"),
        ("authorization: Bearer wrong\r\n".to_owned(), "Invalid API key"),
    ] {
        let answer = stage.raw(head(&authorization).as_bytes()).await;
        assert_eq!(answer.expect(401), json!({"error": text, "statusCode": 401}));
    }
    let answer = stage.call_as(&read, "POST", path, json!({"name": "a"})).await;
    check("a key that only reads", answer.status, &answer.body, answer.headers.get("content-type"));
    assert_eq!(answer.status, 403);
    let public = "GET /compat/ash/health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(stage.raw(public.as_bytes()).await.expect(200)["status"], "ok");
}

#[tokio::test]
async fn a_body_of_very_many_parts_is_refused_before_it_takes_room() {
    let stage = stage().await;
    super::deploy(&stage, "a").await;
    let id = session(&stage, json!({})).await;
    let zeros = format!("[0{}]", ",0".repeat(300_000));
    let of = |rest: &str| format!("/compat/ash/api/sessions/{id}{rest}");
    let files = "/compat/ash/api/agents/a/files".to_owned();
    for (path, field) in [
        ("/compat/ash/api/agents".to_owned(), "files"),
        ("/compat/ash/api/sessions".to_owned(), "allowedTools"),
        (files.clone(), "files"),
        (of("/files"), "files"),
        (of("/workspace"), "bundle"),
        (of("/messages"), "content"),
    ] {
        let body = format!("{{\"{field}\":{zeros}}}");
        let answer = stage.raw(&request(&stage.admin, "POST", &path, "", body.as_bytes())).await;
        let told = answer.expect(400);
        assert!(told["message"].as_str().unwrap().contains("100000 parts"), "{path}: {told}");
    }
    // An unknown agent or session is refused whatever the body is.
    for path in [files.replace("/a/", "/unknown/"), of("/messages").replace(&id, UNKNOWN)] {
        let body = format!("{{\"files\":{zeros}}}");
        let answer = stage.raw(&request(&stage.admin, "POST", &path, "", body.as_bytes())).await;
        answer.expect(404);
    }
    // A large one that is right is taken apart elsewhere.
    let large = wire::to_base64(&vec![b'x'; 600_000]);
    let body = json!({"files": [{"path": "large", "content": large}]});
    call(&stage, "POST", "/api/agents/a/files", body.clone()).await.expect(200);
    let told = call(&stage, "POST", &format!("/api/sessions/{id}/files"), body).await.expect(200);
    assert_eq!(told["files"], json!([{"path": "large", "written": true, "size": 600_000}]));
}
