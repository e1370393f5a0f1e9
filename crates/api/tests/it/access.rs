//! Who may do what: every route with every role, and what belongs to another key.

use model::Role;
use serde_json::{Value, json};

use crate::stage::{Plan, Stage, request, text};

#[tokio::test]
async fn every_route_needs_the_role_that_its_description_says() {
    let stage = Stage::start().await;
    let document: Value = serde_json::from_str(&api::openapi::document()).unwrap();
    let keys = [
        (Role::Admin, stage.key(Role::Admin).await),
        (Role::Use, stage.key(Role::Use).await),
        (Role::Read, stage.key(Role::Read).await),
    ];
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path
            .replace("{id}", "00000000-0000-0000-0000-000000000001")
            .replace("{template}", "nosuch")
            .replace("{name}", "nosuch")
            .replace("{secret}", "nosuch")
            .replace("{code}", "oom");
        for (method, operation) in methods.as_object().unwrap() {
            let about = text(&operation["description"]);
            let method = method.to_uppercase();
            // Streams have no end: the page is enough to know.
            let headers = "accept: application/json\r\n";
            let send = async |key: &str| {
                let bytes = request(key, &method, &path, headers, b"");
                stage.raw(&bytes).await
            };
            if about == "Needs no key." {
                assert_eq!(send("").await.status, 200, "{method} {path}");
                continue;
            }
            for wrong in ["", "shoal_wrong"] {
                send(wrong).await.problem("unauthorized");
            }
            for (role, key) in &keys {
                let needed = about.split('`').nth(1).unwrap();
                let enough = match needed {
                    "admin" => *role == Role::Admin,
                    "use" => *role != Role::Read,
                    "read" => true,
                    other => panic!("{other}"),
                };
                let answer = send(key).await;
                let refused = answer.status == 401 || answer.status == 403;
                assert_eq!(!refused, enough, "{role}: {method} {path}: {}", answer.status);
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

#[tokio::test]
async fn reading_is_open_to_all_keys_and_changing_is_not() {
    let stage = Stage::start().await;
    let read = stage.key(Role::Read).await;
    for path in ["/v1/templates", "/v1/pools", "/v1/stats", "/v1/sandboxes", "/metrics"] {
        assert_eq!(stage.call_as(&read, "GET", path, Value::Null).await.status, 200, "{path}");
    }
    let body = json!({"template": "default"});
    stage.call_as(&read, "POST", "/v1/checkouts", body).await.problem("forbidden");
    let use_key = stage.key(Role::Use).await;
    stage.call_as(&use_key, "GET", "/v1/keys", Value::Null).await.problem("forbidden");
    stage.call_as(&use_key, "DELETE", "/v1/pools/default", Value::Null).await.problem("forbidden");
}

#[tokio::test]
async fn what_belongs_to_another_key_does_not_exist() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let body = json!({"template": "default"});
    let made = stage.call_as(&alice, "POST", "/v1/checkouts", body).await.expect(201);
    assert!(made["sandbox"].get("key").is_none(), "only admins see whose it is");
    let (lease, id) = (text(&made["id"]), text(&made["sandbox"]["id"]));
    let command = json!({"command": "true"});
    for (method, path, body) in [
        ("GET", String::new(), Value::Null),
        ("DELETE", String::new(), Value::Null),
        ("POST", "/renew".to_owned(), Value::Null),
        ("POST", "/freeze".to_owned(), Value::Null),
        ("POST", "/exec".to_owned(), command.clone()),
        ("GET", "/why".to_owned(), Value::Null),
        ("GET", "/events".to_owned(), Value::Null),
        ("GET", "/files?path=/workspace".to_owned(), Value::Null),
        ("GET", "/files/list?path=/workspace".to_owned(), Value::Null),
        ("GET", "/archive?path=/workspace".to_owned(), Value::Null),
    ] {
        let path = format!("/v1/sandboxes/{id}{path}");
        stage.call_as(&bob, method, &path, body).await.problem("sandbox_unknown");
    }
    for (method, path) in [("GET", ""), ("DELETE", ""), ("POST", "/renew")] {
        let path = format!("/v1/checkouts/{lease}{path}");
        stage.call_as(&bob, method, &path, Value::Null).await.problem("lease_unknown");
    }
    let listed = stage.call_as(&bob, "GET", "/v1/sandboxes", Value::Null).await.expect(200);
    assert_eq!(listed["sandboxes"], json!([]));
    let listed = stage.call_as(&alice, "GET", "/v1/sandboxes", Value::Null).await.expect(200);
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 1);
    let path = format!("/v1/sandboxes/{id}/exec");
    stage.call_as(&alice, "POST", &path, command).await.expect(200);
}

#[tokio::test]
async fn eviction_candidates_are_shown_to_their_owner_only() {
    let mut plan = Plan::default();
    plan.engine.node.max_sandboxes = 2;
    plan.engine.templates[0].pool.pool_size = 0;
    let stage = Stage::with(plan).await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let begin = async |key: &str| {
        let body = json!({"template": "default"});
        let made = stage.call_as(key, "POST", "/v1/sessions", body).await.expect(201);
        let at = format!("/v1/sessions/{}", text(&made["id"]));
        let command = json!({"command": "true"});
        stage.call_as(key, "POST", &format!("{at}/exec"), command).await.expect(200);
        let session = stage.call_as(key, "GET", &at, Value::Null).await.expect(200);
        (at, text(&session["sandbox_id"]))
    };
    let (session, evicted) = begin(&alice).await;
    let path = format!("{session}/stop");
    stage.call_as(&alice, "POST", &path, Value::Null).await.expect(200);
    let (_, spared) = begin(&bob).await;
    begin(&alice).await;
    let why = format!("/v1/sandboxes/{evicted}/why");
    let candidates = async |key: &str| {
        let told = stage.call_as(key, "GET", &why, Value::Null).await.expect(200);
        let candidates = told["eviction"]["candidates"].as_array().expect("evicted").clone();
        candidates.iter().map(|one| text(&one["sandbox"])).collect::<Vec<_>>()
    };
    assert!(candidates(&stage.admin).await.contains(&spared));
    let told = candidates(&alice).await;
    assert!(told.contains(&evicted) && !told.contains(&spared), "{told:?}");
}

#[tokio::test]
async fn eviction_candidates_of_a_cold_sandbox_are_shown_to_their_owner_only() {
    let mut plan = Plan::default();
    plan.engine.node.max_live = 2;
    plan.engine.templates[0].pool.pool_size = 0;
    let stage = Stage::with(plan).await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let begin = async |key: &str| {
        let body = json!({"template": "default"});
        let made = stage.call_as(key, "POST", "/v1/sessions", body).await.expect(201);
        (format!("/v1/sessions/{}", text(&made["id"])), text(&made["sandbox_id"]))
    };
    let (session, others) = begin(&bob).await;
    stage.call_as(&bob, "POST", &format!("{session}/stop"), Value::Null).await.expect(200);
    let (_, evicted) = begin(&alice).await;
    begin(&bob).await;
    begin(&alice).await;
    let why = format!("/v1/sandboxes/{evicted}/why");
    let candidates = async |key: &str| {
        let told = stage.call_as(key, "GET", &why, Value::Null).await.expect(200);
        assert_eq!((text(&told["status"]), text(&told["state"])), ("alive".into(), "cold".into()));
        let eviction = &told["last_end"]["eviction"];
        let candidates = eviction["candidates"].as_array().expect("evicted").clone();
        candidates.iter().map(|one| text(&one["sandbox"])).collect::<Vec<_>>()
    };
    assert!(candidates(&stage.admin).await.contains(&others));
    let told = candidates(&alice).await;
    assert!(told.contains(&evicted) && !told.contains(&others), "{told:?}");
}

#[tokio::test]
async fn a_program_ends_with_the_key_of_who_runs_it() {
    let stage = Stage::start().await;
    let key = stage.engine.create_key("gone", Role::Use, None).await.unwrap();
    let body = json!({"template": "default"});
    let made = stage.call_as(&key.secret, "POST", "/v1/checkouts", body).await.expect(201);
    let path = format!("/v1/sandboxes/{}/exec", text(&made["sandbox"]["id"]));
    let body = json!({"command": "sleep 1000"}).to_string();
    let mut waiting = Vec::new();
    for accept in ["application/json", "text/event-stream"] {
        let headers = format!("accept: {accept}\r\ncontent-type: application/json\r\n");
        let mut connection = stage.connect().await;
        connection.send(request(&key.secret, "POST", &path, &headers, body.as_bytes())).await;
        waiting.push(connection);
    }
    assert_eq!(waiting[1].head().await.status, 200);
    let of_key = stage.engine.keys().into_iter().find(|known| known.name == "gone").unwrap();
    stage.engine.revoke_key(of_key.id).await.unwrap();
    waiting[0].answer().await.problem("unauthorized");
    let mut last = None;
    while let Some((_, name, data)) = waiting[1].event().await {
        last = Some((name, data));
    }
    let (name, data) = last.unwrap();
    assert!(name == "error" && data.to_string().contains("unauthorized"), "{name}: {data}");
    stage.until("its programs are over", |stage| stage.runtime.alive().tasks == 0).await;
}

#[tokio::test]
async fn keys_that_expired_do_not_work() {
    let stage = Stage::start().await;
    let brief = stage.engine.create_key("brief", Role::Use, Some(1)).await.unwrap().secret;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let answer = stage.call_as(&brief, "GET", "/v1/stats", Value::Null).await;
    answer.problem("unauthorized");
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    let request = "GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic YTpi\r\n\r\n";
    stage.raw(request.as_bytes()).await.problem("unauthorized");
}
