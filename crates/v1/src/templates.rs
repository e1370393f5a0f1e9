//! Templates. Any key may read them; only administrators may change them.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use engine::Put;
use http::{HeaderMap, StatusCode};
use model::{ErrorCode, Template, TemplateName};
use wire::{EffectiveTemplate, TemplateList};

use crate::checkouts::{ONCE, replayed};
use web::answer;
use web::app::App;
use web::body::Json;
use web::front::{By, Needs, no_content};
use web::idempotency::{Answer, Claim};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::{NoQuery, Query};
use web::refused::Refused;

pub(super) const FORCE: Param =
    Param::new("force", Kind::Flag, "Also end sandboxes that are checked out or being started");

const PUTTING: &[ErrorCode] = &[
    ErrorCode::TemplateUnknown,
    ErrorCode::TemplateInvalid,
    ErrorCode::TemplateInUse,
    ErrorCode::InvalidArgument,
    ErrorCode::IdConflict,
    ErrorCode::IdempotencyConflict,
    ErrorCode::Unsupported,
    ErrorCode::PoolClosed,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
    ErrorCode::DeadlineExceeded,
];

pub(super) const REMOVING: &[ErrorCode] = &[
    ErrorCode::TemplateUnknown,
    ErrorCode::TemplateInUse,
    ErrorCode::PoolClosed,
    ErrorCode::Aborted,
    ErrorCode::DeadlineExceeded,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

pub(super) fn routes() -> Vec<Route> {
    let new = Operation::new("create_template", "Create a template and its pool").answers(
        201,
        "The template with every default",
        [json("Template")],
    );
    let put =
        Operation::new("put_template", "Create a template, or replace the one with this name")
            .answers(200, "The template was replaced", [json("Template")])
            .answers(201, "The template was created", [json("Template")]);
    let list = Operation::new("list_templates", "All templates").answers(
        200,
        "The templates in the order of their names, with what this node decided for settings they leave open",
        [json("TemplateList")],
    );
    let get = Operation::new("get_template", "A template").answers(
        200,
        "The template",
        [json("Template")],
    );
    let delete = Operation::new("delete_template", "Remove a template and its pool").answers(
        204,
        "The template and its pool were removed",
        [],
    );
    let effective =
        Operation::new("get_effective_template", "What this node decided for a template").answers(
            200,
            "The values in use where the template leaves a setting open",
            [json("EffectiveTemplate")],
        );
    let (all, one) = ("/v1/templates", "/v1/templates/{name}");
    let unknown = &[ErrorCode::TemplateUnknown];
    let body = Takes::Json("Template");
    vec![
        Route::new(
            Verb::Post,
            all,
            Needs::Admin,
            create,
            new.takes(body).headers([ONCE]).refuses(PUTTING),
        ),
        Route::new(Verb::Get, all, Needs::Read, self::list, list),
        Route::new(Verb::Put, one, Needs::Admin, self::put, put.takes(body).refuses(PUTTING)),
        Route::new(Verb::Get, one, Needs::Read, read, get.refuses(unknown)),
        Route::new(
            Verb::Get,
            "/v1/templates/{name}/effective",
            Needs::Read,
            read_effective,
            effective.refuses(unknown),
        ),
        Route::new(
            Verb::Delete,
            one,
            Needs::Admin,
            remove,
            delete.query([FORCE]).refuses(REMOVING),
        ),
    ]
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    headers: HeaderMap,
    request: Json<Template>,
) -> Result<Response, Refused> {
    let claim = app.idempotency.claim(&headers, caller.key, "/v1/templates", &request.bytes);
    let claim = claim.await?;
    if let Some(Answer::Said(status, bytes)) = claim.as_ref().and_then(Claim::answer) {
        let mut response = answer::bytes(status, Body::from(bytes));
        replayed(&mut response);
        return Ok(response);
    }
    let template = request.value;
    if app.engine.template(&template.name).is_some() {
        let cause = format!("the template \"{}\" already exists; PUT replaces it", template.name);
        return Err(Refused::new(ErrorCode::IdConflict, cause));
    }
    let bytes = answer::json_bytes(&template)?;
    app.engine.put_template(template).await?;
    if let Some(claim) = claim {
        claim.settle(Answer::Said(StatusCode::CREATED, bytes.clone()));
    }
    Ok(answer::bytes(StatusCode::CREATED, Body::from(bytes)))
}

async fn put(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
    request: Json<Template>,
) -> Result<Response, Refused> {
    let template = request.value;
    if template.name != name {
        let cause = format!("name: is {} in the body, but {name} in the path", template.name);
        return Err(Refused::invalid("name", cause));
    }
    let bytes = answer::json_bytes(&template)?;
    let status = match app.engine.put_template(template).await? {
        Put::Created => StatusCode::CREATED,
        Put::Replaced => StatusCode::OK,
    };
    Ok(answer::bytes(status, Body::from(bytes)))
}

async fn list(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    let all = app.engine.templates();
    let effective = all.iter().map(|template| effective(&app, template)).collect();
    let templates = all.iter().map(|template| (**template).clone()).collect();
    answer::ok(&TemplateList { templates, effective })
}

async fn read(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    let template = app.engine.template(&name).ok_or_else(|| unknown(&name))?;
    answer::ok(&*template)
}

/// Apart from the template itself, so that what was read can be changed and put back.
async fn read_effective(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    let template = app.engine.template(&name).ok_or_else(|| unknown(&name))?;
    answer::ok(&effective(&app, &template))
}

fn effective(app: &App, template: &Template) -> EffectiveTemplate {
    EffectiveTemplate {
        template: template.name.clone(),
        workspace: app.engine.placed(template).ok(),
        acquire_min_remaining_ttl_ms: template.pool.acquire_margin_ms(),
    }
}

pub(super) async fn remove(
    State(app): State<App>,
    mut query: Query,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    let force = query.flag("force")?;
    query.done()?;
    app.engine.destroy_pool(&name, force).await?;
    Ok(no_content())
}

pub(super) fn unknown(name: &TemplateName) -> Refused {
    Refused::new(ErrorCode::TemplateUnknown, format!("the template \"{name}\" does not exist"))
}
