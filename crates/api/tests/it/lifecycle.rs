//! The common routes: check out, use and return sandboxes; pools, templates, keys, the server.

use serde_json::{Value, json};

use crate::raw_client::Connection;
use crate::stage::{Plan, Stage, request, template, text};

#[tokio::test]
async fn a_sandbox_is_checked_out_used_renewed_and_returned() {
    let stage = Stage::start().await;
    stage.until("warm", |stage| stage.engine.stats().warm == 2).await;
    let body = json!({"template": "default", "labels": {"team": "a"}, "ttl_s": 60});
    let answer = stage.call("POST", "/v1/checkouts", body).await;
    let timing = &answer.headers["server-timing"];
    assert!(timing.starts_with("acquire;dur=") && timing.ends_with("desc=\"fast\""), "{timing}");
    let made = answer.expect(201);
    assert_eq!((&made["path"], &made["sandbox"]["state"]), (&"fast".into(), &"warm".into()));
    assert_eq!(made["sandbox"]["lease"], made["id"]);
    assert_eq!(made["sandbox"]["labels"], json!({"team": "a"}));
    assert!(made["sandbox"]["key"].is_string(), "admins see whose it is");
    let (lease, sandbox) = (text(&made["id"]), text(&made["sandbox"]["id"]));

    let one = format!("/v1/checkouts/{lease}");
    let seen = stage.get(&one).await.expect(200);
    assert_eq!(seen["sandbox"]["id"], sandbox);
    let renewed = stage.call("POST", &format!("{one}/renew"), json!({"ttl_s": 600})).await;
    let renewed = renewed.expect(200);
    assert!(text(&renewed["sandbox"]["expires_at"]) > text(&made["sandbox"]["expires_at"]));
    stage.call("POST", &format!("{one}/renew"), Value::Null).await.expect(200);

    let exec = format!("/v1/sandboxes/{sandbox}/exec");
    let ran = stage.call("POST", &exec, json!({"command": "echo hi"})).await.expect(200);
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&0.into(), &"hi\n".into()));
    stage.call("DELETE", &one, Value::Null).await.expect(204);
    stage.call("DELETE", &one, Value::Null).await.expect(204);
    let gone = stage.call("POST", &exec, json!({"command": "echo hi"})).await;
    let gone = gone.problem("sandbox_gone");
    assert!(text(&gone["detail"]).contains("returned"), "{gone}");
    stage.get(&one).await.problem("lease_lost");
    let why = stage.get(&format!("/v1/sandboxes/{sandbox}/why")).await.expect(200);
    assert_eq!((&why["status"], &why["cause"]), (&"ended".into(), &"returned".into()));
    assert!(text(&why["summary"]).starts_with("returned by its user"), "{why}");
}

#[tokio::test]
async fn a_sandbox_of_one_s_own_is_listed_frozen_thawed_and_deleted() {
    let stage = Stage::start().await;
    let body = json!({"template": "default", "labels": {"n": "1"}});
    let made = stage.call("POST", "/v1/sandboxes", body).await.expect(201);
    let one = format!("/v1/sandboxes/{}", text(&made["id"]));
    assert!(made["lease"].is_string());
    assert_eq!(stage.get(&one).await.expect(200)["id"], made["id"]);
    let frozen = stage.call("POST", &format!("{one}/freeze"), Value::Null).await.expect(200);
    assert_eq!(frozen["frozen"], true);
    let thawed = stage.call("POST", &format!("{one}/thaw"), Value::Null).await.expect(200);
    assert_eq!(thawed["frozen"], false);
    stage.call("POST", &format!("{one}/renew"), json!({"ttl_s": 5})).await.expect(200);
    let why = stage.get(&format!("{one}/why")).await.expect(200);
    assert_eq!(why["status"], "alive");
    stage.call("DELETE", &one, Value::Null).await.expect(204);
    stage.get(&one).await.problem("sandbox_gone");
}

