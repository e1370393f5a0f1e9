//! What a key may do ends with it, and what it left goes too.

use serde_json::{Value, json};

use super::{begin_as, call, names, said, stage_with, stream};
use crate::stage::{Stage, text};

/// Makes a session with a key.
async fn session_of(stage: &Stage, key: &str) -> String {
    let agent = json!({"name": "a"});
    stage.call_as(key, "POST", "/compat/ash/api/agents", agent).await.expect(201);
    let asked = json!({"agent": "a"});
    let made = stage.call_as(key, "POST", "/compat/ash/api/sessions", asked).await;
    text(&made.expect(201)["session"]["id"])
}

#[tokio::test]
async fn a_stream_ends_with_its_key_and_the_key_of_the_environment_goes_on() {
    let stage = stage_with(|_, _, ash| ash.api_key = Some("ash_secret".to_owned())).await;
    let made = call(&stage, "POST", "/api/api-keys", json!({})).await.expect(201);
    let (key, revoked) = (text(&made["key"]), format!("/api/api-keys/{}", text(&made["id"])));
    let mut told = Vec::new();
    for key in [&*key, "ash_secret"] {
        let id = session_of(&stage, key).await;
        // Longer than a key is trusted.
        let body = json!({"content": "say early; sleep 5500; say late; say later"});
        told.push(begin_as(key, &stage, &id, &body).await);
    }
    assert_eq!(call(&stage, "DELETE", &revoked, Value::Null).await.status, 204);
    let [of_revoked, of_environment] = &mut told[..] else { panic!("two") };
    let (of_revoked, of_environment) = tokio::join!(stream(of_revoked), stream(of_environment));
    let all = [json!({"text": "early"}), json!({"text": "late"}), json!({"text": "later"})];
    assert_eq!(said(&of_environment), all.iter().collect::<Vec<_>>());
    assert!(said(&of_revoked).len() < 2, "{of_revoked:?}");
    assert_eq!(names(&of_revoked)[names(&of_revoked).len() - 2..], ["error", "done"]);
}

#[tokio::test]
async fn documents_of_a_key_are_deleted_with_it() {
    let stage = stage_with(|_, _, _| ()).await;
    let made = call(&stage, "POST", "/api/api-keys", json!({})).await.expect(201);
    let (key, id) = (text(&made["key"]), text(&made["id"]));
    for key in [&key, &stage.admin] {
        let agent = json!({"name": "a"});
        stage.call_as(key, "POST", "/compat/ash/api/agents", agent).await.expect(201);
    }
    let tenant = id.parse().unwrap();
    let agents = |tenant| stage.engine.named_documents("ash.agent", tenant);
    assert_eq!(agents(tenant).await.unwrap().len(), 1);
    let revoked = format!("/api/api-keys/{id}");
    assert_eq!(call(&stage, "DELETE", &revoked, Value::Null).await.status, 204);
    assert_eq!(agents(tenant).await.unwrap().len(), 0);
    call(&stage, "GET", "/api/agents/a", Value::Null).await.expect(200);
}
