//! The request log: one line and one metric per request. The line has what the path names, the
//! error code of a refusal and, for failures of the server itself, the cause. It must never have
//! queries, bodies, environments, secrets of keys or causes that quote the client.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Method, Uri};
use model::{ErrorCode, KeyId, Refusal};
use tokio::time::Instant;
use tracing::Level;

use crate::account::Payer;
use crate::app::{App, InProgress};
use crate::dialect::Dialect;
use crate::front::{OfInside, RouteName};
use crate::named_in_path::{self, NamedInPath};
use crate::refused::Refused;
use crate::request_id::X_REQUEST_ID;

/// What the log shows of a refusal. A dialect that writes its own errors puts it into the
/// extensions of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRefusal {
    /// The error code.
    pub code: ErrorCode,
    /// The cause, if the server itself failed.
    pub cause: Option<String>,
    /// The tool that refused, if a tool was called: its refusals are answered with status 200.
    pub tool: Option<String>,
}

impl LoggedRefusal {
    /// With the cause only if the server itself failed: other causes may quote the client.
    pub fn new(code: ErrorCode, cause: &str) -> Self {
        let is_ours = matches!(
            code,
            ErrorCode::Internal | ErrorCode::PersistFailed | ErrorCode::StoreUnavailable
        );
        Self { code, cause: is_ours.then(|| cause.to_owned()), tool: None }
    }

    /// The same, of a tool of this name.
    #[must_use]
    pub fn of_tool(self, name: &str) -> Self {
        Self { tool: Some(name.to_owned()), ..self }
    }

    /// For an error of a dialect that has a status and no code; none if the status fits no code.
    pub fn of_status(status: u16, cause: &str) -> Option<Self> {
        let code = match status {
            400 => ErrorCode::BadRequest,
            401 => ErrorCode::Unauthorized,
            403 => ErrorCode::Forbidden,
            404 => ErrorCode::NotFound,
            405 => ErrorCode::MethodNotAllowed,
            413 => ErrorCode::TooLarge,
            422 => ErrorCode::InvalidArgument,
            500 => ErrorCode::Internal,
            _ => return None,
        };
        Some(Self::new(code, cause))
    }
}

impl From<&Refusal> for LoggedRefusal {
    fn from(refusal: &Refusal) -> Self {
        Self::new(refusal.code, &refusal.cause)
    }
}

/// A request in the log and the metrics. If it is dropped without an answer, the client
/// disconnected.
pub(crate) struct RequestRecord {
    pub(crate) app: App,
    pub(crate) route: &'static str,
    pub(crate) uri: Uri,
    /// The name of its sandbox in a dialect.
    pub(crate) sandbox_name: Option<String>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) method: &'static str,
    pub(crate) id: HeaderValue,
    pub(crate) key: Option<KeyId>,
    /// Who pays for what it holds.
    pub(crate) payer: Option<Payer>,
    pub(crate) began: Instant,
    pub(crate) answered: bool,
    pub(crate) refusal: Option<LoggedRefusal>,
    pub(crate) in_progress: Option<InProgress>,
}

impl RequestRecord {
    fn id(&self) -> &str {
        self.id.to_str().unwrap_or_default()
    }

    /// Completes an answer, then logs and counts the request.
    pub(crate) fn finish(&mut self, response: &mut Response) {
        if let Some(refused) = response.extensions_mut().remove::<Refused>() {
            self.refusal = Some((&refused.refusal).into());
            self.dialect.refuse(refused, response, self.id());
        }
        let of_dialect = response.extensions_mut().remove::<LoggedRefusal>();
        self.refusal = self.refusal.take().or(of_dialect);
        if let Some(RouteName { route, sandbox }) = response.extensions_mut().remove() {
            self.route = route;
            self.sandbox_name = sandbox;
        }
        if response.extensions_mut().remove::<OfInside>().is_none() {
            self.dialect.add_default_headers(response);
        }
        response.headers_mut().insert(X_REQUEST_ID, self.id.clone());
        self.answered = true;
        self.log(response.status().as_u16());
    }

    fn log(&self, status: u16) {
        let took = self.began.elapsed();
        self.app.metrics.answered(self.route, self.method, status, took);
        let is_ours = self.refusal.as_ref().is_some_and(|refusal| refusal.cause.is_some());
        match status {
            500.. => self.write(Level::WARN, status, took),
            _ if is_ours => self.write(Level::WARN, status, took),
            400.. => self.write(Level::INFO, status, took),
            _ if self.refusal.is_some() => self.write(Level::INFO, status, took),
            // Most requests end here, and most servers do not log at this level.
            _ if tracing::enabled!(Level::DEBUG) => self.write(Level::DEBUG, status, took),
            _ => {}
        }
    }

    fn write(&self, level: Level, status: u16, took: Duration) {
        let mut named = NamedInPath::read(self.route, self.uri.path());
        named.sandbox =
            named.sandbox.or_else(|| named_in_path::name(self.sandbox_name.as_deref()?));
        // An hour is long enough: an answer that is a stream counts until it begins.
        let took_ms = f64::from(u32::try_from(took.as_micros()).unwrap_or(u32::MAX)) / 1000.0;
        let code = self.refusal.as_ref().map(|refusal| refusal.code);
        let message = match code {
            Some(ErrorCode::ClientGone) => "the client of a request disconnected",
            Some(_) => "a request was refused",
            None => "a request was answered",
        };
        // A level must be known when the program is compiled, so each has a line of its own.
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    method = self.method,
                    route = self.route,
                    sandbox = named.sandbox,
                    session = named.session,
                    lease = named.lease,
                    template = named.template,
                    image = named.image,
                    process = named.process,
                    turn = named.turn,
                    agent = named.agent,
                    named_key = named.named_key,
                    tool = self.refusal.as_ref().and_then(|refusal| refusal.tool.as_deref()),
                    status,
                    code = code.map(ErrorCode::as_str),
                    cause = self.refusal.as_ref().and_then(|refusal| refusal.cause.as_deref()),
                    took_ms,
                    key = self.key.map(tracing::field::display),
                    request_id = self.id(),
                    "{message}"
                )
            };
        }
        match level {
            Level::WARN => line!(Level::WARN),
            Level::INFO => line!(Level::INFO),
            _ => line!(Level::DEBUG),
        }
    }

    /// The answer to a request whose handler panicked.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> Response {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let panic = text.unwrap_or("a panic without a message");
        tracing::error!(
            route = self.route,
            request_id = self.id(),
            panic,
            "the handler of a request panicked"
        );
        Refused::new(ErrorCode::Internal, "the handler failed unexpectedly").into_response()
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if !self.answered {
            let code = ErrorCode::ClientGone;
            self.refusal = Some(LoggedRefusal::new(code, ""));
            self.log(code.status());
        }
    }
}

/// Methods as metric labels: a client may send any text, so unknown ones are `other`.
pub(crate) fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests;
