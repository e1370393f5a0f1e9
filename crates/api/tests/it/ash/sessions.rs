//! Sessions, messages, history, programs, files and keys, as a client of Ash uses them.

use engine::Caller;
use model::Role;
use model::template::{Harness, HarnessProgram};
use serde_json::{Value, json};

use super::{
    begin, call, completed, deploy, get, names, said, send, session, stage, stage_with, stream,
};
use crate::stage::{Plan, Stage, request, text};

#[tokio::test]
async fn a_message_is_streamed_as_ash_does_it() {
    let stage = stage().await;
    let id = session(&stage, json!({"model": "m", "allowedTools": ["Bash"]})).await;
    let told = send(&stage, &id, "say hi").await;
    let expected = ["session_start", "message", "turn_complete", "message", "done"];
    assert_eq!(names(&told), expected);
    assert_eq!(told[0].2["sessionId"], id.as_str());
    assert_eq!(told[0].2["version"], "0.2.0");
    assert_eq!(told[1].2, json!({"text": "hi"}));
    assert_eq!(told[4].2, json!({"sessionId": id}));
    assert!(told[0].0.is_none() && told[2].0.is_none(), "only the last of a piece has its id");
    assert!(told[1].0 < told[3].0 && told[3].0 < told[4].0, "{told:?}");

    let mut connection = begin(
        &stage,
        &id,
        &json!({
            "content": "config", "includePartialMessages": true, "maxTurns": 2, "model": "other",
        }),
    )
    .await;
    let told = stream(&mut connection).await;
    let config = &said(&told)[0]["config"];
    assert_eq!(config["prompt"], "config");
    assert_eq!((&config["model"], &config["maxTurns"]), (&json!("other"), &json!(2)));
    assert_eq!(config["includePartialMessages"], true);
    assert_eq!(config["allowedTools"], json!(["Bash"]));
    let blocks = json!([{"type": "text", "text": "config"}]);
    let mut connection = begin(&stage, &id, &json!({"content": blocks})).await;
    let told = stream(&mut connection).await;
    completed(&told);
    let path = format!("/api/sessions/{id}/messages?limit=1000");
    let past = get(&stage, &path).await.expect(200)["messages"].as_array().unwrap().clone();
    let asked = past.iter().rev().find(|message| message["role"] == "user").unwrap();
    let asked: Value = serde_json::from_str(asked["content"].as_str().unwrap()).unwrap();
    assert_eq!(asked["content"], blocks);
    let path = format!("/api/sessions/{id}/config");
    call(&stage, "PATCH", &path, json!({"model": "third"})).await.expect(200);
    let told = send(&stage, &id, "config").await;
    let config = &said(&told)[0]["config"];
    assert_eq!((&config["model"], &config["allowedTools"]), (&json!("third"), &json!(["Bash"])));
}

#[tokio::test]
async fn the_life_of_a_session_has_the_words_of_ash() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let act = |what: &'static str| {
        let path = format!("/api/sessions/{id}/{what}");
        let stage = &stage;
        async move { call(stage, "POST", &path, Value::Null).await }
    };
    let shown = get(&stage, &format!("/api/sessions/{id}")).await.expect(200)["session"].clone();
    assert_eq!((&shown["status"], &shown["agentName"]), (&json!("active"), &json!("tester")));
    assert_eq!((&shown["runnerId"], &shown["parentSessionId"]), (&Value::Null, &Value::Null));
    assert_eq!(act("resume").await.expect(200)["session"]["status"], "active");
    assert_eq!(act("pause").await.expect(200)["session"]["status"], "paused");
    let refused = act("pause").await.expect(400);
    let text = "Cannot pause session with status \"paused\"";
    assert_eq!(refused, json!({"error": text, "statusCode": 400}));
    assert_eq!(act("stop").await.status, 400);
    assert_eq!(act("resume").await.expect(200)["session"]["status"], "active");
    completed(&send(&stage, &id, "say hi").await);
    assert_eq!(act("stop").await.expect(200)["session"]["status"], "stopped");
    let messages = format!("/api/sessions/{id}/messages");
    let refused = call(&stage, "POST", &messages, json!({"content": "hi"})).await.expect(400);
    assert_eq!(refused, json!({"error": "Session is stopped", "statusCode": 400}));
    let one = format!("/api/sessions/{id}");
    for _ in 0..2 {
        let ended = call(&stage, "DELETE", &one, Value::Null).await.expect(200);
        assert_eq!(ended["session"]["status"], "ended");
    }
    assert_eq!(get(&stage, &one).await.expect(200)["session"]["status"], "ended");
    let refused = act("resume").await.expect(410);
    let text = "Session has ended — create a new session";
    assert_eq!(refused, json!({"error": text, "statusCode": 410}));
    let refused = call(&stage, "POST", &messages, json!({"content": "hi"})).await.expect(400);
    assert_eq!(refused, json!({"error": "Session is ended", "statusCode": 400}));
    let exec = call(&stage, "POST", &format!("{one}/exec"), json!({"command": "true"})).await;
    assert_eq!(exec.expect(400)["error"], "Session is ended");
    // What was said is kept.
    let past = get(&stage, &messages).await.expect(200);
    assert_eq!(past["messages"][0]["role"], "user");
}

