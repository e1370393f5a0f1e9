//! Sessions as things: made, listed, changed, set aside, and ended.

use model::Role;
use serde_json::{Value, json};

use crate::conversation_client::{outcome, output};
use crate::stage::{Stage, request, text};

#[tokio::test]
async fn session_view_follows_its_life() {
    let stage = Stage::start().await;
    let asked = json!({"template": "default", "metadata": {"user": "ada"}, "env": {"A": "1"},
        "config": {"model": "m"}, "idle_timeout_s": 60, "on_disconnect": "abort"});
    let made = stage.call("POST", "/v1/sessions", asked).await;
    assert!(made.headers["server-timing"].starts_with("create;dur="));
    let location = made.headers["location"].clone();
    let session = made.expect(201);
    let id = text(&session["id"]);
    assert_eq!(location, format!("/v1/sessions/{id}"));
    for (field, expected) in [
        ("status", json!("active")),
        ("sandbox_status", json!("connected")),
        ("generation", json!(1)),
        ("state_lost", json!(false)),
        ("turn", Value::Null),
        ("queued_turns", json!(0)),
        ("parent_id", Value::Null),
        ("metadata", json!({"user": "ada"})),
        ("config", json!({"model": "m"})),
        ("idle_timeout_s", json!(60)),
        ("on_disconnect", json!("abort")),
        ("template", json!("default")),
    ] {
        assert_eq!(session[field], expected, "{field}");
    }
    assert!(session["sandbox_id"].is_string());
    assert_eq!(stage.shown(&id).await["id"], session["id"]);
    assert_eq!(output(&stage.talk(&id, "printenv A").await), "1\n");

    let change = json!({"metadata": {"user": "eve"}, "config": null});
    let path = format!("/v1/sessions/{id}");
    let changed = stage.call("PATCH", &path, change).await.expect(200);
    assert_eq!((&changed["metadata"], &changed["config"]), (&json!({"user": "eve"}), &Value::Null));
    let kept = stage.call("PATCH", &path, json!({})).await.expect(200);
    assert_eq!(kept["metadata"], json!({"user": "eve"}));
    let wrong = stage.call("PATCH", &path, json!({"config": [1]})).await;
    assert_eq!(wrong.problem("invalid_argument")["field"], "config");

    assert_eq!(stage.call("DELETE", &path, Value::Null).await.status, 204);
    assert_eq!(stage.call("DELETE", &path, Value::Null).await.status, 204, "and again");
    let over = stage.act(&id, "turns", json!({"input": "echo"})).await;
    over.problem("session_ended");
    assert!(!stage.happened(&id).await.is_empty(), "what happened to it is still told");
    let history = stage.get(&format!("{path}/turns")).await.expect(200);
    assert_eq!(history["turns"].as_array().unwrap().len(), 1, "and what was said");
}

#[tokio::test]
async fn sessions_are_listed_newest_first_in_pages_and_by_their_words() {
    let stage = Stage::start().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let user = if n % 2 == 0 { "ada" } else { "eve" };
        let asked = json!({"template": "default", "metadata": {"user": user, "n": n.to_string()}});
        ids.push(stage.session_with(asked).await);
    }
    ids.reverse();
    stage.act(&ids[0], "stop", Value::Null).await.expect(200);
    let listed = async |query: &str| {
        let page = stage.get(&format!("/v1/sessions{query}")).await.expect(200);
        let sessions = page["sessions"].as_array().unwrap().clone();
        let listed: Vec<_> = sessions.iter().map(|one| text(&one["id"])).collect();
        (listed, page["next"].clone())
    };
    assert_eq!(listed("").await, (ids.clone(), Value::Null));
    let (first, next) = listed("?limit=2").await;
    assert_eq!(first, ids[..2]);
    let (second, _) = listed(&format!("?limit=2&after={}", text(&next))).await;
    assert_eq!(second, ids[2..4]);
    for query in ["?metadata=user%3Deve", "?metadata.user=eve", "?metadata.user=eve&limit=10"] {
        assert_eq!(listed(query).await.0, [ids[1].clone(), ids[3].clone()], "{query}");
    }
    assert_eq!(listed("?metadata.user=eve&metadata.n=3").await.0, [ids[1].clone()]);
    assert_eq!(listed("?status=stopped").await.0, [ids[0].clone()]);
    assert_eq!(listed("?template=default&status=active").await.0, ids[1..]);
    assert_eq!(listed("?template=other").await.0, [""; 0]);
    for (query, field) in [
        ("after=01980000-0000-7000-8000-000000000000", "after"),
        ("status=sleepy", "status"),
        ("metadata=x", "metadata"),
        ("limit=0", "limit"),
        ("x=1", "x"),
    ] {
        let refused = stage.get(&format!("/v1/sessions?{query}")).await;
        assert_eq!(refused.problem("bad_request")["field"], field, "{query}");
    }
}

