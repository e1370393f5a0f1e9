//! Secrets: whose value a name has, how many there may be, and that they end with their key.

use model::secret_record::SECRETS_MAX;
use model::{
    ErrorCode, KeyId, Refusal, Role, SecretCounts, SecretName, SecretOwner, SecretUse, SecretValue,
};

use super::node::{ALICE, BOB, Node, config, name};
use crate::{EngineConfig, SessionRequest, UseKind, secret_missing};

const NODE: SecretOwner = SecretOwner::Node;

fn secret_name(name: &str) -> SecretName {
    SecretName::new(name).unwrap()
}

async fn put(node: &Node, owner: SecretOwner, name: &str, value: &str) -> Result<bool, Refusal> {
    let value = SecretValue::new(value.to_owned()).unwrap();
    let put = node.engine.put_secret(owner, secret_name(name), value).await;
    put.map(|put| put.created)
}

async fn value(node: &Node, key: KeyId, name: &str) -> Option<String> {
    let found = node.engine.secret_value(key, &secret_name(name)).await.unwrap();
    found.map(|value| value.expose().to_owned())
}

fn variable(name: &str) -> Option<String> {
    match name {
        "TOKEN" | "SHOAL_KEY" | "ASH_API_KEY" => Some(format!("{name} of the server")),
        "BROKEN" => Some("\0".to_owned()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn secret_of_the_key_comes_before_that_of_the_node_and_the_environment() {
    let node = Node::start(EngineConfig { environment: Some(variable), ..config() }).await;
    assert_eq!(value(&node, ALICE.key, "TOKEN").await.unwrap(), "TOKEN of the server");
    assert_eq!(put(&node, NODE, "TOKEN", "of the node").await, Ok(true));
    assert_eq!(put(&node, SecretOwner::Key(ALICE.key), "TOKEN", "of alice").await, Ok(true));
    assert_eq!(value(&node, ALICE.key, "TOKEN").await.unwrap(), "of alice");
    assert_eq!(value(&node, BOB.key, "TOKEN").await.unwrap(), "of the node");
    assert_eq!(node.engine.secret_counts(), SecretCounts { node: 1, keys: 1 });
    let node = node.kill_and_start().await;
    assert_eq!(node.engine.secret_counts(), SecretCounts { node: 1, keys: 1 });
    assert_eq!(value(&node, ALICE.key, "TOKEN").await.unwrap(), "of alice");
    node.engine.remove_secret(NODE, &secret_name("TOKEN")).await.unwrap();
    assert_eq!(value(&node, BOB.key, "TOKEN").await.unwrap(), "TOKEN of the server");
}

#[tokio::test(start_paused = true)]
async fn variables_of_the_server_are_secrets_only_if_allowed_and_never_its_own() {
    let node = Node::start(EngineConfig { environment: Some(variable), ..config() }).await;
    for name in ["SHOAL_KEY", "ASH_API_KEY", "BROKEN", "OTHER"] {
        assert_eq!(value(&node, ALICE.key, name).await, None, "{name}");
    }
    let node = Node::start(config()).await;
    assert_eq!(value(&node, ALICE.key, "TOKEN").await, None, "not allowed");
    let name = secret_name("TOKEN");
    let refusal = node.engine.needed_secret(ALICE.key, &name).await.unwrap_err();
    assert_eq!(refusal, secret_missing(&name));
    assert!(!refusal.is_retryable() && refusal.cause.contains("TOKEN"), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn secrets_of_one_owner_are_limited_in_number_and_bytes() {
    let node = Node::start(config()).await;
    let owner = SecretOwner::Key(ALICE.key);
    for n in 0..SECRETS_MAX {
        assert_eq!(put(&node, owner, &format!("s{n}"), "x").await, Ok(true));
    }
    let refusal = put(&node, owner, "more", "x").await.unwrap_err();
    assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::QuotaExceeded, false));
    assert!(refusal.cause.contains("256 secrets"), "{refusal}");
    assert_eq!(put(&node, owner, "s0", "replaced").await, Ok(false), "there is room for that");
    assert_eq!(put(&node, SecretOwner::Key(BOB.key), "more", "x").await, Ok(true));

    let large = "x".repeat(65_536);
    for n in 0..16 {
        assert_eq!(put(&node, NODE, &format!("s{n}"), &large).await, Ok(true));
    }
    let refusal = put(&node, NODE, "more", "x").await.unwrap_err();
    assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::QuotaExceeded, false));
    assert!(refusal.cause.contains("1048576 bytes"), "{refusal}");
    assert_eq!(put(&node, NODE, "s3", &large).await, Ok(false), "as many bytes as before");
    node.engine.remove_secret(NODE, &secret_name("s3")).await.unwrap();
    assert_eq!(put(&node, NODE, "more", &large).await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn secrets_end_with_their_key_and_none_is_stored_for_it_later() {
    let node = Node::start(config()).await;
    let key = node.engine.create_key("ci", Role::Use, None).await.unwrap().record.id;
    let owner = SecretOwner::Key(key);
    assert_eq!(put(&node, owner, "a", "1").await, Ok(true));
    assert_eq!(put(&node, NODE, "a", "2").await, Ok(true));
    // A change that is in progress while the key is revoked comes before it or is refused.
    let (late, revoked) = tokio::join!(put(&node, owner, "b", "1"), node.engine.revoke_key(key));
    revoked.unwrap();
    assert!(matches!(late, Ok(true) | Err(_)));
    assert_eq!(node.engine.list_secrets(owner).await.unwrap(), []);
    assert_eq!(node.engine.secret_counts(), SecretCounts { node: 1, keys: 0 });
    let refusal = put(&node, owner, "c", "1").await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Unauthorized);
    let node = node.kill_and_start().await;
    assert_eq!(node.engine.list_secrets(owner).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn session_whose_secret_is_gone_is_refused_by_its_name_before_a_sandbox_is_launched() {
    let node = Node::start(config()).await;
    let owner = SecretOwner::Key(ALICE.key);
    let uses = |name| SecretUse {
        secret: secret_name(name),
        env: Some("TOKEN".to_owned()),
        file: None,
        boundary: None,
    };
    put(&node, owner, "token", "1").await.unwrap();
    let asked =
        SessionRequest { secrets: vec![uses("token")], ..SessionRequest::of(name("default")) };
    let session = node.engine.create_session(ALICE, asked).await.unwrap().id;
    node.engine.stop_session(ALICE, session).await.unwrap();
    node.engine.remove_secret(owner, &secret_name("token")).await.unwrap();
    let launched =
        || node.engine.pools().iter().map(|pool| pool.counters.launch_failed).sum::<u64>();
    for _ in 0..3 {
        let refusal = node.engine.resume_session(ALICE, session).await.unwrap_err();
        assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::SecretMissing, false));
        assert!(refusal.cause.contains("token"), "{refusal}");
    }
    let refusal = node.engine.use_session(ALICE, session, UseKind::Exec, None).await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::SessionStopped, "{refusal}");
    assert_eq!(launched(), 0);
    put(&node, owner, "token", "2").await.unwrap();
    node.engine.resume_session(ALICE, session).await.unwrap();
    // A sandbox that has its value keeps it.
    node.engine.remove_secret(owner, &secret_name("token")).await.unwrap();
    drop(node.engine.use_session(ALICE, session, UseKind::Exec, None).await.unwrap());
    node.engine.resume_session(ALICE, session).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn secret_that_is_replaced_keeps_when_it_was_created() {
    let node = Node::start(config()).await;
    let owner = SecretOwner::Key(ALICE.key);
    put(&node, owner, "a", "1").await.unwrap();
    let first = node.engine.list_secrets(owner).await.unwrap().remove(0);
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    put(&node, owner, "a", "22").await.unwrap();
    let second = node.engine.list_secrets(owner).await.unwrap().remove(0);
    assert_eq!((second.created_at, second.bytes), (first.created_at, 2));
    assert!(second.updated_at > first.updated_at);
    let refusal = node.engine.remove_secret(NODE, &secret_name("a")).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn secret_whose_caller_went_away_is_stored_or_not_but_never_half() {
    for writes in 0..3 {
        let node = Node::start(config()).await;
        let owner = SecretOwner::Key(ALICE.key);
        put(&node, owner, "a", "old").await.unwrap();
        node.store.hang_after(writes);
        let value_of = |text: &str| SecretValue::new(text.to_owned()).unwrap();
        let put = node.engine.put_secret(owner, secret_name("a"), value_of("new"));
        let gone = tokio::time::timeout(std::time::Duration::from_millis(1), put).await;
        let expected = if gone.is_ok() { "new" } else { "old" };
        let node = node.kill_and_start().await;
        assert_eq!(value(&node, ALICE.key, "a").await.unwrap(), expected, "{writes} writes");
    }
}