/// Whether a session is shown as ended, and refuses what one that Ash ended refuses.
async fn assert_ended(stage: &Stage, id: &str) {
    let one = format!("/api/sessions/{id}");
    let began = tokio::time::Instant::now();
    loop {
        // Its view is stored behind the answer that created it.
        let shown = get(stage, &one).await;
        if shown.status == 200 && shown.json()["session"]["status"] == "ended" {
            let shown = shown.json()["session"].clone();
            assert_eq!((&shown["agentName"], &shown["sandboxId"]), (&json!("tester"), &json!("")));
            break;
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{shown:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let listed = get(stage, "/api/sessions?status=ended").await.expect(200);
    let listed = listed["sessions"].as_array().unwrap().iter();
    assert_eq!(listed.filter(|shown| shown["id"] == id).count(), 1);
    let message = json!({"content": "hi"});
    let program = json!({"command": "true"});
    for (method, path, body, status, error) in [
        ("POST", "/messages", message, 400, "Session is ended"),
        ("POST", "/exec", program, 400, "Session is ended"),
        ("POST", "/resume", Value::Null, 410, "Session has ended — create a new session"),
        ("POST", "/fork", Value::Null, 410, "Session has ended — create a new session"),
        ("POST", "/stop", Value::Null, 400, "Cannot stop session with status \"ended\""),
    ] {
        let refused = call(stage, method, &format!("{one}{path}"), body).await.expect(status);
        assert_eq!(refused, json!({"error": error, "statusCode": status}), "{path}");
    }
    get(stage, &format!("{one}/messages")).await.expect(200);
    let again = call(stage, "DELETE", &one, Value::Null).await.expect(200);
    assert_eq!(again["session"]["status"], "ended");
}

#[tokio::test]
async fn a_session_that_ended_without_a_request_of_ash_is_shown_as_ended() {
    let stage = stage().await;
    let id = session(&stage, json!({"model": "m"})).await;
    let path = format!("/api/sessions/{id}/fork");
    let fork = call(&stage, "POST", &path, Value::Null).await.expect(201);
    let fork = text(&fork["session"]["id"]);
    stage.call("DELETE", &format!("/v1/sessions/{fork}"), Value::Null).await.expect(204);
    assert_ended(&stage, &fork).await;
    let soon = json!({"deadline": {"after_s": 1, "action": "end"}});
    stage.call("PATCH", &format!("/v1/sessions/{id}"), soon).await.expect(200);
    assert_ended(&stage, &id).await;
    let shown = get(&stage, &format!("/api/sessions/{id}")).await.expect(200);
    assert_eq!(shown["session"]["model"], "m");
}

#[tokio::test]
async fn a_session_that_was_forked_outside_of_ash_is_shown_after_its_end_too() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let forked = stage.call("POST", &format!("/v1/sessions/{id}/fork"), Value::Null).await;
    let forked = text(&forked.expect(201)["id"]);
    let stage = stage.kill_and_start().await;
    let tenant = stage.engine.session(Caller::SERVER, forked.parse().unwrap()).unwrap().tenant;
    let began = tokio::time::Instant::now();
    let stored = async || {
        let id = forked.parse().unwrap();
        stage.engine.ended_session("ash.session", tenant, id).await.unwrap()
    };
    while stored().await.is_none() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "the start stores its view");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    stage.call("DELETE", &format!("/v1/sessions/{forked}"), Value::Null).await.expect(204);
    assert_ended(&stage, &forked).await;
}

#[tokio::test]
async fn a_paused_session_goes_on_with_the_next_message_unless_ash_is_followed_to_the_letter() {
    for strict in [false, true] {
        let stage = stage_with(|_, _, ash| ash.strict = strict).await;
        let id = session(&stage, json!({})).await;
        call(&stage, "POST", &format!("/api/sessions/{id}/pause"), Value::Null).await.expect(200);
        if strict {
            let path = format!("/api/sessions/{id}/messages");
            let refused = call(&stage, "POST", &path, json!({"content": "hi"})).await.expect(400);
            assert_eq!(refused, json!({"error": "Session is paused", "statusCode": 400}));
        } else {
            completed(&send(&stage, &id, "say hi").await);
        }
    }
}

#[tokio::test]
async fn a_pause_lets_the_message_in_progress_end_and_answers_when_nothing_runs() {
    let stage = stage_with(|_, _, ash| ash.strict = true).await;
    let id = session(&stage, json!({})).await;
    let mut running = begin(&stage, &id, &json!({"content": "say a; sleep 400; say b"})).await;
    running.head().await;
    while running.event().await.unwrap().1 != "message" {}
    let path = format!("/api/sessions/{id}/pause");
    let paused = call(&stage, "POST", &path, Value::Null).await.expect(200);
    assert_eq!(paused["session"]["status"], "paused");
    let view = stage.engine.session(Caller::SERVER, id.parse().unwrap()).unwrap();
    assert_eq!(view.turn, None, "it said so when the message was over");
    let mut rest = Vec::new();
    while let Some((_, name, _)) = running.event().await {
        rest.push(name);
    }
    assert_eq!(rest, ["message", "turn_complete", "message", "done"], "it was not cut short");
    let path = format!("/api/sessions/{id}/messages");
    let refused = call(&stage, "POST", &path, json!({"content": "hi"})).await.expect(400);
    assert_eq!(refused["error"], "Session is paused");
}

#[tokio::test]
async fn a_file_of_the_largest_size_of_ash_is_written_and_read() {
    const BYTES: usize = (50 << 20) - 2;
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let of = |rest: &str| format!("/api/sessions/{id}{rest}");
    let content = "eHh4".repeat(BYTES / 3);
    let body = format!("{{\"files\":[{{\"path\":\"large\",\"content\":\"{content}\"}}]}}");
    let path = format!("/compat/ash{}", of("/files"));
    let sent = request(&stage.admin, "POST", &path, "", body.as_bytes());
    let written = stage.raw(&sent).await.expect(200);
    assert_eq!(written["files"], json!([{"path": "large", "written": true, "size": BYTES}]));
    let read = get(&stage, &of("/files/large")).await;
    assert_eq!((read.status, read.body.len()), (200, BYTES));
    assert!(read.body == vec![b'x'; BYTES], "it is what was sent");
}

#[tokio::test]
async fn a_bridge_that_cannot_start_is_reported_with_its_own_error() {
    let stage = stage_with(|ash, _, _| {
        let script = "echo Error: the key is missing >&2; echo Node.js v20 >&2; exit 3";
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        ash.harness = Harness::AshBridge(HarnessProgram { command, prewarm: false });
    })
    .await;
    deploy(&stage, "tester").await;
    let refused = call(&stage, "POST", "/api/sessions", json!({"agent": "tester"})).await;
    let expected = "Failed to create session: the harness exited with code 3: \
                    Error: the key is missing\nNode.js v20";
    assert_eq!(refused.expect(500), json!({"error": expected, "statusCode": 500}));
}

#[tokio::test]
async fn sessions_are_listed_newest_first_by_agent_status_and_page() {
    let stage = stage().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.insert(0, session(&stage, json!({})).await);
    }
    let listed = async |query: &str| -> Vec<String> {
        let told = get(&stage, &format!("/api/sessions{query}")).await.expect(200);
        told["sessions"].as_array().unwrap().iter().map(|one| text(&one["id"])).collect()
    };
    assert_eq!(listed("").await, ids);
    assert_eq!(listed("?agent=tester&limit=1&offset=1").await, ids[1..2]);
    assert_eq!(listed("?agent=other").await, [""; 0]);
    call(&stage, "POST", &format!("/api/sessions/{}/pause", ids[1]), Value::Null).await.expect(200);
    call(&stage, "DELETE", &format!("/api/sessions/{}", ids[2]), Value::Null).await.expect(200);
    assert_eq!(listed("?status=active").await, ids[..1]);
    assert_eq!(listed("?status=paused").await, ids[1..2]);
    assert_eq!(listed("?status=ended").await, ids[2..]);
    assert_eq!(listed("?status=error").await, [""; 0]);
    assert_eq!(listed("").await, ids, "those that ended are shown too");
    let counted = get(&stage, "/api/sessions?limit=1&includeTotal=true").await.expect(200);
    assert_eq!(counted["total"], 3);
}

