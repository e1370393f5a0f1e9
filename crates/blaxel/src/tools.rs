//! The sandbox as tools for models. The API gives the dialect an implementation of the protocol;
//! the dialect only says for which sandbox a message is.

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use web::app::App;
use web::front::Admitted;
use web::refused::Refused;
use web::use_target::UseTarget;

/// Answers messages of the Model Context Protocol about one sandbox.
pub trait SandboxTools: Send + Sync + 'static {
    /// Answers one message.
    fn answer<'a>(
        &'a self,
        app: &'a App,
        by: Admitted,
        used: UseTarget,
        request: Request,
    ) -> BoxFuture<'a, Result<Response, Refused>>;
}

/// No tools at all.
#[cfg(test)]
pub(crate) struct None;

#[cfg(test)]
impl SandboxTools for None {
    fn answer<'a>(
        &'a self,
        _: &'a App,
        _: Admitted,
        _: UseTarget,
        _: Request,
    ) -> BoxFuture<'a, Result<Response, Refused>> {
        let refused = Refused::new(model::ErrorCode::NotFound, "there are no tools in this test");
        Box::pin(std::future::ready(Err(refused)))
    }
}
