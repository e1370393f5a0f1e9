//! Secrets: put, replaced, found and removed; gone with their key; never lost by a crash.

use model::{
    KeyId, SecretCounts, SecretInfo, SecretName, SecretOwner, SecretRecord, SecretValue, Wall,
};

use super::cancellation::cut;
use super::fixtures::key;
use super::{RETENTION, Subject, reopened};
use crate::contract::Store;
use crate::error::{StoreError, StoreErrorCode};

fn of_key(key: u8) -> SecretOwner {
    SecretOwner::Key(super::fixtures::key_id(key))
}

fn secret_name(name: &str) -> SecretName {
    SecretName::new(name).expect("a name")
}

fn secret(owner: SecretOwner, name: &str, value: &str) -> SecretRecord {
    let (bytes, created_at) = (value.len() as u64, Wall(3));
    let (name, updated_at) = (secret_name(name), Wall(3 + bytes));
    let info = SecretInfo { owner, name, bytes, created_at, updated_at };
    SecretRecord { info, value: SecretValue::new(value.to_owned()).expect("a value") }
}

async fn put(store: &dyn Store, owner: SecretOwner, name: &str, value: &str) {
    store.put_secret(&secret(owner, name, value)).await.expect("written");
}

async fn value(store: &dyn Store, owner: SecretOwner, name: &str) -> Option<String> {
    let found = store.secret(owner, &secret_name(name)).await.expect("read");
    found.map(|secret| secret.value.expose().to_owned())
}

async fn names(store: &dyn Store, owner: SecretOwner) -> Vec<String> {
    let found = store.secrets(owner).await.expect("read");
    found.iter().map(|info| info.name.to_string()).collect()
}

pub(super) async fn secrets_are_put_replaced_found_and_removed(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let (node, one, nil) = (SecretOwner::Node, of_key(1), SecretOwner::Key(KeyId::NIL));
    assert_eq!(store.secrets(node).await, Ok(Vec::new()));
    assert_eq!(store.secret_counts().await, Ok(SecretCounts::default()));
    for (owner, name, value) in [
        (one, "b", "1"),
        (one, "a", "2ü"),
        (one, "B", "3"),
        (node, "a", "of the node"),
        (nil, "a", "of the key without a name"),
        (one, "b", "replaced"),
    ] {
        put(&*store, owner, name, value).await;
    }
    let store = reopened(on, store).await;
    let expected = [("B", "3"), ("a", "2ü"), ("b", "replaced")];
    let infos = expected.map(|(name, value)| secret(one, name, value).info);
    assert_eq!(store.secrets(one).await.as_deref(), Ok(&infos[..]), "by name");
    for (name, value) in expected {
        let found = store.secret(one, &secret_name(name)).await;
        assert_eq!(found, Ok(Some(secret(one, name, value))));
    }
    assert_eq!(value(&*store, node, "a").await.as_deref(), Some("of the node"));
    assert_eq!(value(&*store, nil, "a").await.as_deref(), Some("of the key without a name"));
    assert_eq!(value(&*store, of_key(2), "a").await, None, "another key has none");
    assert_eq!(value(&*store, node, "b").await, None, "nor has the node");
    assert_eq!(store.secret_counts().await, Ok(SecretCounts { node: 1, keys: 4 }));
    assert_eq!(store.remove_secret(one, &secret_name("b")).await, Ok(true));
    assert_eq!(store.remove_secret(one, &secret_name("b")).await, Ok(false));
    assert_eq!(store.remove_secret(node, &secret_name("b")).await, Ok(false));
    let store = reopened(on, store).await;
    assert_eq!(names(&*store, one).await, ["B", "a"]);
    assert_eq!(store.secret_counts().await, Ok(SecretCounts { node: 1, keys: 3 }));
}

pub(super) async fn secrets_of_a_revoked_key_are_gone_with_it(on: &dyn Subject) {
    let store = on.open(RETENTION);
    for owner in [of_key(1), of_key(2), SecretOwner::Node] {
        put(&*store, owner, "a", "hunter2").await;
        put(&*store, owner, "b", "hunter2").await;
    }
    let valid = model::KeyRecord { revoked_at: None, ..key(1, 1) };
    store.put_key(&valid).await.expect("written");
    assert_eq!(names(&*store, of_key(1)).await, ["a", "b"], "a valid key keeps them");
    let revoked = model::KeyRecord { revoked_at: Some(Wall(9)), ..valid };
    store.put_key(&revoked).await.expect("written");
    // It is not closed: the next opener counts as a start after `kill -9`.
    drop(store);
    let store = on.open(RETENTION);
    assert_eq!(store.keys().await, Ok(vec![revoked]));
    assert_eq!(names(&*store, of_key(1)).await, Vec::<String>::new());
    assert_eq!(names(&*store, of_key(2)).await, ["a", "b"]);
    assert_eq!(names(&*store, SecretOwner::Node).await, ["a", "b"]);
}

pub(super) async fn secrets_survive_a_crash_at_any_step(on: &dyn Subject) {
    let owner = of_key(1);
    for step in 0..12_u8 {
        let store = on.open(RETENTION);
        let before = (step > 0).then(|| (step - 1).to_string());
        assert_eq!(value(&*store, owner, "last").await, before);
        put(&*store, owner, "last", &step.to_string()).await;
        put(&*store, owner, &format!("s{step:02}"), "x").await;
        if step % 3 == 2 {
            let gone = secret_name(&format!("s{:02}", step - 1));
            assert_eq!(store.remove_secret(owner, &gone).await, Ok(true));
        }
        drop(store);
    }
    let store = on.open(RETENTION);
    let left = ["last", "s00", "s02", "s03", "s05", "s06", "s08", "s09", "s11"];
    assert_eq!(names(&*store, owner).await, left);
}

pub(super) async fn dropped_writes_of_secrets_are_whole_or_absent(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let owner = SecretOwner::Node;
    put(&*store, owner, "a", "old").await;
    for polls in 0..20 {
        let new = secret(owner, "a", "new");
        // Whether it was written in time is not known, and does not matter.
        let _ = cut(polls, store.put_secret(&new)).await;
        let now = value(&*store, owner, "a").await;
        assert!(matches!(now.as_deref(), Some("old" | "new")), "{now:?}");
    }
    put(&*store, owner, "a", "last").await;
    assert_eq!(value(&*reopened(on, store).await, owner, "a").await.as_deref(), Some("last"));
}

fn code<T>(result: Result<T, StoreError>) -> Option<StoreErrorCode> {
    result.err().map(|error| error.code)
}

pub(super) async fn closed_store_refuses_secrets(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let one = secret(SecretOwner::Node, "a", "1");
    store.put_secret(&one).await.expect("written");
    store.close().await.expect("closed");
    let (closed, name) = (Some(StoreErrorCode::Closed), secret_name("a"));
    assert_eq!(code(store.secrets(SecretOwner::Node).await), closed);
    assert_eq!(code(store.secret(SecretOwner::Node, &name).await), closed);
    assert_eq!(code(store.put_secret(&one).await), closed);
    assert_eq!(code(store.remove_secret(SecretOwner::Node, &name).await), closed);
    assert_eq!(code(store.secret_counts().await), closed);
    let store = on.open(RETENTION);
    assert_eq!(store.secret(SecretOwner::Node, &name).await, Ok(Some(one)));
}
