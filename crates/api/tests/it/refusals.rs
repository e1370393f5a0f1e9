//! Bad input of every kind: each gets a problem that says what is wrong.

use serde_json::{Value, json};

use crate::stage::{Plan, Stage, request, text};

const UNKNOWN_ID: &str = "00000000-0000-0000-0000-000000000001";

#[tokio::test]
async fn malformed_requests_are_refused_by_field() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let sandbox = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    let bad = "bad_request";
    let wrong = "invalid_argument";
    for (method, path, body, code, field) in [
        ("POST", "/v1/checkouts".into(), json!({"template": 5}), bad, "template"),
        ("POST", "/v1/checkouts".into(), json!({"template": "A B"}), bad, "template"),
        ("POST", "/v1/checkouts".into(), json!({}), bad, "template"),
        ("POST", "/v1/checkouts".into(), json!([]), bad, "body"),
        ("POST", "/v1/checkouts".into(), json!({"template": "default", "ttl": 1}), bad, "ttl"),
        (
            "POST",
            "/v1/checkouts".into(),
            json!({"template": "default", "ttl_s": 0}),
            wrong,
            "ttl_s",
        ),
        (
            "POST",
            "/v1/checkouts".into(),
            json!({"template": "default", "ttl_s": u64::MAX}),
            wrong,
            "ttl_s",
        ),
        (
            "POST",
            "/v1/checkouts".into(),
            json!({"template": "default", "wait_ms": 600_001}),
            wrong,
            "wait_ms",
        ),
        (
            "POST",
            "/v1/checkouts".into(),
            json!({"template": "default", "env": {"A=": ""}}),
            wrong,
            "env",
        ),
        (
            "POST",
            "/v1/checkouts".into(),
            json!({"template": "default", "labels": {"": ""}}),
            wrong,
            "labels",
        ),
        (
            "POST",
            "/v1/templates".into(),
            json!({"name": "t", "pool": {"pol_size": 1}}),
            bad,
            "pool.pol_size",
        ),
        ("POST", "/v1/keys".into(), json!({"name": "", "role": "use"}), wrong, "name"),
        ("POST", "/v1/keys".into(), json!({"name": "x", "role": "king"}), bad, "role"),
        (
            "POST",
            "/v1/keys".into(),
            json!({"name": "x", "role": "use", "ttl_s": 0}),
            wrong,
            "ttl_s",
        ),
        ("POST", sandbox("/exec"), json!({}), wrong, "command"),
        ("POST", sandbox("/exec"), json!({"command": "a", "argv": ["b"]}), wrong, "argv"),
        ("POST", sandbox("/exec"), json!({"command": "a", "shell": true}), bad, "shell"),
        (
            "POST",
            sandbox("/exec"),
            json!({"command": "true", "timeout_ms": 0}),
            wrong,
            "timeout_ms",
        ),
        (
            "POST",
            sandbox("/exec"),
            json!({"command": "true", "output_bytes": u64::MAX}),
            wrong,
            "output_bytes",
        ),
        ("POST", sandbox("/renew"), json!({"ttl_s": 0}), wrong, "ttl_s"),
        ("POST", sandbox("/files/move"), json!({"from": "", "to": "a"}), wrong, "from"),
        ("POST", sandbox("/files/directory"), json!({"path": "a\u{0}"}), wrong, "path"),
        ("GET", sandbox("/files"), Value::Null, bad, "path"),
        ("GET", sandbox("/files?path="), Value::Null, wrong, "path"),
        ("GET", sandbox("/files?path=%00"), Value::Null, wrong, "path"),
        ("GET", sandbox("/files?path=%ff"), Value::Null, bad, "query"),
        ("PUT", sandbox("/files?path=/workspace/a&mode=999"), Value::Null, bad, "mode"),
        ("GET", sandbox("/files/list?path=/&limit=0"), Value::Null, bad, "limit"),
        ("GET", sandbox("/files/list?path=/&after=!"), Value::Null, bad, "after"),
        ("GET", "/v1/sandboxes?limit=1001".into(), Value::Null, bad, "limit"),
        ("GET", "/v1/sandboxes?limit=x".into(), Value::Null, bad, "limit"),
        ("GET", "/v1/sandboxes?state=dead".into(), Value::Null, bad, "state"),
        ("GET", "/v1/sandboxes?label=x".into(), Value::Null, bad, "label"),
        ("GET", "/v1/sandboxes?after=x".into(), Value::Null, bad, "after"),
        ("GET", "/v1/sandboxes?template=A".into(), Value::Null, bad, "template"),
        ("GET", "/v1/sandboxes?template=a&template=b".into(), Value::Null, bad, "template"),
        ("GET", "/v1/sandboxes?colour=red".into(), Value::Null, bad, "colour"),
        ("GET", "/v1/pools?x".into(), Value::Null, bad, "x"),
        ("DELETE", "/v1/pools/default?force=perhaps".into(), Value::Null, bad, "force"),
        ("GET", "/v1/events?after=-1".into(), Value::Null, bad, "after"),
        ("GET", "/v1/events?limit=0".into(), Value::Null, bad, "limit"),
        ("GET", "/health?verbose".into(), Value::Null, bad, "verbose"),
    ] {
        let answer = stage.call(method, &path, body.clone()).await;
        let problem = answer.problem(code);
        assert_eq!(problem["field"], field, "{method} {path} {body}: {problem}");
    }
    assert_eq!(stage.leased(), 1, "and nothing was handed out");
}