#[tokio::test]
async fn history_is_read_in_pages_that_fit_together() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    for n in 0..3 {
        completed(&send(&stage, &id, &format!("say {n}")).await);
    }
    send(&stage, &id, "fail on purpose").await;
    for what in ["messages", "events"] {
        let all = get(&stage, &format!("/api/sessions/{id}/{what}?limit=1000")).await.expect(200);
        let all = all[what].as_array().unwrap().clone();
        let (mut paged, mut after) = (Vec::new(), 0);
        loop {
            let path = format!("/api/sessions/{id}/{what}?limit=2&after={after}");
            let page = get(&stage, &path).await.expect(200)[what].as_array().unwrap().clone();
            let Some(last) = page.last() else { break };
            after = last["sequence"].as_u64().unwrap();
            assert!(page.len() <= 2);
            paged.extend(page);
        }
        assert_eq!(paged, all, "{what}");
        assert!(all.iter().all(|one| one["sessionId"] == id.as_str()));
    }
    let messages = get(&stage, &format!("/api/sessions/{id}/messages")).await.expect(200);
    let messages = messages["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = messages.iter().map(|one| one["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user", "assistant", "user"]);
    let said: Value = serde_json::from_str(messages[2]["content"].as_str().unwrap()).unwrap();
    assert_eq!(said, json!({"type": "user", "content": "say 1"}));
    let path = format!("/api/sessions/{id}/events?type=error");
    let errors = get(&stage, &path).await.expect(200)["events"].clone();
    assert_eq!(errors.as_array().unwrap().len(), 1, "{errors}");
    assert_eq!(errors[0]["data"], json!({"error": "on purpose"}).to_string());
    let path = format!("/api/sessions/{id}/events?type=lifecycle");
    let events = get(&stage, &path).await.expect(200)["events"].as_array().unwrap().clone();
    let created = json!({"action": "created"}).to_string();
    assert!(events.iter().any(|event| event["data"] == created), "{events:?}");
}