#[tokio::test]
async fn listings_are_filtered_and_paged() {
    let stage = Stage::start().await;
    let mut mine = Vec::new();
    for n in 0..5 {
        let body = json!({"template": "default", "labels": {"n": n.to_string(), "all": "yes"}});
        let made = stage.call("POST", "/v1/sandboxes", body).await.expect(201);
        mine.push((text(&made["id"]), text(&made["lease"])));
    }
    let ids = |list: &Value| -> Vec<String> {
        list["sandboxes"].as_array().unwrap().iter().map(|one| text(&one["id"])).collect()
    };
    let list = async |query: &str| stage.get(&format!("/v1/sandboxes?{query}")).await.expect(200);
    assert_eq!(ids(&list("label=n=3&label=all=yes").await), [mine[3].0.clone()]);
    assert_eq!(ids(&list(&format!("lease={}", mine[1].1)).await), [mine[1].0.clone()]);
    assert_eq!(ids(&list("label=n=9").await), Vec::<String>::new());
    assert_eq!(ids(&list("template=other").await), Vec::<String>::new());
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = list(&format!("label=all=yes&limit=2{after}")).await;
        assert!(ids(&page).len() <= 2);
        seen.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    let mut expected: Vec<_> = mine.iter().map(|(id, _)| id.clone()).collect();
    expected.sort();
    assert_eq!(seen, expected);
    let exec = format!("/v1/sandboxes/{}/exec", mine[0].0);
    stage.call("POST", &exec, json!({"command": "true"})).await.expect(200);
    assert_eq!(ids(&list("state=waiting").await), [mine[0].0.clone()]);
}

#[tokio::test]
async fn templates_are_made_replaced_read_and_removed() {
    let stage = Stage::start().await;
    let mut wanted = serde_json::to_value(template("two")).unwrap();
    let made = stage.call("POST", "/v1/templates", wanted.clone()).await.expect(201);
    assert_eq!(made, wanted);
    stage.call("POST", "/v1/templates", wanted.clone()).await.problem("id_conflict");
    wanted["pool"]["pool_size"] = 1.into();
    stage.call("PUT", "/v1/templates/two", wanted.clone()).await.expect(200);
    assert_eq!(stage.get("/v1/templates/two").await.expect(200), wanted);
    wanted["name"] = "three".into();
    let wrong = stage.call("PUT", "/v1/templates/two", wanted.clone()).await;
    assert_eq!(wrong.problem("invalid_argument")["field"], "name");
    stage.call("PUT", "/v1/templates/three", wanted.clone()).await.expect(201);
    let names = stage.get("/v1/templates").await.expect(200);
    assert_eq!(names["templates"].as_array().unwrap().len(), 3);
    // What the template leaves open has a value all the same.
    let margin = "acquire_min_remaining_ttl_ms";
    assert_eq!(wanted["pool"][margin], Value::Null);
    let pool = stage.get("/v1/pools/three").await.expect(200);
    let expected = template("three").pool.acquire_margin_ms();
    assert!(expected > 0);
    assert_eq!(pool[margin], json!(expected));
    assert!(
        names["effective"].as_array().unwrap().iter().all(|one| one[margin] == json!(expected))
    );
    let one = stage.get("/v1/templates/three/effective").await.expect(200);
    assert_eq!(one[margin], json!(expected));
    assert!(names["effective"].as_array().unwrap().contains(&one), "as in the list");
    stage.get("/v1/templates/nosuch/effective").await.problem("template_unknown");
    wanted["pool"]["pool_size"] = 0.into();
    wanted["pool"]["max_overflow"] = 0.into();
    let wrong = stage.call("PUT", "/v1/templates/three", wanted).await;
    assert_eq!(wrong.problem("template_invalid")["field"], "pool.pool_size");
    stage.call("DELETE", "/v1/templates/two", Value::Null).await.expect(204);
    stage.get("/v1/templates/two").await.problem("template_unknown");
    let body = json!({"template": "two"});
    stage.call("POST", "/v1/checkouts", body).await.problem("template_unknown");
}

#[tokio::test]
async fn pools_are_resized_drained_resumed_and_removed_by_force() {
    let stage = Stage::start().await;
    let resized = stage.call("PATCH", "/v1/pools/default", json!({"pool_size": 3})).await;
    let resized = resized.expect(200);
    assert_eq!((&resized["pool_size"], &resized["max_overflow"]), (&3.into(), &10.into()));
    stage.until("larger", |stage| stage.engine.stats().warm == 3).await;
    assert_eq!(stage.get("/v1/pools").await.expect(200)["pools"][0]["template"], "default");
    let (_, sandbox) = stage.checkout().await;
    let drained = stage.call("POST", "/v1/pools/default/drain", Value::Null).await.expect(200);
    assert_eq!(drained["phase"], "draining");
    let closed = stage.call("POST", "/v1/checkouts", json!({"template": "default"})).await;
    closed.problem("pool_closed");
    stage.call("POST", "/v1/pools/default/resume", Value::Null).await.expect(200);
    assert_eq!(stage.get("/v1/pools/default").await.expect(200)["phase"], "active");
    stage.call("DELETE", "/v1/pools/default?force=true", Value::Null).await.expect(204);
    stage.get(&format!("/v1/sandboxes/{sandbox}")).await.problem("sandbox_gone");
    assert_eq!(stage.runtime.alive().sandboxes, 0);
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let stage = Stage::start().await;
    let made = stage.call("POST", "/v1/keys", json!({"name": "ci", "role": "use"})).await;
    let made = made.expect(201);
    let secret = text(&made["secret"]);
    stage.call_as(&secret, "GET", "/v1/stats", Value::Null).await.expect(200);
    let listed = stage.get("/v1/keys").await;
    assert!(!String::from_utf8_lossy(&listed.body).contains(&secret));
    assert_eq!(listed.expect(200)["keys"].as_array().unwrap().len(), 2);
    let one = format!("/v1/keys/{}", text(&made["id"]));
    stage.call("DELETE", &one, Value::Null).await.expect(204);
    stage.call_as(&secret, "GET", "/v1/stats", Value::Null).await.problem("unauthorized");
    let unknown = "/v1/keys/00000000-0000-0000-0000-00000000abcd";
    stage.call("DELETE", unknown, Value::Null).await.problem("not_found");
}

