//! Keys. Only administrators may create and see them.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use model::{ErrorCode, KeyId, KeyRecord, Refusal};
use wire::{Key, KeyChange, KeyList, KeyRequest, NewKey};

use crate::checkouts::ONCE;
use web::answer;
use web::app::App;
use web::body::Json;
use web::front::{By, Needs, no_content};
use web::idempotency::{Answer, Claim};
use web::operation::{Operation, Route, Takes, Verb, json};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;

pub(super) fn routes() -> Vec<Route> {
    let new = Operation::new("create_key", "Create a key; only this answer shows its secret")
        .answers(201, "The key with its secret", [json("NewKey")]);
    let list = Operation::new("list_keys", "List all keys, including expired and revoked ones")
        .answers(200, "The keys, without their secrets", [json("KeyList")]);
    let change = Operation::new("change_key", "Change the limits of a key").answers(
        200,
        "The key with its limits and what it uses",
        [json("Key")],
    );
    let revoke = Operation::new("revoke_key", "Revoke a key, at once and for ever").answers(
        204,
        "The key is revoked",
        [],
    );
    vec![
        Route::new(
            Verb::Post,
            "/v1/keys",
            Needs::Admin,
            create,
            new.takes(Takes::Json("KeyRequest")).headers([ONCE]).refuses(&[
                ErrorCode::InvalidArgument,
                ErrorCode::IdempotencyConflict,
                ErrorCode::LimitReached,
                ErrorCode::StoreUnavailable,
                ErrorCode::DeadlineExceeded,
            ]),
        ),
        Route::new(
            Verb::Get,
            "/v1/keys",
            Needs::Admin,
            self::list,
            list.refuses(&[ErrorCode::StoreUnavailable]),
        ),
        Route::new(
            Verb::Patch,
            "/v1/keys/{id}",
            Needs::Admin,
            self::change,
            change.takes(Takes::Json("KeyChange")).refuses(&[
                ErrorCode::InvalidArgument,
                ErrorCode::NotFound,
                ErrorCode::StoreUnavailable,
            ]),
        ),
        Route::new(
            Verb::Delete,
            "/v1/keys/{id}",
            Needs::Admin,
            self::revoke,
            revoke.refuses(&[ErrorCode::NotFound, ErrorCode::StoreUnavailable]),
        ),
    ]
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    headers: HeaderMap,
    request: Json<KeyRequest>,
) -> Result<Response, Refused> {
    let claim = app.idempotency.claim(&headers, caller.key, "/v1/keys", &request.bytes).await?;
    let id = claim.as_ref().map(Claim::created_key);
    if let Some(id) = id.filter(|id| app.engine.keys().iter().any(|key| key.id == *id)) {
        let cause = format!(
            "an earlier request with this Idempotency-Key created the key {id}, and its secret is \
             shown only once; if that answer was lost, revoke this key and create another"
        );
        let refusal = Refusal::new(ErrorCode::IdempotencyConflict, cause);
        return Err(Refused::with_field(refusal, "Idempotency-Key"));
    }
    let KeyRequest { name, role, ttl_s, limits } = request.value;
    let most = KeyRequest::TTL_S_MAX;
    if ttl_s.is_some_and(|seconds| seconds == 0 || seconds > most) {
        return Err(Refused::invalid("ttl_s", format!("ttl_s: must be from 1 to {most}")));
    }
    let ttl_ms = ttl_s.map(|seconds| seconds * 1000);
    let made = app.engine.create_limited_key(id, &name, role, ttl_ms, limits).await?;
    let bytes = answer::json_bytes(&NewKey::new(&made.record, made.secret))?;
    if let Some(claim) = claim {
        claim.settle(Answer::Key(made.record.id));
    }
    Ok(answer::bytes(StatusCode::CREATED, Body::from(bytes)))
}

async fn list(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    let events = app.engine.event_counts().await?;
    let keys = app.engine.keys();
    answer::ok(&KeyList { keys: keys.iter().map(|record| shown(&app, record, &events)).collect() })
}

fn shown(app: &App, record: &KeyRecord, events: &BTreeMap<KeyId, u64>) -> Key {
    let stored = events.get(&record.id).copied().unwrap_or_default();
    Key::new(record, app.limits.of(record.id), app.used_by(record.id, stored))
}

async fn change(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(id): Named<KeyId>,
    request: Json<KeyChange>,
) -> Result<Response, Refused> {
    let Some(record) = app.engine.keys().into_iter().find(|key| key.id == id) else {
        return Err(Refused::new(ErrorCode::NotFound, format!("no key {id} is known")));
    };
    let limits = request.value.limits.applied_to(record.limits);
    let record = app.engine.limit_key(id, limits).await?;
    answer::ok(&shown(&app, &record, &app.engine.event_counts().await?))
}

async fn revoke(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(id): Named<KeyId>,
) -> Result<Response, Refused> {
    app.engine.revoke_key(id).await?;
    Ok(no_content())
}