#[tokio::test]
async fn session_is_paused_resumed_stopped_and_forked() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    stage.talk(&id, "echo one").await;
    let paused = stage.act(&id, "pause", Value::Null).await.expect(200);
    assert_eq!(paused["status"], "paused");
    assert_eq!(outcome(&stage.talk(&id, "echo two").await), "completed", "a message resumes it");
    assert_eq!(stage.shown(&id).await["status"], "active");
    let stopped = stage.act(&id, "stop", Value::Null).await.expect(200);
    assert_eq!(
        (&stopped["status"], &stopped["sandbox_status"]),
        (&"stopped".into(), &"disconnected".into())
    );
    assert_eq!(stopped["sandbox_id"], Value::Null);
    stage.act(&id, "turns", json!({"input": "echo"})).await.problem("session_stopped");
    let resumed = stage.act(&id, "resume", Value::Null).await;
    assert!(resumed.headers["server-timing"].starts_with("resume;dur="));
    assert_eq!(resumed.expect(200)["sandbox_status"], "connected");
    let fork = stage.act(&id, "fork", Value::Null).await;
    let location = fork.headers.get("location").cloned();
    let fork = fork.expect(201);
    let forked = text(&fork["id"]);
    assert_eq!(
        (location, &fork["parent_id"]),
        (Some(format!("/v1/sessions/{forked}")), &json!(id))
    );
    let history = stage.get(&format!("/v1/sessions/{forked}/turns")).await.expect(200);
    let said: Vec<_> =
        history["turns"].as_array().unwrap().iter().map(|turn| text(&turn["input"])).collect();
    assert_eq!(said, ["echo one", "echo two"]);
    let changes: Vec<_> = stage
        .told(&id, "session_changed")
        .await
        .iter()
        .map(|event| text(&event["change"]))
        .collect();
    assert_eq!(changes, ["created", "paused", "resumed", "stopped", "resumed"]);
}

#[tokio::test]
async fn programs_and_files_of_a_session_are_those_of_its_sandbox() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    let at = format!("/v1/sessions/{id}");
    let write =
        request(&stage.admin, "PUT", &format!("{at}/files?path=/workspace/a"), "", b"hello");
    stage.raw(&write).await.expect(200);
    assert_eq!(output(&stage.talk(&id, "cat a").await), "hello");
    let ran = stage.act(&id, "exec", json!({"command": "cat a"})).await.expect(200);
    assert_eq!(ran["stdout"], "hello");
    let read = stage.get(&format!("{at}/files?path=/workspace/a")).await;
    assert_eq!((read.status, &*read.body), (200, &b"hello"[..]));
    let sandbox = text(&stage.shown(&id).await["sandbox_id"]);
    let same = stage.get(&format!("/v1/sandboxes/{sandbox}/files?path=/workspace/a")).await;
    assert_eq!(same.body, b"hello");
    let listed = stage.get(&format!("{at}/files/list?path=/workspace")).await.expect(200);
    assert_eq!(listed["entries"][0]["name"], "a");
    let archive = stage.get(&format!("{at}/archive?path=/workspace")).await;
    assert_eq!((archive.status, &*archive.headers["content-type"]), (200, "application/x-tar"));
    let gone = stage.call("DELETE", &format!("{at}/files?path=/workspace/a"), Value::Null).await;
    assert_eq!(gone.status, 204);
    stage.get(&format!("{at}/files?path=/workspace/a")).await.problem("path_not_found");
    let unknown = "00000000-0000-7000-8000-000000000009";
    let refused = stage.act(unknown, "exec", json!({"command": "true"})).await;
    refused.problem("session_unknown");
}