#[tokio::test]
async fn health_causes_are_shown_to_admins_only() {
    let stage = Stage::start().await;
    let other = stage.key(model::Role::Use).await;
    stage.store.fail_commits(1_000_000, store::StoreErrorCode::DiskFull);
    let body = json!({"template": "default"});
    let refused = stage.call("POST", "/v1/checkouts", body).await;
    refused.problem("store_unavailable");
    assert!(refused.headers.contains_key("retry-after"));
    let reasons = async |key: &str| {
        let health = stage.call_as(key, "GET", "/health", Value::Null).await.expect(200);
        assert_eq!(health["status"], "degraded");
        text(&health["reasons"][0])
    };
    let cause = reasons(&stage.admin).await;
    assert!(cause.starts_with("store: ") && cause.len() > "store: ".len(), "{cause}");
    assert_eq!(reasons(&other).await, "store");
    let health = stage.call_as("unknown", "GET", "/health", Value::Null).await.expect(200);
    assert_eq!(health, serde_json::json!({"status": "degraded"}), "without a key no more");
}

#[tokio::test]
async fn health_and_statistics_are_shown() {
    let mut plan = Plan::default();
    plan.engine.templates[0].pool.pool_size = 1;
    let stage = Stage::with(plan).await;
    stage.until("warm", |stage| stage.engine.stats().warm == 1).await;
    let health = stage.get("/health").await.expect(200);
    assert_eq!(health["status"], "ok");
    let machine_mb = health["memory"]["machine_mb"].as_u64().unwrap();
    assert!(machine_mb > 100 && health["memory"]["live_mb"].as_u64().unwrap() > 0, "{health}");
    let names: Vec<_> = health["pool"].as_object().unwrap().keys().cloned().collect();
    let mut nine = [
        "total",
        "cold",
        "warming",
        "warm",
        "waiting",
        "running",
        "max_capacity",
        "resume_warm_hits",
        "resume_cold_hits",
    ];
    nine.sort_unstable();
    assert_eq!(names, nine);
    let stats = stage.get("/v1/stats").await.expect(200);
    assert_eq!((&stats["pool"]["warm"], &stats["pools"][0]["idle"]), (&1.into(), &1.into()));
    stage.checkout().await;
    let metrics = stage.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    for part in [
        "shoal_http_requests_total{route=\"/v1/checkouts\",method=\"POST\",status=\"201\"} 1",
        "shoal_http_request_seconds_bucket",
        "shoal_acquire_seconds_count{path=\"fast\"} 1",
        "shoal_sandboxes{state=\"warm\"}",
        "shoal_pool{template=\"default\",what=\"leased\"} 1",
        "shoal_healthy 1",
    ] {
        assert!(metrics.contains(part), "{part} is missing in\n{metrics}");
    }
    let page = b"GET /docs/errors/oom HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let page = stage.raw(page).await;
    assert!(String::from_utf8(page.body).unwrap().starts_with("# oom\n"));
    let document = stage.get("/v1/openapi.json").await;
    assert_eq!(String::from_utf8(document.body).unwrap(), api::openapi::made_document());
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let stage = Stage::start().await;
    let mut connection: Connection = stage.connect().await;
    for _ in 0..3 {
        connection.send(request(&stage.admin, "GET", "/v1/pools", "", b"")).await;
        connection.answer().await.expect(200);
    }
    connection.send(request(&stage.admin, "GET", "/nothing", "", b"")).await;
    connection.answer().await.problem("not_found");
    connection.send(request(&stage.admin, "HEAD", "/v1/pools", "", b"")).await;
    let head = connection.head().await;
    assert_eq!(head.status, 200);
}
