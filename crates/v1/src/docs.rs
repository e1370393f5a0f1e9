//! The description of the API, and a page about each error code.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::HeaderValue;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use model::ErrorCode;

use crate::errors;
use web::answer;
use web::app::App;
use web::front::Needs;
use web::operation::{Content, Operation, Route, Verb};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;

const MARKDOWN: &str = "text/markdown; charset=utf-8";

pub(super) fn routes() -> Vec<Route> {
    let document = Operation::new("get_openapi", "This document").answers(
        200,
        "The document",
        [Content("application/json", None)],
    );
    let page = Operation::new("get_error_page", "Explain an error code and its remedy").answers(
        200,
        "A page of text",
        [Content(MARKDOWN, None)],
    );
    vec![
        Route::new(Verb::Get, "/v1/openapi.json", Needs::Read, self::document, document),
        Route::new(
            Verb::Get,
            "/docs/errors/{code}",
            Needs::Public,
            self::page,
            page.refuses(&[ErrorCode::NotFound]),
        ),
    ]
}

async fn document(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    Ok(answer::bytes(StatusCode::OK, Body::from(app.document.clone())))
}

async fn page(NoQuery: NoQuery, Named(code): Named<ErrorCode>) -> Result<Response, Refused> {
    let mut response = Response::new(Body::from(errors::page(code)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MARKDOWN));
    Ok(response)
}