#[tokio::test]
async fn a_page_of_history_ends_where_it_has_become_large() {
    const COUNT: usize = 12;
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    for _ in 0..COUNT {
        send(&stage, &id, &format!("out {}", "x".repeat(450_000))).await;
    }
    let (mut asked, mut pages, mut after) = (0, 0, 0);
    loop {
        let path = format!("/api/sessions/{id}/messages?limit=1000&after={after}");
        let answer = get(&stage, &path).await;
        assert!(answer.body.len() < 6 << 20, "{} bytes", answer.body.len());
        let page = answer.expect(200)["messages"].as_array().unwrap().clone();
        let Some(last) = page.last() else { break };
        after = last["sequence"].as_u64().unwrap();
        asked += page.iter().filter(|one| one["role"] == "user").count();
        pages += 1;
    }
    assert!(asked == COUNT && pages > 1, "{asked} in {pages}");
    let path = format!("/api/sessions/{id}/events?type=mcp_status");
    assert_eq!(get(&stage, &path).await.expect(200), json!({"events": []}));
}

#[tokio::test]
async fn files_programs_and_logs_of_a_session() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let of = |rest: &str| format!("/api/sessions/{id}{rest}");
    let content = wire::to_base64(b"hello");
    let files = json!([
        {"path": "a.txt", "content": content}, {"path": ".b", "content": content},
        {"path": "../c", "content": content}, {"path": "d", "content": "*"},
    ]);
    let body = json!({"files": files, "targetPath": "in"});
    let written = call(&stage, "POST", &of("/files"), body).await.expect(200)["files"].clone();
    let done: Vec<_> = written.as_array().unwrap().iter().map(|one| &one["written"]).collect();
    assert_eq!(done, [true, true, false, false]);
    assert_eq!(written[2]["error"], "Invalid file path");
    let listed = get(&stage, &of("/files?includeHidden=false")).await.expect(200);
    let paths: Vec<_> = listed["files"].as_array().unwrap().iter().map(|f| &f["path"]).collect();
    assert_eq!(paths, ["CLAUDE.md", "in/a.txt"], "what it began with, and what was written");
    assert_eq!(listed["source"], "sandbox");
    let read = get(&stage, &of("/files/in/a.txt?format=json")).await.expect(200);
    assert_eq!((&read["content"], &read["size"]), (&json!("hello"), &json!(5)));
    let raw = get(&stage, &of("/files/in/a.txt")).await;
    assert_eq!((raw.status, &raw.body[..]), (200, &b"hello"[..]));
    assert_eq!(raw.headers["x-ash-source"], "sandbox");
    assert_eq!(raw.headers["content-disposition"], "attachment; filename*=UTF-8''a%2Etxt");
    let refused = get(&stage, &of("/files/in")).await.expect(400);
    assert_eq!(refused["error"], "Path is not a file");
    let bundle = get(&stage, &of("/workspace")).await;
    assert_eq!((bundle.status, bundle.headers["content-type"].as_str()), (200, "application/gzip"));
    let gone = call(&stage, "DELETE", &of("/files/in/a.txt"), Value::Null).await.expect(200);
    assert_eq!(gone, json!({"path": "in/a.txt", "deleted": true}));
    let body = json!({"bundle": wire::to_base64(&bundle.body)});
    let restored = call(&stage, "POST", &of("/workspace"), body).await.expect(200);
    assert_eq!(restored, json!({"message": "Workspace restored to live sandbox"}));
    assert_eq!(get(&stage, &of("/files/in/a.txt")).await.body, b"hello");

    let ran = call(&stage, "POST", &of("/exec"), json!({"command": "echo hi"})).await.expect(200);
    assert_eq!((&ran["exitCode"], &ran["stdout"]), (&json!(0), &json!("hi\n")), "{ran}");
    let sandbox = get(&stage, &of("")).await.expect(200)["session"]["sandboxId"].clone();
    for (name, value) in [
        ("ASH_SESSION_ID", json!(format!("{id}\n"))),
        ("ASH_SANDBOX_ID", json!(format!("{}\n", text(&sandbox)))),
        ("ASH_WORKSPACE_DIR", json!("/workspace\n")),
        ("ASH_AGENT_DIR", json!("/workspace\n")),
    ] {
        let command = json!({"command": format!("printenv {name}")});
        let ran = call(&stage, "POST", &of("/exec"), command).await.expect(200);
        assert_eq!(ran["stdout"], value, "{name}: {ran}");
    }
    completed(&send(&stage, &id, "log a line").await);
    let logs = get(&stage, &of("/logs?after=-1")).await.expect(200);
    let line = logs["logs"].as_array().unwrap().iter().find(|line| line["text"] == "a line");
    let line = line.unwrap_or_else(|| panic!("{logs}"));
    assert_eq!(line["level"], "stderr");
    let rest = get(&stage, &of(&format!("/logs?after={}", line["index"]))).await.expect(200);
    assert!(rest["logs"].as_array().unwrap().iter().all(|one| one["text"] != "a line"));
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked_by_those_who_may_do_everything() {
    let stage = stage().await;
    let made = call(&stage, "POST", "/api/api-keys", json!({"label": "ci"})).await.expect(201);
    let (id, key) = (text(&made["id"]), text(&made["key"]));
    let unlabelled = call(&stage, "POST", "/api/api-keys", Value::Null).await;
    unlabelled.expect(201);
    let listed = get(&stage, "/api/api-keys").await.expect(200)["keys"].clone();
    assert!(listed.as_array().unwrap().iter().any(|one| one["label"] == "ci"), "{listed}");
    let agents = "/compat/ash/api/agents";
    stage.call_as(&key, "GET", agents, Value::Null).await.expect(200);
    let keys = stage.call_as(&key, "GET", "/compat/ash/api/api-keys", Value::Null).await;
    assert_eq!(keys.status, 403);
    let path = format!("/api/api-keys/{id}");
    assert_eq!(call(&stage, "DELETE", &path, Value::Null).await.status, 204);
    assert_eq!(call(&stage, "DELETE", &path, Value::Null).await.status, 404);
    let refused = stage.call_as(&key, "GET", agents, Value::Null).await.expect(401);
    assert_eq!(refused, json!({"error": "Invalid API key", "statusCode": 401}));
}

