//! Keys. Only administrators may create and see them.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use model::{ErrorCode, KeyId, Refusal};
use wire::{Key, KeyList, KeyRequest, NewKey};

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
        Route::new(Verb::Get, "/v1/keys", Needs::Admin, self::list, list),
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
    if let Some(Answer::Key(id)) = claim.as_ref().and_then(Claim::answer) {
        let cause = format!(
            "an earlier request with this Idempotency-Key created the key {id}, and its secret is \
             shown only once; if that answer was lost, revoke this key and create another"
        );
        let refusal = Refusal::new(ErrorCode::IdempotencyConflict, cause);
        return Err(Refused::with_field(refusal, "Idempotency-Key"));
    }
    let KeyRequest { name, role, ttl_s } = request.value;
    let most = KeyRequest::TTL_S_MAX;
    if ttl_s.is_some_and(|seconds| seconds == 0 || seconds > most) {
        return Err(Refused::invalid("ttl_s", format!("ttl_s: must be from 1 to {most}")));
    }
    let made = app.engine.create_key(&name, role, ttl_s.map(|seconds| seconds * 1000)).await?;
    let bytes = answer::json_bytes(&NewKey::new(&made.record, made.secret))?;
    if let Some(claim) = claim {
        claim.settle(Answer::Key(made.record.id));
    }
    Ok(answer::bytes(StatusCode::CREATED, Body::from(bytes)))
}

async fn list(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    answer::ok(&KeyList { keys: app.engine.keys().iter().map(Key::from).collect() })
}

async fn revoke(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(id): Named<KeyId>,
) -> Result<Response, Refused> {
    app.engine.revoke_key(id).await?;
    Ok(no_content())
}