#[tokio::test]
async fn a_sandbox_is_made_within_the_bounds_of_a_checkout() {
    let stage = Stage::start().await;
    for more in [
        json!({"ttl_s": 0}),
        json!({"ttl_s": u64::MAX}),
        json!({"wait_ms": 600_001}),
        json!({"policy": "never"}),
        json!({"env": {"A=": ""}}),
        json!({"labels": {"": ""}}),
        json!({"ttl": 1}),
        json!({"template": "none"}),
    ] {
        let mut body = json!({"template": "default"});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let mut refused = Vec::new();
        for path in ["/v1/checkouts", "/v1/sandboxes"] {
            let answer = stage.call("POST", path, body.clone()).await;
            let mut problem = answer.json();
            // The only thing that is each request's own.
            problem["request_id"].take();
            refused.push((answer.status, problem));
        }
        assert!((400..500).contains(&refused[0].0), "{body}");
        assert_eq!(refused[0], refused[1], "{body}");
    }
}

#[tokio::test]
async fn what_fails_in_a_sandbox_blames_no_field_by_mistake() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let sandbox = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    for (method, path, body) in [
        ("POST", sandbox("/exec"), json!({"argv": ["nosuch"]})),
        ("POST", sandbox("/exec"), json!({"command": "echo '"})),
        ("PUT", sandbox("/files?path=/workspace/.."), Value::Null),
        ("GET", sandbox("/files?path=/workspace/nosuch"), Value::Null),
        ("POST", sandbox("/files/move"), json!({"from": "/workspace/no", "to": "/workspace/a"})),
    ] {
        let answer = stage.call(method, &path, body.clone()).await;
        let problem = answer.json();
        assert!((400..500).contains(&answer.status), "{method} {path} {body}: {problem}");
        let (code, detail) = (text(&problem["code"]), text(&problem["detail"]));
        assert!(!detail.contains(&code) && detail.starts_with("could not "), "{problem}");
        assert_eq!(problem["field"], Value::Null, "{problem}");
    }
}

