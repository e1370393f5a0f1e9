//! Processes: programs that outlive the request that started them.

use model::Role;
use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Stage, request, text};

async fn start(stage: &Stage, id: &str, body: Value) -> Value {
    stage.call("POST", &format!("/v1/sandboxes/{id}/processes"), body).await.expect(201)
}

fn one(id: &str, process: &Value) -> String {
    format!("/v1/sandboxes/{id}/processes/{}", text(&process["id"]))
}

async fn accepting(stage: &Stage, path: &str, accept: &str) -> Answer {
    stage.raw(&request(&stage.admin, "GET", path, &format!("accept: {accept}\r\n"), b"")).await
}

#[tokio::test]
async fn a_process_is_started_found_and_ended() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made =
        start(&stage, &id, json!({"command": "sleep 1000", "name": "dev", "timeout_s": 60})).await;
    assert_eq!(
        (&made["status"], &made["name"], &made["timeout_s"]),
        (&"running".into(), &"dev".into(), &60.into())
    );
    assert_eq!(
        (&made["number"], &made["exit_code"], &made["ended_at"]),
        (&1.into(), &Value::Null, &Value::Null)
    );
    for name in [text(&made["id"]), made["pid"].to_string(), "dev".to_owned()] {
        let found = stage.get(&format!("/v1/sandboxes/{id}/processes/{name}")).await.expect(200);
        assert_eq!(found["id"], made["id"], "{name}");
    }
    let taken = json!({"command": "true", "name": "dev"});
    stage
        .call("POST", &format!("/v1/sandboxes/{id}/processes"), taken)
        .await
        .problem("process_name_taken");
    let waited = stage.get(&format!("{}/wait?timeout_ms=20", one(&id, &made))).await.expect(200);
    assert_eq!(waited["status"], "running", "the end of the wait does not end the process");
    let killed =
        stage.call("POST", &format!("{}/kill", one(&id, &made)), Value::Null).await.expect(200);
    assert_eq!((&killed["status"], &killed["reason"]), (&"killed".into(), &"killed".into()));
    assert_eq!((&killed["signal"], &killed["exit_code"]), (&"SIGKILL".into(), &137.into()));
    let late = stage.call("POST", &format!("{}/stdin", one(&id, &made)), json!("late")).await;
    assert!(late.status == 409, "{}", late.status);
    let stopped = start(&stage, &id, json!({"argv": ["sleep", "1000"]})).await;
    let path = format!("{}?grace_ms=50", one(&id, &stopped));
    let stopped = stage.call("DELETE", &path, Value::Null).await.expect(200);
    assert_eq!((&stopped["status"], &stopped["reason"]), (&"stopped".into(), &"stopped".into()));
    stage.get(&format!("/v1/sandboxes/{id}/processes/nosuch")).await.problem("process_unknown");
}

#[tokio::test]
async fn a_process_that_is_waited_for_has_its_output() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let body = json!({"command": "echo grün; exit 3", "wait": true});
    let made = start(&stage, &id, body).await;
    assert_eq!((&made["status"], &made["exit_code"]), (&"failed".into(), &3.into()));
    assert_eq!(
        (&made["output"]["stdout"], &made["output"]["stderr"]),
        (&"grün\n".into(), &"".into())
    );
    assert_eq!(made["output"]["stdout_truncated"], false);
    let body = json!({"command": "sleep 1000", "wait": true, "wait_timeout_ms": 30});
    assert_eq!(start(&stage, &id, body).await["status"], "running");
    let body = json!({"command": "cat", "stdin_base64": "//4=", "wait": true});
    let made = start(&stage, &id, body).await;
    assert_eq!(
        (&made["output"]["stdout"], &made["output"]["stdout_base64"]),
        (&Value::Null, &"//4=".into())
    );
}

#[tokio::test]
async fn process_pages_begin_with_the_latest() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for n in 0..5 {
        start(&stage, &id, json!({"command": "true", "name": format!("p{n}"), "wait": true})).await;
    }
    start(&stage, &id, json!({"command": "sleep 1000", "name": "last"})).await;
    let names = |page: &Value| -> Vec<String> {
        page["processes"].as_array().unwrap().iter().map(|one| text(&one["name"])).collect()
    };
    let all = format!("/v1/sandboxes/{id}/processes");
    let page = stage.get(&format!("{all}?limit=4")).await.expect(200);
    assert_eq!(names(&page), ["last", "p4", "p3", "p2"]);
    let rest = stage.get(&format!("{all}?limit=4&before={}", page["next"])).await.expect(200);
    assert_eq!((names(&rest), rest.get("next")), (vec!["p1".to_owned(), "p0".to_owned()], None));
    let running = stage.get(&format!("{all}?running")).await.expect(200);
    assert_eq!(names(&running), ["last"]);
}

