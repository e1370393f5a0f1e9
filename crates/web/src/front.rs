//! What happens to every request before and after its handler: it gets an id, its host, key, role
//! and rate are checked, it is counted and logged, and a refusal or a panic becomes a problem.
//! It is one layer, to keep a checkout fast. Bodies, environments and keys must never be logged.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::response::{IntoResponse as _, Response};
use engine::{Caller, collect_losses};
use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use http_body::Body as _;
use model::{ErrorCode, Role};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::account::{Account, Payer};
use crate::answer_memory;
use crate::app::App;
use crate::body::next_chunk;
use crate::cors::Cors;
use crate::dialect::Dialect;
use crate::refused::Refused;
use crate::request_log::{RequestRecord, method_label};
use crate::serve::Place;
use crate::state_loss;
use crate::subprotocol;

/// The role that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No key.
    Public,
    /// Any key.
    Read,
    /// A key that may create and use sandboxes.
    Use,
    /// A key that may do everything.
    Admin,
}

impl Needs {
    /// Whether a key of this role is enough.
    pub const fn allow(self, role: Role) -> bool {
        match self {
            Self::Public | Self::Read => true,
            Self::Use => matches!(role, Role::Admin | Role::Use),
            Self::Admin => matches!(role, Role::Admin),
        }
    }

    /// The least role that is enough, if one is needed.
    pub const fn role(self) -> Option<Role> {
        match self {
            Self::Public => None,
            Self::Read => Some(Role::Read),
            Self::Use => Some(Role::Use),
            Self::Admin => Some(Role::Admin),
        }
    }
}

/// The route of a request and the name of its sandbox, if only the handler knows them: put into the
/// extensions of the answer.
#[derive(Debug, Clone)]
pub struct RouteName {
    /// The route.
    pub route: &'static str,
    /// The name of the sandbox, if the path has one.
    pub sandbox: Option<String>,
}

/// Marks an answer that came from inside a sandbox: the front must not change its headers.
#[derive(Debug, Clone, Copy)]
pub struct OfInside;

/// The layer in front of one route.
#[derive(Clone)]
pub struct Front {
    /// The shared state.
    pub app: App,
    /// Its path with names in place of ids, for the log and the metrics.
    pub route: &'static str,
    /// The role that it requires.
    pub needs: Needs,
    /// Whether the route reads the body. If not, the body must be empty.
    pub takes_body: bool,
    /// The dialect of its answers.
    pub dialect: Arc<dyn Dialect>,
}

impl<S> Layer<S> for Front {
    type Service = Fronted<S>;

    fn layer(&self, inner: S) -> Fronted<S> {
        Fronted { front: self.clone(), inner }
    }
}

/// A route behind its front.
#[derive(Clone)]
pub struct Fronted<S> {
    front: Front,
    inner: S,
}

impl<S> Service<Request> for Fronted<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let began = Instant::now();
        let app = self.front.app.clone();
        let id = app.request_ids.of(request.headers());
        let origin = app.cors.allowed(request.headers());
        let mut record = RequestRecord {
            app,
            route: self.front.route,
            uri: request.uri().clone(),
            sandbox_name: None,
            dialect: self.front.dialect_of(request.uri().path()),
            method: method_label(request.method()),
            id,
            key: None,
            payer: None,
            began,
            answered: false,
            refusal: None,
            in_progress: None,
        };
        let asked =
            origin.as_ref().and_then(|_| Cors::preflight(request.method(), request.headers()));
        let admitted = match asked {
            Some(preflight) => Err(preflight),
            None => self.front.admit(&mut request, &mut record).map_err(Refused::into_response),
        };
        let stall = self.front.app.settings.body_stall;
        let account = record.payer.take();
        let account = account.map(|payer| Account::new(payer, &self.front.app.body_memory));
        let only_reads = request.method().is_safe();
        let handled = admitted.map(|()| {
            if self.front.takes_body || request.body().is_end_stream() {
                return Either::Left(self.inner.call(request));
            }
            let mut inner = self.inner.clone();
            Either::Right(async move {
                match refuse_body(request, stall).await {
                    Ok(request) => inner.call(request).await,
                    Err(refused) => Ok(refused.into_response()),
                }
            })
        });
        Box::pin(async move {
            let (mut response, mut losses) = match handled {
                Err(response) => (response, Vec::new()),
                Ok(handling) => {
                    let handling = async {
                        match account {
                            Some(account) => counted(account, only_reads, handling).await,
                            None => handling.await,
                        }
                    };
                    match AssertUnwindSafe(collect_losses(handling)).catch_unwind().await {
                        Ok((Ok(response), losses)) => (response, losses),
                        Err(panic) => (record.panicked(panic.as_ref()), Vec::new()),
                    }
                }
            };
            if let Some(origin) = origin {
                Cors::mark(origin, response.headers_mut());
            }
            // The headers of an answer from inside a sandbox must not change.
            if response.extensions().get::<OfInside>().is_some() {
                losses.clear();
            }
            record.finish(&mut response);
            if losses.is_empty() {
                return Ok(response);
            }
            let (engine, fields) = (record.app.engine.clone(), record.dialect.loss_fields());
            Ok(state_loss::report(engine, response, losses, fields).await)
        })
    }
}

impl Front {
    /// The dialect of the answer to one request.
    fn dialect_of(&self, path: &str) -> Arc<dyn Dialect> {
        self.dialect.at(path).unwrap_or_else(|| Arc::clone(&self.dialect))
    }

