//! Secrets through a socket: who may store, see and remove which, and that no answer has a value.

use model::Role;
use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Stage, request, text};

const VALUE: &str = "hunter2-value";

async fn put(stage: &Stage, key: &str, path: &str, value: &str) -> Answer {
    stage.call_as(key, "PUT", &format!("/v1/secrets/{path}"), json!({"value": value})).await
}

async fn names(stage: &Stage, key: &str, query: &str) -> Vec<String> {
    let path = format!("/v1/secrets{query}");
    let listed = stage.call_as(key, "GET", &path, Value::Null).await.expect(200);
    let secrets = listed["secrets"].as_array().unwrap();
    secrets.iter().map(|one| text(&one["name"])).collect()
}

#[tokio::test]
async fn secret_is_put_replaced_listed_and_removed_without_its_value() {
    let stage = Stage::start().await;
    let key = stage.key(Role::Use).await;
    let created = put(&stage, &key, "TOKEN", VALUE).await.expect(201);
    assert_eq!((&created["name"], &created["scope"]), (&json!("TOKEN"), &json!("key")));
    assert_eq!(created["bytes"], VALUE.len());
    let replaced = put(&stage, &key, "TOKEN", "hunter2-ü").await.expect(200);
    assert_eq!((&replaced["bytes"], &replaced["created_at"]), (&json!(10), &created["created_at"]));
    let listed = stage.call_as(&key, "GET", "/v1/secrets", Value::Null).await.expect(200);
    assert_eq!(listed, json!({"secrets": [replaced]}));
    for answer in [&created, &replaced, &listed] {
        assert!(!answer.to_string().contains("hunter2"), "{answer}");
    }
    // There is no route that reads a value.
    let path = "/v1/secrets/TOKEN";
    stage.call_as(&key, "GET", path, Value::Null).await.problem("method_not_allowed");
    assert_eq!(stage.call_as(&key, "DELETE", path, Value::Null).await.status, 204);
    stage.call_as(&key, "DELETE", path, Value::Null).await.problem("not_found");
    assert_eq!(names(&stage, &key, "").await, Vec::<String>::new());
}

#[tokio::test]
async fn secrets_of_one_key_do_not_exist_for_another() {
    let stage = Stage::start().await;
    let (alice, bob) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    put(&stage, &alice, "a", VALUE).await.expect(201);
    put(&stage, &bob, "b", VALUE).await.expect(201);
    assert_eq!(names(&stage, &alice, "").await, ["a"]);
    assert_eq!(names(&stage, &bob, "?scope=key").await, ["b"]);
    assert_eq!(names(&stage, &stage.admin, "").await, Vec::<String>::new(), "not even for admins");
    for key in [&bob, &stage.admin] {
        stage.call_as(key, "DELETE", "/v1/secrets/a", Value::Null).await.problem("not_found");
    }
    put(&stage, &bob, "a", "of bob").await.expect(201);
    stage.call_as(&bob, "DELETE", "/v1/secrets/a", Value::Null).await;
    assert_eq!(names(&stage, &alice, "").await, ["a"]);
}

#[tokio::test]
async fn secrets_of_the_node_are_for_administrators_and_reading_keys_change_none() {
    let stage = Stage::start().await;
    let (of_use, read) = (stage.key(Role::Use).await, stage.key(Role::Read).await);
    let made = put(&stage, &stage.admin, "a?scope=node", VALUE).await.expect(201);
    assert_eq!(made["scope"], "node");
    assert_eq!(names(&stage, &stage.admin, "?scope=node").await, ["a"]);
    for key in [&of_use, &read] {
        for (method, path) in [("GET", ""), ("PUT", "/a"), ("DELETE", "/a")] {
            let path = format!("/v1/secrets{path}?scope=node");
            let body = if method == "PUT" { json!({"value": VALUE}) } else { Value::Null };
            stage.call_as(key, method, &path, body).await.problem("forbidden");
        }
        assert_eq!(names(&stage, key, "").await, Vec::<String>::new());
    }
    put(&stage, &read, "a", VALUE).await.problem("forbidden");
    stage.call_as(&read, "DELETE", "/v1/secrets/a", Value::Null).await.problem("forbidden");
    let metrics = String::from_utf8(stage.get("/metrics").await.body).unwrap();
    for line in ["shoal_secrets{scope=\"node\"} 1", "shoal_secrets{scope=\"key\"} 0"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn requests_with_a_wrong_secret_are_refused_without_its_value() {
    let stage = Stage::start().await;
    let long = "x".repeat(128);
    put(&stage, &stage.admin, &long, VALUE).await.expect(201);
    for name in ["a%2Fb", "a%20b", ".a", "%C3%A4", &format!("{long}x")] {
        put(&stage, &stage.admin, name, VALUE).await.problem("invalid_argument");
    }
    for value in [String::new(), format!("{VALUE}\0"), VALUE.repeat(6_000)] {
        let refused = put(&stage, &stage.admin, "a", &value).await.problem("invalid_argument");
        assert_eq!(refused["field"], "value");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
    for body in [
        "\"hunter2\"",
        "[\"hunter2\"]",
        "{\"value\":\"hunter2\"",
        "{\"value\":\"hunter2\"} hunter2",
        "{\"value\":[\"hunter2\"]}",
        "{\"value\":\"hunter2\",\"hunter2\":1}",
        "hunter2",
        "",
    ] {
        let headers = "content-type: application/json\r\n";
        let sent = request(&stage.admin, "PUT", "/v1/secrets/a", headers, body.as_bytes());
        let refused = stage.raw(&sent).await.problem("bad_request");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
    put(&stage, &stage.admin, "a?scope=all", VALUE).await.problem("bad_request");
    put(&stage, &stage.admin, "a?scop=node", VALUE).await.problem("bad_request");
    let whole = "x".repeat(65_536);
    for n in 0..15 {
        put(&stage, &stage.admin, &format!("s{n}"), &whole).await.expect(201);
    }
    let refused = put(&stage, &stage.admin, "more", &whole).await.problem("quota_exceeded");
    assert!(text(&refused["detail"]).contains("1048576"), "{refused}");
    assert_eq!(refused["retryable"], false, "{refused}");
}

#[tokio::test]
async fn secrets_survive_a_restart_and_end_with_their_key() {
    let stage = Stage::start().await;
    let key = stage.engine.create_key("gone", Role::Use, None).await.unwrap();
    put(&stage, &key.secret, "a", VALUE).await.expect(201);
    put(&stage, &stage.admin, "a?scope=node", VALUE).await.expect(201);
    let stage = stage.kill_and_start().await;
    assert_eq!(names(&stage, &key.secret, "").await, ["a"]);
    let path = format!("/v1/keys/{}", key.record.id);
    assert_eq!(stage.call("DELETE", &path, Value::Null).await.status, 204);
    let owner = model::SecretOwner::Key(key.record.id);
    assert_eq!(stage.engine.list_secrets(owner).await.unwrap(), []);
    assert_eq!(names(&stage, &stage.admin, "?scope=node").await, ["a"]);
}
