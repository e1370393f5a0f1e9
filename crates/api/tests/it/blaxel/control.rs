//! Sandboxes made, found, changed and ended, and who may reach them.

use api::Settings;
use model::Role;
use serde_json::{Value, json};

use super::make;
use crate::stage::{Plan, Stage, request, text};

#[tokio::test]
async fn a_sandbox_is_made_found_listed_changed_and_ended() {
    let stage = Stage::start().await;
    let made = make(&stage, "my-app").await;
    assert_eq!(made["status"], "DEPLOYED");
    assert_eq!(made["spec"]["runtime"]["image"], "default", "the answer repeats the request");
    assert_eq!(made["metadata"]["url"], "http://localhost/compat/blaxel/my-app");
    let of = "/compat/blaxel/sandboxes/my-app";
    assert_eq!(stage.get(of).await.expect(200), made);
    let listed = stage.get("/compat/blaxel/sandboxes").await.expect(200);
    assert_eq!((&listed["data"], &listed["meta"]["hasMore"]), (&json!([made]), &json!(false)));
    let changed = stage.call("PUT", of, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(changed.expect(200)["metadata"]["labels"], json!({"a": "b"}));
    let gone = stage.call("DELETE", of, Value::Null).await.expect(200);
    assert_eq!(gone["metadata"]["name"], "my-app");
    let missing = stage.get(of).await.expect(404);
    assert_eq!(missing["code"], 404);
    assert!(missing["error"].is_string() && missing["message"].is_string(), "{missing}");
    stage.get("/compat/blaxel/my-app/process").await.expect(404);
    make(&stage, "my-app").await;
}

#[tokio::test]
async fn a_name_is_given_once_unless_it_may_exist() {
    let stage = Stage::start().await;
    make(&stage, "one").await;
    let body = json!({"metadata": {"name": "one"}});
    let path = "/compat/blaxel/sandboxes";
    let taken = stage.call("POST", path, body.clone()).await.expect(409);
    assert_eq!(taken["code"], 409);
    let again = stage.call("POST", &format!("{path}?createIfNotExist=true"), body).await;
    assert_eq!(again.expect(200)["metadata"]["name"], "one");
    assert_eq!(stage.engine.sessions_by_status().iter().map(|(_, n)| n).sum::<u32>(), 1);
    let unnamed = stage.call("POST", path, json!({})).await.expect(200);
    assert!(text(&unnamed["metadata"]["name"]).starts_with("sandbox-"));
    let bad = stage.call("POST", path, json!({"metadata": {"name": "a/b"}})).await;
    assert_eq!(bad.expect(400)["code"], 400);
}

#[tokio::test]
async fn a_creation_waits_for_a_place_as_long_as_its_client_says() {
    let mut plan = Plan::default();
    plan.engine.node.max_live = 1;
    let stage = Stage::with(plan).await;
    let (lease, _) = stage.checkout().await;
    let create = async |seconds: &str| {
        let headers = format!("x-blaxel-creation-timeout: {seconds}\r\n");
        let body = json!({"metadata": {"name": "late"}}).to_string();
        let path = "/compat/blaxel/sandboxes";
        stage.raw(&request(&stage.admin, "POST", path, &headers, body.as_bytes())).await
    };
    assert_eq!(create("soon").await.expect(400)["code"], 400);
    let began = tokio::time::Instant::now();
    let late = create("1").await;
    assert_eq!(late.headers["x-shoal-error"], "capacity_exhausted");
    assert_eq!(late.expect(408)["code"], "CREATION_TIMEOUT");
    assert!(began.elapsed().as_millis() >= 1_000, "{:?}", began.elapsed());
    assert_eq!(sessions(&stage), 0, "the name is free again");
    stage.call("DELETE", &format!("/v1/checkouts/{lease}"), Value::Null).await.expect(204);
    assert_eq!(create("30").await.expect(200)["metadata"]["name"], "late");
}

/// A sandbox of Blaxel that asks for `spec`.
async fn asked(stage: &Stage, name: &str, spec: Value) -> crate::raw_client::Answer {
    let body = json!({"metadata": {"name": name}, "spec": spec});
    stage.call("POST", "/compat/blaxel/sandboxes", body).await
}

#[tokio::test]
async fn a_sandbox_has_what_is_asked_for_or_is_refused() {
    let stage = Stage::start().await;
    // What the clients of Blaxel send by themselves.
    let sent = json!({"enabled": true, "region": "us-pdx-1", "runtime": {
        "image": "blaxel/base-image:latest", "memory": 4096, "generation": "mk3",
    }});
    let made = asked(&stage, "one", sent).await.expect(200);
    let id = model::TemplateName::new("default").unwrap();
    let has = stage.engine.template(&id).unwrap().limits.memory_mb;
    assert_eq!(made["spec"]["runtime"]["memory"], has, "what it really has");
    for (spec, blamed) in [
        (json!({"runtime": {"image": "blaxel/nextjs:latest"}}), "blaxel/nextjs:latest"),
        (json!({"runtime": {"image": "nosuch"}}), "nosuch"),
        (json!({"runtime": {"memory": has + 1}}), "spec.runtime.memory"),
        (json!({"runtime": {"envs": [{"name": "A"}]}}), "spec.runtime.envs"),
        (json!({"volumes": [{"name": "data", "mountPath": "/data"}]}), "\"data\" does not exist"),
        (json!({"network": {"allowedDomains": ["a.example"]}}), "spec.network"),
    ] {
        let told = asked(&stage, "two", spec).await.expect(400);
        assert_eq!(told["code"], 400, "{told}");
        assert!(text(&told["message"]).contains(blamed), "{told}");
    }
    assert_eq!(sessions(&stage), 1, "what is refused leaves nothing");
}

#[tokio::test]
async fn a_change_of_what_cannot_change_is_refused() {
    let stage = Stage::start().await;
    let envs = json!([{"name": "TEAM", "value": "blue"}]);
    let spec = json!({"runtime": {"image": "default", "envs": envs}});
    let mut whole = asked(&stage, "box", spec).await.expect(200);
    let of = "/compat/blaxel/sandboxes/box";
    // As clients do it: the whole object, with something else in it.
    whole["metadata"]["displayName"] = json!("Mine");
    let changed = stage.call("PUT", of, whole.clone()).await.expect(200);
    assert_eq!(changed["metadata"]["displayName"], "Mine");
    for (field, value) in [
        ("/spec/runtime/envs", json!([{"name": "TEAM", "value": "red"}])),
        ("/spec/runtime/envs", json!([])),
        ("/spec/runtime/image", json!("nosuch")),
        ("/spec/runtime/memory", json!(1 << 20)),
        ("/metadata/name", json!("other")),
    ] {
        let mut other = whole.clone();
        *other.pointer_mut(field).unwrap() = value;
        let told = stage.call("PUT", of, other).await.expect(400);
        assert!(text(&told["error"]).contains(field.rsplit('/').next().unwrap()), "{told}");
    }
    let kept = stage.call("PUT", of, json!({"metadata": {}})).await.expect(200);
    assert_eq!(kept["spec"]["runtime"]["envs"], envs, "what is not named stays");
    assert_eq!(stage.get(of).await.expect(200)["spec"]["runtime"]["image"], "default");
}

#[tokio::test]
async fn a_sandbox_that_has_ended_refuses_every_call_with_the_reason() {
    let stage = Stage::start().await;
    let expires = json!({"runtime": {"ttl": "1s"}});
    asked(&stage, "brief", expires).await.expect(200);
    make(&stage, "deleted").await;
    let listed = stage.get("/v1/sessions").await.expect(200)["sessions"].clone();
    let of = |name: &str, field: &str| {
        let all = listed.as_array().unwrap().iter();
        let mut all = all.filter(|one| one["metadata"]["blaxel.sandbox"] == name);
        text(&all.next().unwrap()[field])
    };
    let deleted = of("deleted", "id");
    stage.call("DELETE", &format!("/v1/sessions/{deleted}"), Value::Null).await.expect(204);
    let is_over = async |name: &str| {
        let shown = stage.get(&format!("/compat/blaxel/sandboxes/{name}")).await;
        shown.expect(200)["status"] == "TERMINATED"
    };
    for name in ["brief", "deleted"] {
        while !is_over(name).await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    for (word, code, reason) in [
        ("brief", "session_ended", "expired"),
        ("deleted", "session_ended", "deleted"),
        (&of("brief", "sandbox_id"), "sandbox_gone", "expired"),
        (&of("deleted", "sandbox_id"), "sandbox_gone", "deleted"),
    ] {
        for (method, path, body) in [
            ("GET", "/status", Value::Null),
            ("POST", "/stop", json!({"timeout": 300})),
            ("GET", "/health", Value::Null),
            ("POST", "/process", json!({"command": "true"})),
            ("GET", "/filesystem/a", Value::Null),
            ("GET", "/port/3000/", Value::Null),
        ] {
            let told = stage.call(method, &format!("/compat/blaxel/{word}{path}"), body).await;
            let case = format!("{word}{path}: {told:?}");
            assert_eq!(told.headers.get("x-shoal-error").map(String::as_str), Some(code), "{case}");
            assert_eq!(
                told.headers.get("x-shoal-reason").map(String::as_str),
                Some(reason),
                "{case}"
            );
            assert!(told.expect(410)["error"].is_string(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_cold_sandbox_is_at_rest_and_not_refused() {
    let stage = Stage::start().await;
    make(&stage, "box").await;
    let listed = stage.get("/v1/sessions").await.expect(200)["sessions"][0].clone();
    let (session, sandbox) = (text(&listed["id"]), text(&listed["sandbox_id"]));
    stage.call("POST", &format!("/v1/sessions/{session}/stop"), Value::Null).await.expect(200);
    for word in ["box", &sandbox] {
        let of = |path: &str| format!("/compat/blaxel/{word}{path}");
        assert_eq!(stage.get(&of("/status")).await.expect(200)["state"], "auto");
        stage.call("POST", &of("/stop"), Value::Null).await.expect(200);
        stage.get(&of("/health")).await.expect(200);
    }
    let unknown = stage.get("/compat/blaxel/0192f3a0-0000-7000-8000-000000000001/health").await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn a_time_in_the_past_is_refused_with_the_field_of_blaxel() {
    let stage = Stage::start().await;
    let past = json!({"runtime": {"expires": "2001-01-01T00:00:00Z"}});
    let told = asked(&stage, "box", past.clone()).await.expect(400);
    assert_eq!(told["error"], "spec.runtime.expires: the time has passed");
    make(&stage, "box").await;
    let changed = stage.call("PUT", "/compat/blaxel/sandboxes/box", json!({"spec": past})).await;
    assert_eq!(changed.headers["x-shoal-error"], "invalid_argument");
    assert_eq!(changed.expect(400)["error"], "spec.runtime.expires: the time has passed");
}

#[tokio::test]
async fn every_error_has_a_code_of_ours_in_its_header() {
    let stage = Stage::start().await;
    make(&stage, "box").await;
    let slow = json!({"command": "sleep 30", "waitForCompletion": true, "timeout": 1});
    for (method, path, body, status, code) in [
        ("GET", "/box/nothing", Value::Null, 404, "not_found"),
        ("GET", "/none/process", Value::Null, 404, "sandbox_unknown"),
        ("GET", "/sandboxes/none", Value::Null, 404, "sandbox_unknown"),
        ("POST", "/sandboxes", json!({"metadata": {"name": "box"}}), 409, "id_conflict"),
        ("POST", "/box/process", slow, 422, "deadline_exceeded"),
        ("POST", "/box/process", json!({}), 400, "bad_request"),
        ("GET", "/box/process/none", Value::Null, 404, "process_unknown"),
    ] {
        let told = stage.call(method, &format!("/compat/blaxel{path}"), body).await;
        assert_eq!(told.status, status, "{path}: {told:?}");
        let given = told.headers.get("x-shoal-error").map(String::as_str);
        assert_eq!(given, Some(code), "{path}");
    }
    let unknown = stage.get("/compat/blaxel/box/nothing").await;
    assert_eq!(unknown.headers["content-type"], "text/plain");
    assert_eq!(unknown.body, b"404 page not found");
}

#[tokio::test]
async fn a_field_that_is_not_known_is_kept_and_repeated() {
    let stage = Stage::start().await;
    let made = asked(&stage, "box", json!({"foo": {"a": 1}})).await.expect(200);
    assert_eq!(made["spec"]["foo"], json!({"a": 1}));
    let of = "/compat/blaxel/sandboxes/box";
    assert_eq!(stage.call("PUT", of, made).await.expect(200)["spec"]["foo"], json!({"a": 1}));
}

#[tokio::test]
async fn a_list_has_only_what_is_asked_for() {
    let stage = Stage::start().await;
    for (name, external_id) in [("alpha", "42"), ("beta", "43"), ("gamma", "42")] {
        let body = json!({"metadata": {"name": name, "externalId": external_id}});
        stage.call("POST", "/compat/blaxel/sandboxes", body).await.expect(200);
    }
    let listed = async |query: &str| {
        let path = format!("/compat/blaxel/sandboxes?{query}");
        let listed = stage.get(&path).await.expect(200);
        let names = listed["data"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|one| text(&one["metadata"]["name"]).clone()).collect();
        (names.join(" "), listed["meta"]["total"].clone())
    };
    assert_eq!(listed("externalId=42").await, ("alpha gamma".to_owned(), json!(2)));
    assert_eq!(listed("q=ET").await, ("beta".to_owned(), json!(1)));
    assert_eq!(listed("q=nothing&showTerminated=false").await, (String::new(), json!(0)));
    let one = "/compat/blaxel/sandboxes/by-external-id/43";
    assert_eq!(stage.get(one).await.expect(200)["metadata"]["name"], "beta");
    let none = stage.get("/compat/blaxel/sandboxes/by-external-id/44").await.expect(404);
    assert_eq!(none["code"], 404);
    assert_eq!(stage.get("/compat/blaxel/sandboxes?sort=size").await.expect(400)["code"], 400);
}

#[tokio::test]
async fn a_collection_that_is_missing_is_refused_as_the_control_plane_does_it() {
    let stage = Stage::start().await;
    for path in ["/volumes", "/volumes/data", "/agents", "/jobs/a/executions", "/images"] {
        for method in ["GET", "POST"] {
            let told = stage.call(method, &format!("/compat/blaxel{path}"), json!({})).await;
            let told = told.expect(422);
            assert_eq!(told["code"], 422, "{path}: {told}");
            assert!(text(&told["message"]).contains("not offered here"), "{path}: {told}");
        }
    }
    let body = json!({"metadata": {"name": "volumes"}});
    stage.call("POST", "/compat/blaxel/sandboxes", body).await.expect(400);
}

fn sessions(stage: &Stage) -> u32 {
    stage.engine.sessions_by_status().iter().map(|(_, n)| n).sum()
}

#[tokio::test]
async fn sandbox_that_many_create_at_once_is_created_once() {
    let stage = Stage::start().await;
    let path = "/compat/blaxel/sandboxes?createIfNotExist=true";
    let ask = || stage.call("POST", path, json!({"metadata": {"name": "one"}}));
    let all = futures_util::future::join_all((0..12).map(|_| ask())).await;
    for answer in all {
        assert_eq!(answer.expect(200)["metadata"]["name"], "one");
    }
    assert_eq!(sessions(&stage), 1, "none was made only to be ended");
}

#[tokio::test]
async fn sandbox_created_while_its_name_is_removed_keeps_it_or_is_refused() {
    let stage = Stage::start().await;
    let of = "/compat/blaxel/sandboxes/one";
    for _ in 0..8 {
        make(&stage, "one").await;
        let again =
            stage.call("POST", "/compat/blaxel/sandboxes", json!({"metadata": {"name": "one"}}));
        let gone = stage.call("DELETE", of, Value::Null);
        let (gone, again) = tokio::join!(gone, again);
        gone.expect(200);
        let known = stage.get(of).await.status;
        assert_eq!(known, if again.status == 200 { 200 } else { 404 }, "{again:?}");
        stage.call("DELETE", of, Value::Null).await;
    }
}

#[tokio::test]
async fn keys_come_in_two_headers_and_roles_count() {
    let stage = Stage::start().await;
    make(&stage, "box").await;
    let ask = async |method: &str, path: &str, headers: &str| {
        let head = format!("{method} /compat/blaxel{path} HTTP/1.1\r\nhost: localhost\r\n");
        let bytes = format!("{head}content-length: 0\r\n{headers}\r\n");
        stage.raw(bytes.as_bytes()).await
    };
    let blaxel = format!("x-blaxel-authorization: Bearer {}\r\n", stage.admin);
    assert_eq!(ask("GET", "/box/process", &blaxel).await.status, 200);
    let none = ask("GET", "/box/process", "").await;
    assert_eq!(none.status, 401);
    assert!(none.json()["error"].is_string());
    assert_eq!(ask("GET", "/box/process", "authorization: Bearer no\r\n").await.status, 401);
    for headers in ["", "authorization: Bearer no\r\n"] {
        let told = ask("POST", "/sandboxes", headers).await.expect(401);
        assert_eq!(told["code"], 401, "{told}");
        assert!(told["message"].is_string() && told["error"].is_string(), "{told}");
    }
    let reader = stage.key(Role::Read).await;
    let reader = format!("authorization: Bearer {reader}\r\n");
    assert_eq!(ask("POST", "/box/stop", &reader).await.status, 403);
    assert_eq!(ask("GET", "/box/process", &reader).await.status, 404, "it is another's");
}

#[tokio::test]
async fn pages_read_answers_only_if_their_origin_is_configured() {
    let mut settings = Settings::default();
    settings.web.cors_origins = vec!["https://app.example".to_owned()];
    let stage = Stage::with(Plan { settings, ..Plan::default() }).await;
    let none = Stage::start().await;
    let ask = async |stage: &Stage, method: &str, origin: &str| {
        let headers = format!("origin: {origin}\r\naccess-control-request-method: GET\r\n");
        let path = "/compat/blaxel/sandboxes";
        stage.raw(&request(&stage.admin, method, path, &headers, b"")).await
    };
    for method in ["GET", "OPTIONS"] {
        let allowed = ask(&stage, method, "https://app.example").await;
        assert_eq!(allowed.headers["access-control-allow-origin"], "https://app.example");
        for (stage, origin) in [(&stage, "https://evil.example"), (&none, "https://app.example")] {
            let other = ask(stage, method, origin).await;
            assert!(!other.headers.contains_key("access-control-allow-origin"), "{other:?}");
        }
    }
    let before = ask(&stage, "OPTIONS", "https://app.example").await;
    assert_eq!(before.status, 204);
    let allowed = before.headers["access-control-allow-headers"].to_ascii_lowercase();
    for name in ["blaxel-version", "x-blaxel-authorization", "range", "content-type"] {
        assert!(allowed.split(", ").any(|one| one == name), "{name}: {allowed}");
    }
}

#[tokio::test]
async fn one_of_our_sandboxes_is_reached_by_its_id() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let put = format!("/compat/blaxel/{id}/filesystem/a.txt");
    stage.call("PUT", &put, json!({"content": "hi"})).await.expect(200);
    assert_eq!(stage.get(&put).await.expect(200)["content"], "hi");
    let missing = stage.get("/compat/blaxel/nosuch/filesystem/a").await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn missing_features_are_refused_in_the_form_of_blaxel() {
    let stage = Stage::start().await;
    make(&stage, "box").await;
    for path in ["/drives/mount", "/codegen/fastapply/x", "/network/tunnel", "/archive/status"] {
        let answer = stage.get(&format!("/compat/blaxel/box{path}")).await;
        assert!((400..=501).contains(&answer.status), "{path}");
        assert!(answer.json()["error"].as_str().is_some_and(|text| text.len() > 10), "{path}");
    }
    let unknown = stage.get("/compat/blaxel/box/nothing").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.body, b"404 page not found");
    let health = stage.get("/compat/blaxel/box/health").await.expect(200);
    assert_eq!(health["status"], "ok");
    let root = stage.get("/compat/blaxel/box/").await.expect(200);
    assert!(root["message"].is_string());
    let health = stage.get("/compat/blaxel/box/health").await;
    assert_eq!(health.headers["cache-control"], "no-cache, no-store, must-revalidate");
    assert_eq!(health.headers["x-content-type-options"], "nosniff");
}
