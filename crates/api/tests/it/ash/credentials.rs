//! Credentials: stored as secrets, listed without their keys, given to sessions as variables.

use model::Role;
use serde_json::{Value, json};

use super::{call, get, session, stage};
use crate::stage::text;

#[tokio::test]
async fn credentials_are_stored_listed_without_their_keys_and_removed() {
    let stage = stage().await;
    let body = json!({"type": "anthropic", "key": "hunter2", "label": "team"});
    let made = call(&stage, "POST", "/api/credentials", body).await.expect(201);
    let made = &made["credential"];
    assert_eq!(
        (&made["type"], &made["label"], &made["active"]),
        (&json!("anthropic"), &json!("team"), &json!(true))
    );
    let listed = get(&stage, "/api/credentials").await.expect(200);
    let one = &listed["credentials"][0];
    assert_eq!(
        (&one["id"], &one["createdAt"], &one["lastUsedAt"]),
        (&made["id"], &made["createdAt"], &Value::Null)
    );
    assert!(!listed.to_string().contains("hunter2") && !made.to_string().contains("hunter2"));
    let other = stage.key(Role::Use).await;
    let path = "/compat/ash/api/credentials";
    let of_other = stage.call_as(&other, "GET", path, Value::Null).await.expect(200);
    assert_eq!(of_other, json!({"credentials": []}));
    let one = format!("{path}/{}", text(&made["id"]));
    assert_eq!(stage.call_as(&other, "DELETE", &one, Value::Null).await.status, 404);
    assert_eq!(stage.call("DELETE", &one, Value::Null).await.status, 204);
    assert_eq!(stage.call("DELETE", &one, Value::Null).await.status, 404);
    assert_eq!(get(&stage, "/api/credentials").await.expect(200), json!({"credentials": []}));
}

#[tokio::test]
async fn credentials_become_variables_of_a_session_below_its_own() {
    let stage = stage().await;
    let store = async |body: Value| {
        let made = call(&stage, "POST", "/api/credentials", body).await.expect(201);
        text(&made["credential"]["id"])
    };
    let aws = json!({"accessKeyId": "id", "secretAccessKey": "s", "region": "eu"}).to_string();
    let plain = store(json!({"type": "custom", "key": "hunter2"})).await;
    let bedrock = store(json!({"type": "bedrock", "key": aws})).await;
    let say = async |session: &str, name: &str| {
        let path = format!("/api/sessions/{session}/exec");
        let body = json!({"command": format!("printenv {name}")});
        let ran = call(&stage, "POST", &path, body).await.expect(200);
        text(&ran["stdout"]).trim_end().to_owned()
    };
    let of_plain = session(&stage, json!({"credentialId": plain})).await;
    assert_eq!(say(&of_plain, "ASH_CUSTOM_API_KEY").await, "hunter2");
    let more = json!({"credentialId": bedrock, "extraEnv": {"AWS_REGION": "us"}});
    let of_bedrock = session(&stage, more).await;
    assert_eq!(say(&of_bedrock, "AWS_ACCESS_KEY_ID").await, "id");
    assert_eq!(say(&of_bedrock, "AWS_REGION").await, "us", "what a session says itself counts");
    for wrong in [
        json!({"type": "other", "key": "a"}),
        json!({"key": "a"}),
        json!({"type": "openai"}),
        json!({"type": "openai", "key": ""}),
        json!({"type": "bedrock", "key": "hunter2"}),
        json!({"type": "openai", "key": "a", "more": 1}),
    ] {
        assert_eq!(
            call(&stage, "POST", "/api/credentials", wrong.clone()).await.status,
            400,
            "{wrong}"
        );
    }
}
