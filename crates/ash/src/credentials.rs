//! Credentials: keys of model vendors that sessions get as variables. Each is a secret of its key,
//! sealed like all others, and no answer has its value. What Ash shows of one is stored with it.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::Caller;
use model::secret::SECRET_BYTES_MAX;
use model::{ErrorCode, SecretInfo, SecretName, SecretOwner, SecretValue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agents::fresh_id;
use super::errors::AshError;
use super::fields::{At, Fields};
use super::{Routes, answer, request_body};
use crate::app::App;
use web::front::{By, Needs, no_content};

/// What the secrets of credentials are called, before their ids.
const PREFIX: &str = "ash-credential.";
const LABEL_CHARS_MAX: usize = 255;
const TYPES: &[&str] = &["anthropic", "openai", "bedrock", "custom"];

pub(super) fn routes(routes: &mut Routes) {
    let (all, one) = ("/api/credentials", "/api/credentials/{id}");
    let (all_name, one_name) = ("/compat/ash/api/credentials", "/compat/ash/api/credentials/{id}");
    routes.add(MethodFilter::GET, all, all_name, Needs::Read, list);
    routes.add(MethodFilter::POST, all, all_name, Needs::Use, create);
    routes.add(MethodFilter::DELETE, one, one_name, Needs::Use, remove);
}

/// The value of the secret.
#[derive(Serialize, Deserialize)]
struct Credential {
    r#type: String,
    label: String,
    key: String,
}

/// The key of a credential for Bedrock.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bedrock {
    access_key_id: String,
    secret_access_key: String,
    region: String,
    session_token: Option<String>,
}

impl Credential {
    fn of(mut body: Fields) -> Result<Self, AshError> {
        let Some(kind) = body.one_of("type", TYPES)? else {
            return Err(AshError::invalid("body must have required property 'type'"));
        };
        let key = body.required_text("key", SECRET_BYTES_MAX)?;
        let label = body.text("label", LABEL_CHARS_MAX)?.unwrap_or_default();
        body.refuse_rest()?;
        let read = Self { r#type: kind.to_owned(), label, key };
        if read.key.is_empty() || read.key.contains('\0') || read.variables().is_none() {
            return Err(AshError::new(400, "body/key is no key of this type"));
        }
        Ok(read)
    }

    fn shown(&self, info: &SecretInfo) -> Value {
        json!({
            "id": id_of(info),
            "type": self.r#type,
            "label": self.label,
            "active": true,
            "createdAt": answer::time(info.created_at),
        })
    }

    /// The variables that a session gets; none if the key does not fit its type.
    fn variables(&self) -> Option<Vec<(&'static str, String)>> {
        let one = |name| Some(vec![(name, self.key.clone())]);
        match &*self.r#type {
            "anthropic" => one("ANTHROPIC_API_KEY"),
            "openai" => one("OPENAI_API_KEY"),
            "custom" => one("ASH_CUSTOM_API_KEY"),
            "bedrock" => {
                let key: Bedrock = serde_json::from_str(&self.key).ok()?;
                let mut all = vec![
                    ("CLAUDE_CODE_USE_BEDROCK", "1".to_owned()),
                    ("AWS_ACCESS_KEY_ID", key.access_key_id),
                    ("AWS_SECRET_ACCESS_KEY", key.secret_access_key),
                    ("AWS_REGION", key.region),
                ];
                all.extend(key.session_token.map(|token| ("AWS_SESSION_TOKEN", token)));
                Some(all)
            }
            _ => None,
        }
    }
}

fn id_of(info: &SecretInfo) -> &str {
    info.name.as_str().strip_prefix(PREFIX).unwrap_or_default()
}

fn secret_name(id: &str) -> Result<SecretName, &'static str> {
    SecretName::new(&format!("{PREFIX}{id}"))
}

async fn read(
    app: &App,
    caller: Caller,
    name: &SecretName,
) -> Result<Option<Credential>, AshError> {
    let value = app.engine.secret_value(caller.key, name).await?;
    // A secret of this name that was stored by other means is no credential.
    Ok(value.and_then(|value| serde_json::from_str(value.expose()).ok()))
}

/// The variables of a credential of the caller.
pub(super) async fn variables(
    app: &App,
    caller: Caller,
    id: &str,
) -> Result<BTreeMap<String, String>, AshError> {
    let found = match secret_name(id) {
        Ok(name) => read(app, caller, &name).await?,
        Err(_) => None,
    };
    let variables = found.and_then(|credential| credential.variables());
    let unknown = || AshError::new(400, "Invalid or inaccessible credential");
    let variables = variables.ok_or_else(unknown)?;
    Ok(variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    request: Request,
) -> Result<Response, AshError> {
    let most = app.settings.json_bytes_max;
    let read = request_body::read(request, &app, most, Credential::of).await?;
    let credential = read.taken;
    let failed = |problem: &str| AshError::new(400, problem.to_owned());
    let name = secret_name(&fresh_id()?).map_err(failed)?;
    let text = serde_json::to_string(&credential);
    let text = text.map_err(|_| failed("body/key cannot be stored"))?;
    let value = SecretValue::new(text).map_err(failed)?;
    let put = app.engine.put_secret(SecretOwner::Key(caller.key), name, value).await?;
    Ok(answer::created(&json!({"credential": credential.shown(&put.info)})))
}

async fn list(State(app): State<App>, By(caller): By) -> Result<Response, AshError> {
    let mut found = Vec::new();
    for info in app.engine.list_secrets(SecretOwner::Key(caller.key)).await? {
        if info.name.as_str().starts_with(PREFIX)
            && let Some(credential) = read(&app, caller, &info.name).await?
        {
            let mut shown = credential.shown(&info);
            // When it was last used is not stored.
            shown["lastUsedAt"] = Value::Null;
            found.push((info.created_at, shown));
        }
    }
    found.sort_by_key(|(created_at, _)| *created_at);
    let found: Vec<_> = found.into_iter().map(|(_, shown)| shown).collect();
    Ok(answer::ok(&json!({"credentials": found})))
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let unknown = || AshError::new(404, "Credential not found");
    let name = secret_name(&id).map_err(|_| unknown())?;
    match app.engine.remove_secret(SecretOwner::Key(caller.key), &name).await {
        Ok(()) => Ok(no_content()),
        Err(refusal) if refusal.code == ErrorCode::NotFound => Err(unknown()),
        Err(refusal) => Err(refusal.into()),
    }
}