    /// Admits a request, or refuses it.
    fn admit(&self, request: &mut Request, record: &mut RequestRecord) -> Result<(), Refused> {
        let app = &self.app;
        app.hosts.check(request.headers(), request.uri())?;
        if self.needs != Needs::Public {
            let caller = record.dialect.authenticate(app, request)?;
            record.key = Some(caller.key);
            if let Some(place) = request.extensions().get::<Place>() {
                place.known(caller.key)?;
            }
            let limits = app.limits.of(caller.key);
            if let Some(most_per_s) = limits.requests_per_s {
                app.rate.take(caller.key, most_per_s, record.began)?;
            }
            let payer = Payer::new(caller.key, limits.body_bytes);
            app.body_memory.check(&payer)?;
            record.payer = Some(payer);
            if !self.needs.allow(caller.role) {
                let cause = format!("a key with the role {} may not do this", caller.role);
                return Err(Refused::new(ErrorCode::Forbidden, cause));
            }
            let request_id = record.id.clone();
            request.extensions_mut().insert(Admitted { caller, request_id });
        }
        record.in_progress = app.begin();
        if record.in_progress.is_none() {
            let cause =
                format!("the server already handles {} requests", app.settings.max_requests);
            let refusal = model::Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000);
            return Err(refusal.into());
        }
        Ok(())
    }
}

/// Prepares an answer whose costs count for the key of its request. An answer from inside a sandbox
/// passes through and is never in memory.
async fn counted(
    account: Account,
    only_reads: bool,
    handling: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    let holding = account.clone();
    let answering = async move {
        let response = handling.await?;
        let is_of_inside = response.extensions().get::<OfInside>().is_some();
        Ok(if is_of_inside {
            response
        } else {
            answer_memory::hold(&holding, only_reads, response)
        })
    };
    account.scope(answering).await
}

/// The caller by the key in the `Authorization` header, or in the list of subprotocols.
pub fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Refused> {
    let refused = |cause: &'static str| Refused::new(ErrorCode::Unauthorized, cause);
    let secret = match headers.get(AUTHORIZATION) {
        Some(given) => given.to_str().ok().and_then(|text| {
            let (scheme, secret) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        }),
        None => match subprotocol::key(headers) {
            Some(secret) => Some(secret),
            None => return Err(refused("the Authorization header is missing")),
        },
    };
    let Some(secret) = secret else {
        return Err(refused("the Authorization header is not of the form `Bearer KEY`"));
    };
    app.engine.authenticate(secret).ok_or_else(|| refused("the key is unknown, expired or revoked"))
}

/// A request without its body, if that is empty: its size may not have been announced.
async fn refuse_body(request: Request, stall: Duration) -> Result<Request, Refused> {
    let (parts, mut body) = request.into_parts();
    if body.size_hint().lower() == 0 && matches!(next_chunk(&mut body, stall).await, Ok(None)) {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    Err(Refused::bad("body", "this route takes no body"))
}

/// A request whose key was checked.
#[derive(Clone)]
pub struct Admitted {
    /// The caller.
    pub caller: Caller,
    /// The id of the request.
    pub request_id: HeaderValue,
}

/// The caller, as an extractor for handlers.
pub struct By(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Admitted {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let admitted = parts.extensions.get::<Self>().cloned();
        admitted.ok_or_else(|| {
            Refused::new(ErrorCode::Unauthorized, "the key of the request was not checked")
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        Admitted::from_request_parts(parts, state).await.map(|admitted| Self(admitted.caller))
    }
}

/// The answer for an unknown route.
#[expect(clippy::unused_async, reason = "handlers are async")]
pub async fn no_route() -> Refused {
    Refused::new(ErrorCode::NotFound, "the route does not exist")
}

/// The answer for a route without this method.
#[expect(clippy::unused_async, reason = "handlers are async")]
pub async fn no_method() -> Refused {
    Refused::new(ErrorCode::MethodNotAllowed, "the route exists, but not with this method")
}

/// An empty answer.
pub fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::NO_CONTENT;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect;

    #[tokio::test]
    async fn panic_in_a_handler_is_answered_with_the_request_id() {
        use http_body_util::BodyExt as _;
        let (app, _stop) = App::for_tests().await;
        let (needs, dialect) = (Needs::Public, dialect::own());
        let front = Front { app, route: "/panic", needs, takes_body: false, dialect };
        let panics = || async { panic!("on purpose") as Response };
        let mut router =
            axum::Router::new().route("/panic", axum::routing::get(panics).route_layer(front));
        let request = Request::get("/panic")
            .header("host", "localhost")
            .header("x-request-id", "r-7")
            .body(Body::empty())
            .unwrap();
        let response = router.call(request).await.unwrap();
        assert_eq!(response.status(), 500);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: wire::Problem = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem.error_code(), Some(ErrorCode::Internal));
        assert_eq!(problem.request_id, "r-7");
        assert!(!problem.detail.contains("on purpose"), "{problem}");
    }

    #[test]
    fn role_includes_the_roles_below_it() {
        let allowed = |needs: Needs| Role::ALL.map(|role| needs.allow(role));
        assert_eq!(allowed(Needs::Public), [true, true, true]);
        assert_eq!(allowed(Needs::Read), [true, true, true]);
        assert_eq!(allowed(Needs::Use), [true, true, false]);
        assert_eq!(allowed(Needs::Admin), [true, false, false]);
    }
}
