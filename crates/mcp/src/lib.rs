//! The Model Context Protocol: the server as tools for models, and each sandbox as tools of its
//! own. The tools of the server are the routes of `/v1`, described by the same list; those of a
//! sandbox have the names that clients of such sandboxes know. This crate must decide nothing, and
//! must allow a key nothing that the routes do not.

mod created;
mod edit;
mod inside;
mod node;
mod origin;
mod route_tool;
mod schemas;
mod server;
mod text_file;
mod tool;
mod transport;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use model::{SandboxId, SessionId};

use self::node::Node;
use web::app::App;
use web::dialect;
use web::front::{Admitted, Front, Needs};
use web::operation::Route;
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;
use web::use_target::UseTarget;

const SERVER: &str = "/mcp";
const SANDBOX: &str = "/v1/sandboxes/{id}/mcp";
const SESSION: &str = "/v1/sessions/{id}/mcp";

/// Where the protocol is spoken: for the server, whose tools are the routes that the document
/// describes, and for each sandbox. What a tool needs of a key is checked when it is called, so
/// here any key will do.
pub fn router(app: &App, routes: Vec<Route>, document: &str) -> Router {
    let front = |route| Front {
        app: app.clone(),
        route,
        needs: Needs::Read,
        takes_body: true,
        dialect: dialect::own(),
    };
    let node = Node::new(app, routes, document);
    let of_server = move |State(app): State<App>, by: Admitted, NoQuery: NoQuery, request| {
        let node = node.clone();
        async move { transport::serve(&app, by, Arc::new(node), request).await }
    };
    Router::new()
        .route(SERVER, post(of_server).route_layer(front(SERVER)))
        .route(SANDBOX, post(of_sandbox).route_layer(front(SANDBOX)))
        .route(SESSION, post(of_session).route_layer(front(SESSION)))
        .with_state(app.clone())
}

async fn of_sandbox(
    State(app): State<App>,
    by: Admitted,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    request: Request,
) -> Result<Response, Refused> {
    serve_inside(&app, by, UseTarget::Sandbox(id), request).await
}

async fn of_session(
    State(app): State<App>,
    by: Admitted,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
    request: Request,
) -> Result<Response, Refused> {
    serve_inside(&app, by, UseTarget::Session(id), request).await
}

/// Answers one message about one sandbox, or about whatever sandbox a session has.
pub async fn serve_inside(
    app: &App,
    by: Admitted,
    inside: UseTarget,
    request: Request,
) -> Result<Response, Refused> {
    inside::check(inside, app, by.caller).await?;
    transport::serve(app, by, Arc::new(inside), request).await
}