#[tokio::test]
async fn bodies_are_refused_where_none_is_taken() {
    let stage = Stage::start().await;
    let (lease, id) = stage.checkout().await;
    let chunked = "transfer-encoding: chunked\r\n";
    for (method, path) in [
        ("POST", format!("/v1/sandboxes/{id}/freeze")),
        ("POST", format!("/v1/sandboxes/{id}/thaw")),
        ("POST", "/v1/pools/default/drain".to_owned()),
        ("POST", "/v1/pools/default/resume".to_owned()),
        ("GET", "/v1/pools".to_owned()),
        ("GET", "/health".to_owned()),
        ("DELETE", format!("/v1/checkouts/{lease}")),
    ] {
        let refused = stage.call(method, &path, json!({"force": true})).await;
        let is_post = method == "POST";
        let field = if is_post { "force" } else { "body" };
        assert_eq!(refused.problem("bad_request")["field"], field, "{method} {path}");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{chunked}\r\n",
            stage.admin
        );
        // An object without fields says nothing, and some clients send it with every POST.
        let nothing = stage.raw(format!("{head}2\r\n{{}}\r\n0\r\n\r\n").as_bytes()).await;
        if is_post {
            assert!(nothing.status < 300, "{method} {path}: {nothing:?}");
        } else {
            assert_eq!(nothing.problem("bad_request")["field"], "body", "{method} {path}");
        }
        let empty = stage.raw(format!("{head}0\r\n\r\n").as_bytes()).await;
        assert!(empty.status < 300, "{method} {path}: {empty:?}");
    }
}

#[tokio::test]
async fn an_object_without_fields_is_accepted_by_every_post_that_needs_none() {
    let stage = Stage::start().await;
    let document: Value = serde_json::from_str(&api::openapi::document()).unwrap();
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let post = &methods["post"];
        if post.is_null() || post["requestBody"]["required"] == true || path.contains("{port}") {
            continue;
        }
        let path = path.replace("{template}", "nosuch").replace("{process}", "nosuch");
        let path = path.replace("{id}", UNKNOWN_ID);
        let answer = stage.call("POST", &path, json!({})).await;
        let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let is_of_body =
            ["bad_request", "unsupported_media_type"].iter().any(|c| problem["code"] == *c);
        assert!(!is_of_body, "{path}: {problem}");
        tried += 1;
    }
    assert!(tried > 8, "{tried}");
}

