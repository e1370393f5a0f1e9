//! Secrets: each key has its own, and administrators those of the node. Values come in and never go
//! out: no answer, no refusal and no line of the log has one.

use axum::extract::{Request, State};
use axum::response::Response;
use engine::Caller;
use http::StatusCode;
use model::{ErrorCode, Role, SecretName, SecretOwner, SecretValue};
use wire::{Secret, SecretList, SecretRequest, SecretScope};
use zeroize::Zeroize as _;

use web::answer;
use web::app::App;
use web::body::json_bytes;
use web::front::{By, Needs, no_content};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::Query;
use web::refused::Refused;

const SCOPE: Param = Param::new(
    "scope",
    Kind::OneOf(SecretScope::WORDS),
    "Whose: `key`, the caller's own, or `node`, for administrators",
);

pub(super) fn routes() -> Vec<Route> {
    let put = Operation::new("put_secret", "Store a secret, in place of the one of this name")
        .takes(Takes::Json("SecretRequest"))
        .answers(200, "It was replaced; the answer is without its value", [json("Secret")])
        .answers(201, "It was created; the answer is without its value", [json("Secret")]);
    let list = Operation::new("list_secrets", "List secrets, without their values").answers(
        200,
        "The secrets in the order of their names",
        [json("SecretList")],
    );
    let delete =
        Operation::new("delete_secret", "Remove a secret; sandboxes that have its value keep it")
            .answers(204, "It is removed", []);
    let (all, one) = ("/v1/secrets", "/v1/secrets/{secret}");
    vec![
        Route::new(
            Verb::Get,
            all,
            Needs::Read,
            self::list,
            list.query([SCOPE]).refuses(&[ErrorCode::StoreUnavailable]),
        ),
        Route::new(
            Verb::Put,
            one,
            Needs::Use,
            self::put,
            put.query([SCOPE]).refuses(&[ErrorCode::InvalidArgument, ErrorCode::StoreUnavailable]),
        ),
        Route::new(
            Verb::Delete,
            one,
            Needs::Use,
            remove,
            delete.query([SCOPE]).refuses(&[
                ErrorCode::InvalidArgument,
                ErrorCode::NotFound,
                ErrorCode::StoreUnavailable,
            ]),
        ),
    ]
}

/// Whose secrets a request means.
fn owner(caller: Caller, mut query: Query) -> Result<SecretOwner, Refused> {
    let scope = query.text("scope")?;
    query.done()?;
    match scope.as_deref() {
        None | Some("key") => Ok(SecretOwner::Key(caller.key)),
        Some("node") if caller.role == Role::Admin => Ok(SecretOwner::Node),
        Some("node") => {
            let cause = format!(
                "a key with the role {} may neither see nor change the secrets of the node",
                caller.role
            );
            Err(Refused::new(ErrorCode::Forbidden, cause))
        }
        Some(_) => Err(Refused::bad("scope", "`scope` must be `key` or `node`")),
    }
}

async fn list(State(app): State<App>, By(caller): By, query: Query) -> Result<Response, Refused> {
    let owner = owner(caller, query)?;
    let secrets = app.engine.list_secrets(owner).await?;
    answer::ok(&SecretList { secrets: secrets.into_iter().map(Secret::from).collect() })
}

async fn put(
    State(app): State<App>,
    By(caller): By,
    Named(name): Named<SecretName>,
    query: Query,
    request: Request,
) -> Result<Response, Refused> {
    let owner = owner(caller, query)?;
    let value = value(request, &app).await?;
    let put = app.engine.put_secret(owner, name, value).await?;
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    answer::json(status, &Secret::from(put.info))
}

/// The value in a body. The usual errors of JSON quote what they found, so they are not used here.
async fn value(request: Request, app: &App) -> Result<SecretValue, Refused> {
    let (bytes, _share) = json_bytes(request, app, app.settings.json_bytes_max).await?;
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    let parsed = serde_json::from_slice::<SecretRequest>(&bytes).ok().filter(|_| is_object);
    if let Ok(mut body) = bytes.try_into_mut() {
        body.as_mut().zeroize();
    }
    let Some(SecretRequest { value }) = parsed else {
        let cause = "the body must be a JSON object with one field, `value`, which is a string";
        return Err(Refused::bad("value", cause));
    };
    SecretValue::new(value).map_err(|problem| Refused::invalid("value", problem))
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    Named(name): Named<SecretName>,
    query: Query,
) -> Result<Response, Refused> {
    app.engine.remove_secret(owner(caller, query)?, &name).await?;
    Ok(no_content())
}
