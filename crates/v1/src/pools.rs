//! Pools: their contents and sizes.

use axum::extract::State;
use axum::response::Response;
use model::{ErrorCode, TemplateName};
use wire::{PoolList, PoolResize};

use crate::templates::{FORCE, REMOVING, remove, unknown};
use web::answer;
use web::app::App;
use web::body::Json;
use web::front::Needs;
use web::operation::{Operation, Route, Takes, Verb, json};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;

const CHANGING: &[ErrorCode] = &[
    ErrorCode::TemplateUnknown,
    ErrorCode::TemplateInvalid,
    ErrorCode::InvalidArgument,
    ErrorCode::PoolClosed,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
    ErrorCode::DeadlineExceeded,
];

pub(super) fn routes() -> Vec<Route> {
    let the_pool =
        |id, about| Operation::new(id, about).answers(200, "The pool", [json("PoolStats")]);
    let list = Operation::new("list_pools", "All pools").answers(
        200,
        "The pools in the order of their templates",
        [json("PoolList")],
    );
    let get = the_pool("get_pool", "A pool");
    let resize = the_pool("resize_pool", "Change the size and the overflow of a pool");
    let drain = the_pool(
        "drain_pool",
        "Drain a pool: it hands out no sandbox and keeps none idle; leases continue",
    );
    let resume = the_pool("resume_pool", "Resume a drained pool");
    let delete = Operation::new("delete_pool", "Remove a pool with its template").answers(
        204,
        "The pool and its template were removed",
        [],
    );
    let one = "/v1/pools/{template}";
    vec![
        Route::new(Verb::Get, "/v1/pools", Needs::Read, self::list, list),
        Route::new(Verb::Get, one, Needs::Read, read, get.refuses(&[ErrorCode::TemplateUnknown])),
        Route::new(
            Verb::Patch,
            one,
            Needs::Admin,
            self::resize,
            resize.takes(Takes::Json("PoolResize")).refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/pools/{template}/drain",
            Needs::Admin,
            self::drain,
            drain.refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/pools/{template}/resume",
            Needs::Admin,
            self::resume,
            resume.refuses(CHANGING),
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

async fn list(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    answer::ok(&PoolList { pools: app.engine.pools() })
}

async fn read(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    answer::ok(&app.engine.pool(&name).ok_or_else(|| unknown(&name))?)
}

async fn resize(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
    request: Json<PoolResize>,
) -> Result<Response, Refused> {
    let PoolResize { pool_size, max_overflow } = request.value;
    answer::ok(&app.engine.resize_pool(&name, pool_size, max_overflow).await?)
}

async fn drain(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    answer::ok(&app.engine.drain_pool(&name).await?)
}

async fn resume(
    State(app): State<App>,
    NoQuery: NoQuery,
    Named(name): Named<TemplateName>,
) -> Result<Response, Refused> {
    answer::ok(&app.engine.resume_pool(&name).await?)
}