#[tokio::test]
async fn logs_are_read_by_part_as_bytes_and_as_a_stream() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made = start(&stage, &id, json!({"command": "echo one; echo two", "wait": true})).await;
    let logs = format!("{}/logs", one(&id, &made));
    let page = stage.get(&logs).await.expect(200);
    let joined: String =
        page["pieces"].as_array().unwrap().iter().map(|piece| text(&piece["data"])).collect();
    assert_eq!(
        (joined.as_str(), &page["next_offset"], &page["over"]),
        ("one\ntwo\n", &8.into(), &true.into())
    );
    let page = stage.get(&format!("{logs}?offset=2&max_bytes=3")).await.expect(200);
    assert_eq!(
        (&page["pieces"][0]["offset"], &page["next_offset"], &page["more"]),
        (&2.into(), &5.into(), &true.into())
    );
    let none = stage.get(&format!("{logs}?stream=stderr")).await.expect(200);
    assert_eq!(none["pieces"], json!([]));
    for accept in ["application/octet-stream", "text/plain"] {
        let raw = accepting(&stage, &format!("{logs}?offset=4"), accept).await;
        assert_eq!((raw.status, raw.body.as_slice()), (200, &b"two\n"[..]));
    }
    let lines = accepting(&stage, &logs, "application/x-ndjson").await;
    let lines = String::from_utf8(lines.body).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["process"]["exit_code"]), (&"exit".into(), &0.into()));
    let resumed = request(
        &stage.admin,
        "GET",
        &logs,
        "accept: text/event-stream\r\nlast-event-id: 4\r\n",
        b"",
    );
    let mut connection = stage.connect().await;
    connection.send(resumed).await;
    connection.head().await;
    let (at, name, data) = connection.event().await.unwrap();
    assert_eq!((at, name.as_str(), &data["data"]), (Some(8), "output", &"two\n".into()));
    assert_eq!(connection.event().await.unwrap().1, "exit");
    assert_eq!(connection.event().await, None);
}

#[tokio::test]
async fn a_log_is_followed_while_its_process_is_fed() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made = start(&stage, &id, json!({"command": "cat", "stdin_open": true})).await;
    let path = one(&id, &made);
    let mut follow = stage.connect().await;
    let asked =
        request(&stage.admin, "GET", &format!("{path}/logs"), "accept: text/event-stream\r\n", b"");
    follow.send(asked).await;
    assert_eq!(follow.head().await.status, 200);
    for word in ["gr", "ün"] {
        let sent = request(&stage.admin, "POST", &format!("{path}/stdin"), "", word.as_bytes());
        assert_eq!(stage.raw(&sent).await.status, 204);
        let (_, name, data) = follow.event().await.unwrap();
        assert_eq!((name.as_str(), &data["data"]), ("output", &word.into()));
    }
    let closed = stage.call("DELETE", &format!("{path}/stdin"), Value::Null).await;
    assert_eq!(closed.status, 204);
    let (_, name, data) = follow.event().await.unwrap();
    assert_eq!((name.as_str(), &data["process"]["status"]), ("exit", &"completed".into()));
    let late = request(&stage.admin, "POST", &format!("{path}/stdin"), "", b"x");
    stage.raw(&late).await.problem("process_over");
}

#[tokio::test]
async fn a_log_that_is_only_observed_thaws_nothing_however_it_is_followed() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made = start(&stage, &id, json!({"command": "cat", "stdin_open": true})).await;
    let logs = format!("{}/logs", one(&id, &made));
    let sandbox = format!("/v1/sandboxes/{id}");
    for (query, accept) in [
        ("?observe=true", "text/event-stream"),
        ("?observe=true", "application/x-ndjson"),
        ("?observe=true&follow=true", "text/plain"),
        ("", "text/event-stream"),
    ] {
        stage.call("POST", &format!("{sandbox}/freeze"), Value::Null).await.expect(200);
        let mut follow = stage.connect().await;
        let (path, headers) = (format!("{logs}{query}"), format!("accept: {accept}\r\n"));
        follow.send(request(&stage.admin, "GET", &path, &headers, b"")).await;
        assert_eq!(follow.head().await.status, 200);
        let view = stage.get(&sandbox).await.expect(200);
        assert_eq!(view["frozen"], !query.is_empty(), "{query} {accept}");
    }
}

#[tokio::test]
async fn process_start_waits_for_its_own_ports_only() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made =
        start(&stage, &id, json!({"command": "listen 3000", "wait_for_ports": [3000]})).await;
    assert_eq!((&made["status"], &made["ports_open"]), (&"running".into(), &true.into()));
    let body = json!({"command": "true", "name": "second", "wait_for_ports": [3000]});
    let path = format!("/v1/sandboxes/{id}/processes");
    let problem = stage.call("POST", &path, body).await.problem("port_taken");
    assert_eq!(problem["field"], "wait_for_ports");
    stage.get(&format!("{path}/second")).await.problem("process_unknown");
    let made = start(&stage, &id, json!({"command": "exit 4", "wait_for_ports": [3001]})).await;
    assert_eq!((&made["exit_code"], &made["ports_open"]), (&4.into(), &false.into()));
}