#[tokio::test]
async fn a_session_begins_with_the_files_it_is_given() {
    let stage = Stage::start().await;
    let files = json!([
        {"path": "a.txt", "content": "grün"},
        {"path": "/workspace/bin/run", "content_base64": "//4=", "mode": "0755"},
        {"path": "empty"},
    ]);
    let id = stage.session_with(json!({"template": "default", "files": files})).await;
    assert_eq!(output(&stage.talk(&id, "cat a.txt").await), "grün");
    let at = format!("/v1/sessions/{id}/files");
    assert_eq!(stage.get(&format!("{at}?path=/workspace/bin/run")).await.body, [0xff, 0xfe]);
    let shown = stage.get(&format!("{at}/stat?path=/workspace/bin/run")).await.expect(200);
    assert_eq!(shown["mode"], "0755");
    assert_eq!(stage.get(&format!("{at}?path=/workspace/empty")).await.body, b"");
    assert!(stage.shown(&id).await["workspace"]["place"].is_string());
    for (file, field) in [
        (json!({"path": "a", "content": "x", "content_base64": "eA=="}), "files[0].content"),
        (json!({"path": "a", "mode": "9"}), "files[0].mode"),
    ] {
        let asked = json!({"template": "default", "files": [file]});
        let refused = stage.call("POST", "/v1/sessions", asked).await;
        assert_eq!(refused.problem("invalid_argument")["field"], field);
    }
    for path in ["../a", "/etc/passwd", "", "a/../../b"] {
        let asked = json!({"template": "default", "files": [{"path": path}]});
        let refused = stage.call("POST", "/v1/sessions", asked).await;
        refused.problem("invalid_argument");
    }
}

#[tokio::test]
async fn the_same_request_makes_one_session_also_over_a_restart() {
    let stage = Stage::start().await;
    let body = json!({"template": "default"}).to_string();
    let once = |stage: &Stage, body: &str| {
        let headers = "idempotency-key: k1\r\n";
        request(&stage.admin, "POST", "/v1/sessions", headers, body.as_bytes())
    };
    let first = stage.raw(&once(&stage, &body)).await.expect(201);
    let again = stage.raw(&once(&stage, &body)).await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.expect(201)["id"], first["id"]);
    let other = json!({"template": "default", "metadata": {"a": "b"}}).to_string();
    stage.raw(&once(&stage, &other)).await.problem("idempotency_conflict");
    let stage = stage.kill_and_start().await;
    let later = stage.raw(&once(&stage, &body)).await.expect(201);
    assert_eq!(later["id"], first["id"], "it outlives the server, and so does its name");
    let listed = stage.get("/v1/sessions").await.expect(200);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn session_deadline_is_shown_changed_removed_and_met() {
    let stage = Stage::start().await;
    let asked = json!({"template": "default", "deadline": {"after_s": 900, "action": "end"}});
    let id = stage.session_with(asked).await;
    let path = format!("/v1/sessions/{id}");
    let shown = stage.shown(&id).await["deadline"].clone();
    assert_eq!((&shown["action"], &shown["at"]), (&json!("end"), &shown["due_at"]));
    let idle = json!({"deadline": {"idle_s": 60, "action": "pause"}});
    let changed = stage.call("PATCH", &path, idle).await.expect(200)["deadline"].clone();
    assert_eq!((&changed["idle_s"], &changed["at"]), (&json!(60), &Value::Null));
    let kept = stage.call("PATCH", &path, json!({"metadata": {}})).await.expect(200);
    assert_eq!(kept["deadline"]["idle_s"], 60);
    let removed = stage.call("PATCH", &path, json!({"deadline": null})).await.expect(200);
    assert_eq!(removed["deadline"], Value::Null);
    for (bad, code) in [
        (json!({"action": "end"}), "invalid_argument"),
        (json!({"idle_s": 0, "action": "end"}), "invalid_argument"),
        (json!({"at": "2001-01-01T00:00:00Z", "action": "end"}), "invalid_argument"),
        (json!({"idle_s": 5, "action": "hope"}), "bad_request"),
        (json!({"idle_s": 5}), "bad_request"),
    ] {
        stage.call("PATCH", &path, json!({"deadline": bad})).await.problem(code);
    }
    let soon = json!({"deadline": {"after_s": 1, "action": "end"}});
    stage.call("PATCH", &path, soon).await.expect(200);
    while stage.get(&path).await.status == 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let over = stage.act(&id, "turns", json!({"input": "echo"})).await;
    let over = over.problem("session_ended");
    assert!(over["detail"].as_str().unwrap().contains("deadline"), "{over}");
}