#[tokio::test]
async fn the_key_of_the_environment_may_do_everything_here_and_nothing_elsewhere() {
    let stage = stage_with(|_, _, ash| ash.api_key = Some("ash_secret".to_owned())).await;
    let key = "ash_secret";
    let body = json!({"name": "a"});
    stage.call_as(key, "POST", "/compat/ash/api/agents", body).await.expect(201);
    stage.call_as(key, "GET", "/compat/ash/api/api-keys", Value::Null).await.expect(200);
    assert_eq!(stage.call_as(key, "GET", "/v1/stats", Value::Null).await.status, 401);
    let other = stage.key(Role::Use).await;
    let seen = stage.call_as(&other, "GET", "/compat/ash/api/agents", Value::Null).await;
    assert_eq!(seen.expect(200), json!({"agents": []}));
}

#[tokio::test]
async fn health_and_metrics_have_the_names_of_ash() {
    let stage = stage_with(|_, _, ash| ash.public_metrics = true).await;
    let id = session(&stage, json!({})).await;
    completed(&send(&stage, &id, "say hi").await);
    let health = get(&stage, "/health").await.expect(200);
    assert_eq!((&health["status"], &health["activeSessions"]), (&json!("ok"), &json!(1)));
    let fields = [
        "total",
        "cold",
        "warming",
        "warm",
        "waiting",
        "running",
        "maxCapacity",
        "resumeWarmHits",
        "resumeColdHits",
        "preWarmHits",
    ];
    for field in fields {
        assert!(health["pool"][field].is_u64(), "{field}: {health}");
    }
    let public = "GET /compat/ash/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let page = stage.raw(public.as_bytes()).await;
    let page = String::from_utf8(page.body).unwrap();
    assert!(page.contains("ash_active_sessions 1\n"), "{page}");
    let shown = format!("{health}{page}");
    let pid = format!("shoal-{}", std::process::id());
    assert!(!shown.contains(&pid), "the process id is for no client: {shown}");
}