#[tokio::test]
async fn unknown_ids_and_routes_are_refused_by_code() {
    let stage = Stage::start().await;
    for (method, path, code) in [
        ("GET", "/".to_owned(), "not_found"),
        ("GET", "/v1".to_owned(), "not_found"),
        ("GET", "/v1/checkouts/".to_owned(), "not_found"),
        ("GET", "/v2/pools".to_owned(), "not_found"),
        ("GET", "/v1/pools/default/".to_owned(), "not_found"),
        ("GET", "//v1/pools".to_owned(), "not_found"),
        ("GET", "/v1/pools/nosuch".to_owned(), "template_unknown"),
        ("GET", "/v1/pools/..%2fx".to_owned(), "template_unknown"),
        ("GET", "/v1/templates/%ff".to_owned(), "not_found"),
        ("GET", format!("/v1/sandboxes/{UNKNOWN_ID}"), "sandbox_unknown"),
        ("GET", "/v1/sandboxes/7".to_owned(), "sandbox_unknown"),
        ("POST", format!("/v1/sandboxes/{UNKNOWN_ID}/freeze"), "sandbox_unknown"),
        ("DELETE", format!("/v1/checkouts/{UNKNOWN_ID}"), "lease_unknown"),
        ("DELETE", "/v1/checkouts/x".to_owned(), "lease_unknown"),
        ("DELETE", "/v1/keys/x".to_owned(), "not_found"),
        ("GET", "/docs/errors/nosuch".to_owned(), "not_found"),
    ] {
        stage.call(method, &path, Value::Null).await.problem(code);
    }
    for (method, path, allow) in [
        ("PATCH", "/v1/checkouts", "POST,DELETE"),
        ("PUT", "/v1/pools/default", "GET,HEAD,PATCH,DELETE"),
        ("OPTIONS", "/v1/stats", "GET,HEAD"),
        ("BREW", "/v1/stats", "GET,HEAD"),
    ] {
        let answer = stage.call(method, path, Value::Null).await;
        answer.problem("method_not_allowed");
        let mut allowed: Vec<_> = answer.headers["allow"].split(',').map(str::trim).collect();
        let mut expected: Vec<_> = allow.split(',').collect();
        allowed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(allowed, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn bodies_of_the_wrong_form_are_refused() {
    let stage = Stage::start().await;
    let post =
        |headers: &str, body: &[u8]| request(&stage.admin, "POST", "/v1/checkouts", headers, body);
    let json = "content-type: application/json\r\n";
    let deep = format!("{{\"template\":\"default\",\"env\":{}", "[".repeat(100_000));
    for (headers, body, code) in [
        (json, &b"{"[..], "bad_request"),
        (json, b"", "bad_request"),
        (json, b"null", "bad_request"),
        (json, b"\xff\xfe\x00", "bad_request"),
        (json, b"{\"template\":\"default\"}{}", "bad_request"),
        (json, deep.as_bytes(), "bad_request"),
        ("content-type: text/plain\r\n", b"{\"template\":\"default\"}", "unsupported_media_type"),
        (json, &vec![b' '; (1 << 20) + 1], "too_large"),
    ] {
        stage.raw(&post(headers, body)).await.problem(code);
    }
    let untyped = stage.raw(&post("", b"{\"template\":\"default\"}")).await;
    untyped.expect(201);
    // Without a size, and larger than allowed: the answer must arrive though the server stops
    // reading.
    let chunked = format!(
        "POST /v1/checkouts HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         transfer-encoding: chunked\r\n\r\n",
        stage.admin
    );
    let mut bytes = chunked.into_bytes();
    for _ in 0..60 {
        bytes.extend_from_slice(b"10000\r\n");
        bytes.resize(bytes.len() + 0x10000, b' ');
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    stage.raw(&bytes).await.problem("too_large");
    let path = format!("/v1/sandboxes/{UNKNOWN_ID}/files?path=/workspace/a");
    let upload = request(&stage.admin, "PUT", &path, "", &vec![0; 4 << 20]);
    stage.raw(&upload).await.problem("sandbox_unknown");
}

/// The head of a request and a part of its body.
fn begun(key: &str, path: &str, announced: usize, sent: usize) -> Vec<u8> {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-length: {announced}\r\n\r\n"
    )
    .into_bytes();
    bytes.resize(bytes.len() + sent, b' ');
    bytes
}

#[tokio::test]
async fn bodies_take_no_more_memory_than_there_is() {
    let mut plan = Plan::default();
    plan.settings.web.body_memory_bytes = 1 << 20;
    let stage = Stage::with(plan).await;
    let (_, id) = stage.checkout().await;
    let path = format!("/v1/sandboxes/{id}/exec");
    let exec = |command: &str, input_kib: usize| {
        let body = json!({"command": command, "stdin": "x".repeat(input_kib << 10)}).to_string();
        request(&stage.admin, "POST", &path, "", body.as_bytes())
    };
    let mut held = stage.connect().await;
    held.send(exec("sleep 1000", 900)).await;
    stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
    let refused = stage.raw(&exec("true", 400)).await;
    assert_eq!(refused.problem("overloaded")["retryable"], true);
    assert_eq!(refused.headers["retry-after"], "1");
    stage.raw(&exec("true", 10)).await.expect(200);
    stage.checkout().await;
    drop(held);
    stage.until("it is gone", |stage| stage.runtime.alive().tasks == 0).await;
    stage.raw(&exec("true", 400)).await.expect(200);
}

#[tokio::test]
async fn caller_without_access_is_refused_before_the_body_is_read() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let other = stage.key(model::Role::Use).await;
    for (key, id) in [(&stage.admin, UNKNOWN_ID), (&other, id.as_str())] {
        let path = format!("/v1/sandboxes/{id}/exec");
        let answer = stage.raw(&begun(key, &path, 1000, 10)).await;
        answer.problem("sandbox_unknown");
    }
}

#[tokio::test]
async fn hosts_and_origins_are_checked() {
    let mut plan = Plan::default();
    plan.settings.web.hosts = vec!["shoal.example".to_owned()];
    plan.settings.web.cors_origins = vec!["https://app.example".to_owned()];
    let stage = Stage::with(plan).await;
    let get = |headers: &str| format!("GET /health HTTP/1.1\r\n{headers}\r\n").into_bytes();
    for (headers, status) in [
        ("host: localhost:7600\r\n", 200),
        ("host: [::1]:7600\r\n", 200),
        ("host: shoal.example\r\n", 200),
        ("host: evil.example\r\n", 421),
        ("host: \r\n", 421),
        ("", 400),
    ] {
        assert_eq!(stage.raw(&get(headers)).await.status, status, "{headers}");
    }
    stage.raw(&get("host: evil.example\r\n")).await.problem("host_refused");
    let origin = "host: localhost\r\norigin: https://app.example\r\n";
    let allowed = stage.raw(&get(origin)).await;
    assert_eq!(allowed.headers["access-control-allow-origin"], "https://app.example");
    let other = stage.raw(&get("host: localhost\r\norigin: https://evil.example\r\n")).await;
    assert!(!other.headers.contains_key("access-control-allow-origin"));
    let preflight = format!(
        "OPTIONS /v1/checkouts HTTP/1.1\r\n{origin}access-control-request-method: POST\r\n\r\n"
    );
    let preflight = stage.raw(preflight.as_bytes()).await;
    assert_eq!(preflight.status, 204);
    assert!(preflight.headers["access-control-allow-methods"].contains("POST"));
}

#[tokio::test]
async fn rate_limited_key_gets_retry_after() {
    let mut plan = Plan::default();
    plan.settings.web.rate_limit_per_s = Some(2);
    let stage = Stage::with(plan).await;
    let mut refused = 0;
    for _ in 0..10 {
        let answer = stage.get("/v1/stats").await;
        if answer.status == 429 {
            let problem = answer.problem("quota_exceeded");
            assert!(problem["retry_after_ms"].as_u64().unwrap() <= 500, "{problem}");
            assert_eq!(answer.headers["retry-after"], "1");
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let stage = Stage::start().await;
    let with = |id: &str| {
        let headers = format!("x-request-id: {id}\r\n");
        request(&stage.admin, "GET", "/nothing", &headers, b"")
    };
    let given = stage.raw(&with("abc-1")).await;
    assert_eq!(given.problem("not_found")["request_id"], "abc-1");
    let made = stage.raw(&with("a b")).await;
    assert_ne!(made.problem("not_found")["request_id"], "a b");
}

#[tokio::test]
async fn full_pool_answers_with_retry_after() {
    let mut plan = Plan::default();
    plan.engine.templates[0].pool.pool_size = 1;
    plan.engine.templates[0].pool.max_overflow = 0;
    let stage = Stage::with(plan).await;
    let (lease, _) = stage.checkout().await;
    let body = json!({"template": "default", "policy": "fail_fast"});
    let full = stage.call("POST", "/v1/checkouts", body).await;
    assert_eq!(full.problem("capacity_exhausted")["retryable"], true);
    assert!(full.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    let body = json!({"template": "default", "wait_ms": 50});
    stage.call("POST", "/v1/checkouts", body).await.problem("checkout_timeout");
    let waiting = json!({"template": "default", "wait_ms": 10_000});
    let waiting = stage.call("POST", "/v1/checkouts", waiting);
    let returning = async {
        stage.until("waits", |stage| stage.engine.pools()[0].waiters == 1).await;
        stage.call("DELETE", &format!("/v1/checkouts/{lease}"), Value::Null).await.expect(204);
    };
    let (served, ()) = tokio::join!(waiting, returning);
    assert_eq!(served.expect(201)["path"], "blocked");
}
