//! The request log: one line and one metric per request. The line has the error code of a refusal
//! and, for failures of the server itself, the cause. It must never have bodies, environments, keys
//! or causes that quote the client.

use std::any::Any;
use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Method};
use model::{ErrorCode, KeyId, Refusal};
use tokio::time::Instant;

use crate::app::{App, InProgress};
use crate::dialect::Dialect;
use crate::front::{OfInside, RouteName};
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
}

impl LoggedRefusal {
    /// With the cause only if the server itself failed: other causes may quote the client.
    pub fn new(code: ErrorCode, cause: &str) -> Self {
        let is_ours = matches!(
            code,
            ErrorCode::Internal | ErrorCode::PersistFailed | ErrorCode::StoreUnavailable
        );
        Self { code, cause: is_ours.then(|| cause.to_owned()) }
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
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) method: &'static str,
    pub(crate) id: HeaderValue,
    pub(crate) key: Option<KeyId>,
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
        if let Some(RouteName(route)) = response.extensions_mut().remove() {
            self.route = route;
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
        let (method, route, id) = (self.method, self.route, self.id());
        let key = self.key.unwrap_or(KeyId::NIL);
        let us = took.as_micros() as u64;
        let code = self.refusal.as_ref().map(|refusal| refusal.code.as_str());
        let cause = self.refusal.as_ref().and_then(|refusal| refusal.cause.as_deref());
        match status {
            // A tool of MCP that failed is answered with status 200.
            _ if cause.is_some() => {
                tracing::warn!(method, route, status, us, id, %key, code, cause, "request");
            }
            500.. => tracing::warn!(method, route, status, us, id, %key, code, cause, "request"),
            400.. => tracing::info!(method, route, status, us, id, %key, code, cause, "request"),
            _ => tracing::debug!(method, route, status, us, id, %key, code, cause, "request"),
        }
    }

    /// The answer to a request whose handler panicked.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> Response {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let panic = text.unwrap_or("a panic without a message");
        tracing::error!(
            route = self.route,
            id = self.id(),
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
            self.refusal = Some(LoggedRefusal { code, cause: None });
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
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;
    use std::sync::{Mutex, PoisonError};

    use axum::body::Body;
    use axum::extract::Request;
    use tower_service::Service as _;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::dialect;
    use crate::front::{Front, Needs};

    type Line = BTreeMap<&'static str, String>;

    /// Collects the fields of all log lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<Line>>>);

    struct Fields<'a>(&'a mut Line);

    impl Visit for Fields<'_> {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name(), value.to_owned());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.insert(field.name(), format!("{value:?}"));
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::new();
            event.record(&mut Fields(&mut line));
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The line of a request whose handler answers like this.
    async fn logged(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Line {
        let (app, _stop) = App::for_tests().await;
        let (needs, dialect) = (Needs::Public, dialect::own());
        let front = Front { app, route: "/x", needs, takes_body: false, dialect };
        let handler = move || std::future::ready(answer());
        let mut router =
            axum::Router::new().route("/x", axum::routing::get(handler).route_layer(front));
        let request = Request::get("/x").header("host", "localhost").body(Body::empty()).unwrap();
        let lines = Lines::default();
        let guard = tracing::subscriber::set_default(lines.clone());
        let _: Response = router.call(request).await.unwrap();
        drop(guard);
        let mut lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lines.retain(|line| line.get("message").is_some_and(|text| text == "request"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    #[tokio::test]
    async fn request_log_has_the_code_of_a_refusal_and_the_cause_of_our_own_failures() {
        let refuse = |code, cause: &'static str| move || Refused::new(code, cause).into_response();
        let line = logged(refuse(ErrorCode::InvalidArgument, "env: hunter2 is wrong")).await;
        assert_eq!(line["code"], "invalid_argument");
        assert_eq!(line.get("cause"), None, "it may quote the client: {line:?}");
        let line = logged(refuse(ErrorCode::Internal, "the table is inconsistent")).await;
        assert_eq!((&*line["code"], &*line["status"]), ("internal", "500"));
        assert_eq!(line["cause"], "the table is inconsistent");
        let line = logged(|| Response::new(Body::empty())).await;
        assert_eq!((line.get("code"), line.get("cause")), (None, None), "{line:?}");
    }

    #[tokio::test]
    async fn request_log_has_the_code_of_an_error_that_a_dialect_wrote() {
        let of_dialect = || {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            let noted = LoggedRefusal::of_status(500, "stored agent cannot be decoded");
            response.extensions_mut().insert(noted.unwrap());
            response
        };
        let line = logged(of_dialect).await;
        assert_eq!(line["code"], "internal");
        assert_eq!(line["cause"], "stored agent cannot be decoded");
    }

    #[tokio::test]
    async fn request_log_of_a_panic_has_the_code_internal() {
        let line = logged(|| panic!("on purpose")).await;
        assert_eq!((&*line["code"], &*line["status"]), ("internal", "500"));
        assert!(!line["cause"].contains("on purpose"), "{line:?}");
    }
}
