//! The Model Context Protocol for sandboxes of a dialect.

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use web::app::App;
use web::front::Admitted;
use web::refused::Refused;
use web::use_target::UseTarget;

/// Tools as `mcp` has them.
pub(crate) struct Mcp;

impl blaxel::SandboxTools for Mcp {
    fn answer<'a>(
        &'a self,
        app: &'a App,
        by: Admitted,
        used: UseTarget,
        request: Request,
    ) -> BoxFuture<'a, Result<Response, Refused>> {
        Box::pin(mcp::serve_inside(app, by, used, request))
    }
}