#[tokio::test]
async fn a_start_that_is_sent_twice_starts_once() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let path = format!("/v1/sandboxes/{id}/processes");
    let body = json!({"command": "echo hi", "wait": true}).to_string();
    let twice = request(&stage.admin, "POST", &path, "idempotency-key: k1\r\n", body.as_bytes());
    let (first, second) = (stage.raw(&twice).await, stage.raw(&twice).await);
    assert_eq!(second.headers["idempotency-replayed"], "true");
    assert_eq!(first.expect(201)["id"], second.expect(201)["id"]);
    assert_eq!(second.json()["output"]["stdout"], "hi\n");
    let listed = stage.get(&path).await.expect(200);
    assert_eq!(listed["processes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn keep_alive_is_shown_and_ended() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let status = format!("/v1/sandboxes/{id}/status");
    let quiet = stage.get(&status).await.expect(200);
    assert_eq!((&quiet["state"], &quiet["scheduled_stop_at"]), (&"auto".into(), &Value::Null));
    start(&stage, &id, json!({"command": "sleep 1000", "name": "dev", "keep_alive": true})).await;
    let awake = stage.get(&status).await.expect(200);
    assert_eq!(
        (&awake["state"], &awake["keep_alive_processes"][0]["name"]),
        (&"awake".into(), &"dev".into())
    );
    let stop = format!("/v1/sandboxes/{id}/stop");
    let later = stage.call("POST", &stop, json!({"after_s": 300})).await.expect(200);
    assert!(text(&later["scheduled_stop_at"]).ends_with('Z'), "{later}");
    let now = stage.call("POST", &stop, Value::Null).await.expect(200);
    assert_eq!((&now["state"], &now["scheduled_stop_at"]), (&"auto".into(), &Value::Null));
    let running = stage.get(&format!("/v1/sandboxes/{id}/processes/dev")).await.expect(200);
    assert_eq!((&running["status"], &running["keep_alive"]), (&"running".into(), &false.into()));
    let wrong =
        stage.call("POST", &stop, json!({"after_s": u64::MAX})).await.problem("invalid_argument");
    assert_eq!(wrong["field"], "after_s");
}

#[tokio::test]
async fn bad_input_names_its_field_and_others_see_nothing() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let made = start(&stage, &id, json!({"command": "sleep 1000", "name": "dev"})).await;
    let all = format!("/v1/sandboxes/{id}/processes");
    let path = one(&id, &made);
    for (method, path, body, code, field) in [
        ("POST", all.clone(), json!({}), "invalid_argument", "command"),
        (
            "POST",
            all.clone(),
            json!({"command": "a", "keepAlive": true}),
            "bad_request",
            "keepAlive",
        ),
        ("POST", all.clone(), json!({"command": "a", "name": "1"}), "invalid_argument", "name"),
        ("POST", all.clone(), json!({"command": "a", "name": "a/b"}), "invalid_argument", "name"),
        (
            "POST",
            all.clone(),
            json!({"command": "a", "terminal": {"rows": 0, "columns": 1}}),
            "invalid_argument",
            "terminal",
        ),
        ("GET", format!("{all}?limit=1001"), Value::Null, "bad_request", "limit"),
        ("GET", format!("{path}/logs?stream=x"), Value::Null, "bad_request", "stream"),
        ("GET", format!("{path}/logs?max_bytes=0"), Value::Null, "bad_request", "max_bytes"),
        ("GET", format!("{path}/wait?timeout_ms=0"), Value::Null, "bad_request", "timeout_ms"),
        ("DELETE", format!("{path}?grace_ms=x"), Value::Null, "bad_request", "grace_ms"),
        (
            "POST",
            format!("{path}/signal"),
            json!({"signal": "SIGNOPE"}),
            "invalid_argument",
            "signal",
        ),
        (
            "POST",
            format!("{path}/resize"),
            json!({"rows": 0, "columns": 1}),
            "invalid_argument",
            "rows",
        ),
    ] {
        let problem = stage.call(method, &path, body.clone()).await.problem(code);
        assert_eq!(problem["field"], field, "{method} {path} {body}: {problem}");
    }
    let other = stage.key(Role::Use).await;
    for (method, path) in [
        ("GET", all.clone()),
        ("GET", path.clone()),
        ("GET", format!("{path}/logs")),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/kill")),
        ("GET", format!("/v1/sandboxes/{id}/status")),
        ("GET", format!("/v1/sandboxes/{id}/ports")),
        ("GET", format!("/v1/sandboxes/{id}/ports/80/x")),
    ] {
        stage.call_as(&other, method, &path, Value::Null).await.problem("sandbox_unknown");
    }
    let running = stage.get(&path).await.expect(200);
    assert_eq!(running["status"], "running");
}
