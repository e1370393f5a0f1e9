//! The lines of the request log, by their fields.

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
        let mut line = Line::from([("level", event.metadata().level().to_string())]);
        event.record(&mut Fields(&mut line));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The line of a request for `/x` whose handler answers like this.
async fn logged(answer: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Line {
    logged_at("/x", "/x", answer).await
}

/// The line of a request for a route and a path.
async fn logged_at(
    route: &'static str,
    path: &str,
    answer: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> Line {
    let (app, _stop) = App::for_tests().await;
    let (needs, dialect) = (Needs::Public, dialect::own());
    let front = Front { app, route, needs, takes_body: false, dialect };
    let handler = move || std::future::ready(answer());
    let mut router =
        axum::Router::new().route(route, axum::routing::get(handler).route_layer(front));
    let request = Request::get(path)
        .header("host", "localhost")
        .header("x-request-id", "r-7")
        .body(Body::empty())
        .unwrap();
    let lines = Lines::default();
    let guard = tracing::subscriber::set_default(lines.clone());
    let _: Response = router.call(request).await.unwrap();
    drop(guard);
    let mut lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    lines.retain(|line| line.contains_key("took_ms"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[tokio::test]
async fn request_log_has_the_ids_of_the_path_and_nothing_of_the_query() {
    let id = "0192f3a0-0000-7000-8000-0000000000ab";
    let refuse = || Refused::new(ErrorCode::SandboxUnknown, "unknown").into_response();
    let path = format!("/v1/sandboxes/{}?token=hunter2", id.to_uppercase());
    let line = logged_at("/v1/sandboxes/{id}", &path, refuse).await;
    assert_eq!(line["message"], "a request was refused");
    assert_eq!((&*line["route"], &*line["sandbox"]), ("/v1/sandboxes/{id}", id));
    assert_eq!((&*line["request_id"], &*line["code"]), ("r-7", "sandbox_unknown"));
    assert!(line["took_ms"].parse::<f64>().is_ok(), "{line:?}");
    assert_eq!(line.get("key"), None, "no key was accepted: {line:?}");
    assert!(!format!("{line:?}").contains("hunter2"), "{line:?}");
}

#[tokio::test]
async fn request_log_has_the_sandbox_that_only_a_dialect_knows() {
    let named = |sandbox: &str| {
        let sandbox = Some(sandbox.to_owned());
        move || {
            let mut response = Response::new(Body::empty());
            let name = RouteName { route: "/compat/y/{sandbox}", sandbox: sandbox.clone() };
            response.extensions_mut().insert(name);
            response
        }
    };
    let line = logged(named("box-1")).await;
    assert_eq!((&*line["route"], &*line["sandbox"]), ("/compat/y/{sandbox}", "box-1"));
    assert_eq!(line["message"], "a request was answered");
    let line = logged(named("not a name")).await;
    assert_eq!(line.get("sandbox"), None, "{line:?}");
}

#[tokio::test]
async fn request_log_shows_a_refused_tool_above_debug() {
    let refused = || {
        let mut response = Response::new(Body::empty());
        let logged = LoggedRefusal::new(ErrorCode::SandboxUnknown, "unknown");
        response.extensions_mut().insert(logged.of_tool("exec"));
        response
    };
    let line = logged(refused).await;
    assert_eq!((&*line["status"], &*line["code"]), ("200", "sandbox_unknown"));
    assert_eq!((&*line["tool"], &*line["level"]), ("exec", "INFO"));
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
