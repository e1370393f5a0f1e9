//! Keys, which are ours: each is a tenant of its own, and what one made is invisible to another.
//! Only a key that may do everything makes and sees others.

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use model::{KeyId, KeyRecord, Role};
use serde_json::{Value, json};

use super::errors::AshError;
use super::fields::At;
use super::{Routes, answer, request_body};
use crate::app::App;
use web::front::{Needs, no_content};

const LABEL_CHARS_MAX: usize = 100;
const LABEL: &str = "ash";
/// The prefix of every key: no other part of it is stored that could be shown.
const KEY_PREFIX: &str = "shoal_";

pub(super) fn routes(routes: &mut Routes) {
    let (all, one) = ("/api/api-keys", "/api/api-keys/{id}");
    let (all_name, one_name) = ("/compat/ash/api/api-keys", "/compat/ash/api/api-keys/{id}");
    routes.add(MethodFilter::GET, all, all_name, Needs::Admin, list);
    routes.add(MethodFilter::POST, all, all_name, Needs::Admin, create);
    routes.add(MethodFilter::DELETE, one, one_name, Needs::Admin, revoke);
}

fn shown(key: &KeyRecord) -> Value {
    json!({
        "id": key.id,
        "label": key.name,
        "keyPrefix": KEY_PREFIX,
        "createdAt": answer::time(key.created_at),
    })
}

async fn list(State(app): State<App>) -> Result<Response, AshError> {
    let keys = app.engine.keys();
    let working = keys.iter().filter(|key| key.revoked_at.is_none());
    Ok(answer::ok(&json!({"keys": working.map(shown).collect::<Vec<_>>()})))
}

async fn create(State(app): State<App>, request: Request) -> Result<Response, AshError> {
    let most = app.settings.json_bytes_max;
    let mut body = request_body::optional(request, &app, most).await?;
    let label = body.text("label", LABEL_CHARS_MAX)?.filter(|label| !label.is_empty());
    body.refuse_rest()?;
    let label = label.as_deref().unwrap_or(LABEL);
    let made = app.engine.create_key(label, Role::Use, None).await?;
    Ok(answer::created(&json!({"id": made.record.id, "key": made.secret})))
}

async fn revoke(State(app): State<App>, At(id): At<String>) -> Result<Response, AshError> {
    let unknown = || AshError::new(404, "API key not found");
    let id: KeyId = id.parse().map_err(|_| unknown())?;
    let works = |key: &KeyRecord| key.id == id && key.revoked_at.is_none();
    if !app.engine.keys().iter().any(works) {
        return Err(unknown());
    }
    app.engine.revoke_key(id).await?;
    Ok(no_content())
}