#[tokio::test]
async fn health_without_a_key_says_only_that_the_server_is_up() {
    let stage = stage().await;
    session(&stage, json!({})).await;
    for authorization in ["", "authorization: Bearer wrong\r\n"] {
        let line = "GET /compat/ash/health HTTP/1.1";
        let bare = format!("{line}\r\nhost: localhost\r\n{authorization}\r\n");
        let health = stage.raw(bare.as_bytes()).await.expect(200);
        assert_eq!(health, json!({"status": "ok", "version": "0.2.0"}));
    }
    let read = stage.key(Role::Read).await;
    let health = stage.call_as(&read, "GET", "/compat/ash/health", Value::Null).await.expect(200);
    assert_eq!(health["activeSessions"], 1, "{health}");
}

/// Behind a name, as in Compose and Kubernetes, one setting is enough.
#[tokio::test]
async fn ash_is_reached_by_the_names_in_the_settings() {
    let mut plan = Plan::default();
    plan.settings.web.hosts = vec!["ash".to_owned()];
    let stage = Stage::with(plan).await;
    let health = |host: &str| format!("GET /compat/ash/health HTTP/1.1\r\nhost: {host}\r\n\r\n");
    for host in ["ash", "ash:4100", "127.0.0.1:4100"] {
        stage.raw(health(host).as_bytes()).await.expect(200);
    }
    let refused = stage.raw(health("other:4100").as_bytes()).await.expect(421);
    assert!(text(&refused["error"]).contains("server.hosts"), "the remedy is named: {refused}");
}
