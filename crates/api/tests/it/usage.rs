//! What keys have used: who sees it, in which form, and that no restart takes any of it.

use std::time::Duration;

use model::Role;
use serde_json::{Value, json};

use crate::stage::{Stage, text};

async fn usage_as(stage: &Stage, key: &str, query: &str) -> Vec<Value> {
    let path = format!("/v1/usage{query}");
    let answer = stage.call_as(key, "GET", &path, Value::Null).await.expect(200);
    answer["usage"].as_array().unwrap().clone()
}

async fn checkout(stage: &Stage, key: &str) -> String {
    let asked = json!({"template": "default"});
    let made = stage.call_as(key, "POST", "/v1/checkouts", asked).await.expect(201);
    text(&made["id"])
}

fn seconds(usage: &Value) -> f64 {
    usage["sandbox_seconds"].as_f64().unwrap()
}

#[tokio::test]
async fn usage_is_shown_to_its_key_and_survives_restarts() {
    let stage = Stage::start().await;
    let asked = json!({"name": "ci", "role": "use"});
    let made = stage.call("POST", "/v1/keys", asked).await.expect(201);
    let (id, key) = (text(&made["id"]), text(&made["secret"]));
    let other = stage.key(Role::Use).await;
    let fresh = usage_as(&stage, &key, "").await;
    assert_eq!(fresh.len(), 1);
    assert_eq!((&fresh[0]["key"], &fresh[0]["name"]), (&json!(id), &json!("ci")));
    assert_eq!((seconds(&fresh[0]), &fresh[0]["cpu_seconds"]), (0.0, &json!(0.0)));
    checkout(&stage, &key).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let first = usage_as(&stage, &key, "").await.remove(0);
    assert!((1.0..60.0).contains(&seconds(&first)), "{first}");
    assert!(first["memory_mb_seconds"].as_f64().unwrap() > seconds(&first), "{first}");
    assert_eq!(first["cpu_complete"], true);
    // After `kill -9` every number is there that was shown.
    let stage = stage.kill_and_start().await;
    let after = usage_as(&stage, &key, &format!("?key={id}")).await.remove(0);
    assert!(seconds(&after) >= seconds(&first), "{after} after {first}");
    assert!(seconds(&after) < seconds(&first) + 1.0, "{after} after {first}: counted twice");
    // An administrator sees all keys, and one of them.
    assert!(usage_as(&stage, &stage.admin, "").await.len() >= 3);
    assert_eq!(usage_as(&stage, &stage.admin, &format!("?key={id}")).await.len(), 1);
    let foreign = format!("/v1/usage?key={id}");
    stage.call_as(&other, "GET", &foreign, Value::Null).await.problem("not_found");
    let unknown = "/v1/usage?key=00000000-0000-0000-0000-000000000009";
    stage.call("GET", unknown, Value::Null).await.problem("not_found");
    for wrong in ["?since=now", "?key=x", "?key="] {
        let path = format!("/v1/usage{wrong}");
        stage.call("GET", &path, Value::Null).await.problem("bad_request");
    }
    // A revoked key keeps its usage.
    let revoked = format!("/v1/keys/{id}");
    assert_eq!(stage.call("DELETE", &revoked, Value::Null).await.status, 204);
    let kept = usage_as(&stage, &stage.admin, &format!("?key={id}")).await.remove(0);
    assert!(seconds(&kept) >= seconds(&after), "{kept}");
}

#[tokio::test]
async fn usage_of_all_keys_is_in_the_metrics_and_in_ash() {
    let stage = Stage::start().await;
    let key = stage.key(Role::Use).await;
    checkout(&stage, &key).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let shown = seconds(&usage_as(&stage, &key, "").await[0]);
    assert!(shown > 0.5, "{shown}");
    let page = stage.call("GET", "/metrics", Value::Null).await;
    let page = String::from_utf8(page.body.clone()).unwrap();
    let line = page.lines().find(|line| line.starts_with("shoal_usage_sandbox_seconds_total "));
    let counted: f64 = line.unwrap().split_once(' ').unwrap().1.parse().unwrap();
    assert!(counted >= shown, "{counted} of {shown}");
    // Each key sees its own, and an admin sees all.
    let of_keys = |page: &str| {
        let of_key = |line: &&str| line.starts_with("shoal_key_usage_sandbox_seconds_total{");
        page.lines().filter(of_key).count()
    };
    assert_eq!(of_keys(&page), 1, "only one key used anything");
    for (role, sees) in [(&key, 1), (&stage.key(Role::Use).await, 0)] {
        let page = stage.call_as(role, "GET", "/metrics", Value::Null).await;
        assert_eq!(of_keys(&String::from_utf8(page.body.clone()).unwrap()), sees);
    }
    let ash = async |path: &str| {
        let path = format!("/compat/ash/api/usage{path}");
        stage.call_as(&key, "GET", &path, Value::Null).await
    };
    let events = ash("?limit=5").await.expect(200)["events"].clone();
    assert_eq!(events.as_array().unwrap().len(), 1, "{events}");
    assert_eq!(events[0]["eventType"], "compute_seconds");
    assert!(events[0]["value"].as_f64().unwrap() >= shown);
    let stats = ash("/stats").await.expect(200)["stats"].clone();
    assert!(stats["totalComputeSeconds"].as_f64().unwrap() >= shown, "{stats}");
    assert_eq!(stats["totalInputTokens"], Value::Null, "not metered");
    let none = ash("?before=2001-01-01T00:00:00.000Z").await.expect(200);
    assert_eq!(none["events"], json!([]));
    for wrong in
        ["?sessionId=a", "?agentName=a", "?limit=0", "?after=yesterday", "/stats?sessionId=a"]
    {
        assert_eq!(ash(wrong).await.status, 400, "{wrong}");
    }
}