#[tokio::test]
async fn session_requests_are_refused_by_field() {
    let stage = Stage::start().await;
    for (body, code, field) in [
        (json!({"template": "default", "idle_timeout_s": 0}), "invalid_argument", "idle_timeout_s"),
        (json!({"template": "default", "config": 3}), "bad_request", "config"),
        (json!({"template": "default", "labels": {}}), "bad_request", "labels"),
        (json!({"template": "default", "env": {"A=": "b"}}), "invalid_argument", "env"),
    ] {
        let refused = stage.call("POST", "/v1/sessions", body.clone()).await;
        assert_eq!(refused.problem(code)["field"], field, "{body}");
    }
    stage
        .call("POST", "/v1/sessions", json!({"template": "none"}))
        .await
        .problem("template_unknown");
    let id = "0192f3a0-0000-7000-8000-000000000001";
    let named = json!({"template": "default", "id": id});
    assert_eq!(stage.session_with(named.clone()).await, id);
    stage.call("POST", "/v1/sessions", named).await.problem("id_conflict");
    for (body, code, field) in [
        (json!({"input": 3}), "invalid_argument", "input"),
        (json!({"input": ["a"]}), "invalid_argument", "input"),
        (json!({"text": "a"}), "bad_request", "text"),
        (json!({"input": "a", "when_busy": "hope"}), "bad_request", "when_busy"),
    ] {
        let refused = stage.act(id, "turns", body.clone()).await;
        assert_eq!(refused.problem(code)["field"], field, "{body}");
    }
    let reader = stage.key(Role::Read).await;
    let refused =
        stage.call_as(&reader, "POST", "/v1/sessions", json!({"template": "default"})).await;
    refused.problem("forbidden");
}

#[tokio::test]
async fn sessions_are_counted_by_status_and_their_sandboxes_by_state() {
    let stage = Stage::start().await;
    let (a, b) = (stage.session().await, stage.session().await);
    stage.talk(&a, "echo hi").await;
    stage.act(&b, "stop", Value::Null).await.expect(200);
    stage.act(&b, "resume", Value::Null).await.expect(200);
    stage.act(&b, "stop", Value::Null).await.expect(200);
    let health = stage.get("/health").await.expect(200);
    let stats = stage.get("/v1/stats").await.expect(200);
    assert_eq!(health["pool"], stats["pool"]);
    assert_eq!(
        (&stats["sessions"]["active"], &stats["sessions"]["stopped"]),
        (&1.into(), &1.into())
    );
    let listed = stage.get("/v1/sandboxes").await.expect(200);
    let listed = listed["sandboxes"].as_array().unwrap().clone();
    let counted = |state: &str| listed.iter().filter(|one| one["state"] == state).count();
    assert_eq!(health["pool"]["waiting"], counted("waiting"), "{health} {listed:?}");
    assert_eq!(health["pool"]["total"], listed.len(), "{health} {listed:?}");
    let page = String::from_utf8(stage.get("/metrics").await.body).unwrap();
    for line in [
        "shoal_sessions{status=\"active\"} 1",
        "shoal_sessions{status=\"stopped\"} 1",
        "shoal_session_resumes_total{hit=\"warm\"} 0",
        "shoal_session_resumes_total{hit=\"cold\"} 1",
        "shoal_turn_seconds_count{outcome=\"completed\"} 1",
        "shoal_turn_first_event_seconds_count 1",
    ] {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
}

#[tokio::test]
async fn session_events_are_replayed_after_a_reconnect() {
    let stage = Stage::start().await;
    let (id, other) = (stage.session().await, stage.session().await);
    stage.talk(&id, "echo hi").await;
    stage.talk(&other, "echo hi").await;
    let kept = stage.happened(&id).await;
    assert!(kept.iter().all(|event| event["session"] == json!(id)), "{kept:?}");
    let seen = kept[0]["id"].as_u64().unwrap();
    let path = format!("/v1/sessions/{id}/events");
    let header = format!("last-event-id: {seen}\r\n");
    let mut stream = stage.ask_for_stream("GET", &path, &header, &Value::Null).await;
    assert_eq!(stream.head().await.status, 200);
    for expected in &kept[1..] {
        let (number, name, data) = stream.event().await.unwrap();
        assert_eq!(
            (json!(number), &json!(name), &data),
            (expected["id"].clone(), &expected["type"], expected)
        );
    }
    stage.talk(&other, "echo not for you").await;
    stage.act(&id, "stop", Value::Null).await.expect(200);
    let (_, name, data) = stream.event().await.unwrap();
    assert_eq!(data["session"], json!(id), "{name} {data}");
}

#[tokio::test]
async fn logs_of_a_session_are_there_for_who_may_know_of_it() {
    let stage = Stage::start().await;
    let id = stage.session().await;
    stage.talk(&id, "echo this belongs to a turn").await;
    let path = format!("/v1/sessions/{id}/logs");
    assert_eq!(stage.get(&path).await.expect(200), json!({"logs": []}));
    let mut stream = stage.ask_for_stream("GET", &path, "", &Value::Null).await;
    let head = stream.head().await;
    assert_eq!((head.status, &*head.headers["content-type"]), (200, "text/event-stream"));
    assert!(stream.chunk().await.unwrap().starts_with(b"retry: "));
    stage.get(&format!("{path}?after=x")).await.problem("bad_request");
}
