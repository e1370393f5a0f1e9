//! Checkouts: a sandbox for exclusive use, until it is returned or its lease ends.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use engine::{Caller, CheckoutPolicy, CheckoutRequest, HandedOut};
use http::{HeaderMap, HeaderValue, StatusCode};
use model::{ErrorCode, LeaseId};
use serde::Serialize;
use tokio::time::Instant;
use wire::{Checkout, RenewRequest, Sandbox};

use crate::view;
use web::answer::{self, Step};
use web::app::App;
use web::body::{Json, OptionalJson};
use web::front::{By, Needs, no_content};
use web::handed_out::Handover;
use web::idempotency::{Answer, Claim, IDEMPOTENCY_REPLAYED};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;

pub(super) const ONCE: Param = Param::new(
    "Idempotency-Key",
    Kind::Matching("^[!-~]{1,255}$"),
    "Makes it safe to send the request again: it is carried out only once",
);

pub(super) const GETTING: &[ErrorCode] = &[
    ErrorCode::TemplateUnknown,
    ErrorCode::IdConflict,
    ErrorCode::LeaseLost,
    ErrorCode::InvalidArgument,
    ErrorCode::NetworkRefused,
    ErrorCode::SecretMissing,
    ErrorCode::IdempotencyConflict,
    ErrorCode::LaunchFailed,
    ErrorCode::BoundaryFull,
    ErrorCode::EgressUnavailable,
    ErrorCode::SandboxCrashed,
    ErrorCode::Oom,
    ErrorCode::DiskLimit,
    ErrorCode::DiskFull,
    ErrorCode::CapacityExhausted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::QueueFull,
    ErrorCode::PoolEmpty,
    ErrorCode::PoolClosed,
    ErrorCode::ReadyTimeout,
    ErrorCode::DeadlineExceeded,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

const ENDING: &[ErrorCode] = &[
    ErrorCode::LeaseUnknown,
    ErrorCode::LeaseLost,
    ErrorCode::InvalidArgument,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
    ErrorCode::DeadlineExceeded,
];

pub(super) fn routes() -> Vec<Route> {
    let new = Operation::new("create_checkout", "Check out a sandbox for exclusive use").answers(
        201,
        "The lease and its sandbox",
        [json("Checkout")],
    );
    let get = Operation::new("get_checkout", "Get a lease and its sandbox").answers(
        200,
        "The lease and its sandbox",
        [json("Checkout")],
    );
    let renew = Operation::new("renew_checkout", "Renew a lease, from now on").answers(
        200,
        "The lease with its new expiry",
        [json("Checkout")],
    );
    let give_back = Operation::new("return_checkout", "Return a sandbox, even one that crashed")
        .answers(204, "The sandbox was returned", []);
    let abandon = Operation::new(
        "abandon_checkout",
        "Abandon a checkout whose answer did not arrive: the lease for this idempotency key is returned, \
         and no other will be handed out for it",
    )
    .answers(204, "The request was abandoned", []);
    let one = "/v1/checkouts/{id}";
    vec![
        Route::new(
            Verb::Delete,
            "/v1/checkouts",
            Needs::Use,
            self::abandon,
            abandon.headers([ONCE.required()]).refuses(&[
                ErrorCode::IdempotencyConflict,
                ErrorCode::StoreUnavailable,
                ErrorCode::ShuttingDown,
                ErrorCode::DeadlineExceeded,
            ]),
        ),
        Route::new(Verb::Post, "/v1/checkouts", Needs::Use, create, hand_out_operation(new)),
        Route::new(
            Verb::Get,
            one,
            Needs::Read,
            read,
            get.refuses(&[ErrorCode::LeaseUnknown, ErrorCode::LeaseLost]),
        ),
        Route::new(
            Verb::Post,
            "/v1/checkouts/{id}/renew",
            Needs::Use,
            extend,
            renew.takes(Takes::OptionalJson("RenewRequest")).refuses(ENDING),
        ),
        Route::new(Verb::Delete, one, Needs::Use, end, give_back.refuses(ENDING)),
    ]
}

/// Parameters and error codes of the routes that hand out a sandbox: a checkout, and a sandbox
/// alone. Both answer with [`CheckoutCall::hand_out`].
pub(super) fn hand_out_operation(operation: Operation) -> Operation {
    operation.takes(Takes::Json("CheckoutRequest")).headers([ONCE]).refuses(GETTING)
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    headers: HeaderMap,
    request: Json<wire::CheckoutRequest>,
) -> Result<Response, Refused> {
    let asked = CheckoutCall { caller, route: "/v1/checkouts", headers: &headers };
    asked.hand_out(&app, request, |id, sandbox, path| Checkout { id, sandbox, path }).await
}

/// One request that hands out a sandbox.
pub(super) struct CheckoutCall<'a> {
    pub(super) caller: Caller,
    pub(super) route: &'static str,
    pub(super) headers: &'a HeaderMap,
}

impl CheckoutCall<'_> {
    /// Checks out a sandbox and answers in the form of the route.
    pub(super) async fn hand_out<T: Serialize>(
        self,
        app: &App,
        request: Json<wire::CheckoutRequest>,
        shape: impl Fn(LeaseId, Sandbox, Option<wire::CheckoutPath>) -> T,
    ) -> Result<Response, Refused> {
        let caller = self.caller;
        let mut wanted = wanted(request.value)?;
        let claim = app.idempotency.claim(self.headers, caller.key, self.route, &request.bytes);
        let claim = claim.await?;
        if let Some(claim) = &claim {
            if let Some(Answer::Lease { lease, path }) = claim.answer() {
                let now = view::sandbox(&app.engine, &app.engine.lease(caller, lease)?, caller);
                let mut response =
                    answer::json(StatusCode::CREATED, &shape(lease, now, Some(path)))?;
                replayed(&mut response);
                return Ok(response);
            }
            let lease = claim.lease();
            refuse_lost(app, caller, lease)?;
            wanted.lease = Some(lease);
        }
        let began = Instant::now();
        let lease = app.engine.checkout(caller, wanted).await?;
        let took = began.elapsed();
        let path = view::path(lease.path);
        let sandbox = view::sandbox(&app.engine, lease.view(), caller);
        let bytes = answer::json_bytes(&shape(lease.lease, sandbox, Some(path)))?;
        let body = Body::new(hand_over(bytes, lease, claim, path));
        let mut response = answer::bytes(StatusCode::CREATED, body);
        let desc = Some(path.as_str());
        answer::timed(&mut response, &[Step { name: "acquire", took, desc }]);
        Ok(response)
    }
}

fn hand_over(
    bytes: bytes::Bytes,
    handed_out: HandedOut,
    claim: Option<Claim>,
    path: wire::CheckoutPath,
) -> Handover<HandedOut> {
    let lease = handed_out.lease;
    Handover::new(bytes, handed_out, claim.map(|claim| (claim, Answer::Lease { lease, path })))
}

/// A lease that an earlier run of the server handed out is not handed out again.
fn refuse_lost(app: &App, caller: Caller, lease: LeaseId) -> Result<(), Refused> {
    match app.engine.lease(caller, lease) {
        Err(refusal) if refusal.code != ErrorCode::LeaseUnknown => Err(refusal.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) fn replayed(response: &mut Response) {
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
}

/// Refuses a wait that is too long.
pub(super) fn check_wait_ms(wait_ms: Option<u64>) -> Result<(), Refused> {
    let most = wire::CheckoutRequest::WAIT_MS_MAX;
    if wait_ms.is_some_and(|ms| ms > most) {
        return Err(Refused::invalid("wait_ms", format!("wait_ms: must be at most {most}")));
    }
    Ok(())
}

fn wanted(request: wire::CheckoutRequest) -> Result<CheckoutRequest, Refused> {
    check_wait_ms(request.wait_ms)?;
    Ok(CheckoutRequest {
        template: request.template,
        env: request.env,
        network: request.network,
        secrets: request.secrets,
        secret_values: request.secret_values,
        labels: request.labels,
        ttl_ms: ttl_ms(request.ttl_s)?,
        wait_ms: request.wait_ms,
        policy: match request.policy.unwrap_or_default() {
            wire::CheckoutPolicy::Wait => CheckoutPolicy::Wait,
            wire::CheckoutPolicy::FailFast => CheckoutPolicy::FailFast,
            wire::CheckoutPolicy::IdleOnly => CheckoutPolicy::IdleOnly,
        },
        lease: None,
    })
}

pub(super) fn ttl_ms(ttl_s: Option<u64>) -> Result<Option<u64>, Refused> {
    let most = wire::CheckoutRequest::TTL_S_MAX;
    match ttl_s {
        Some(seconds) if seconds == 0 || seconds > most => {
            Err(Refused::invalid("ttl_s", format!("ttl_s: must be from 1 to {most}")))
        }
        seconds => Ok(seconds.map(|seconds| seconds * 1000)),
    }
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<LeaseId>,
) -> Result<Response, Refused> {
    let view = app.engine.lease(caller, id)?;
    let sandbox = view::sandbox(&app.engine, &view, caller);
    answer::ok(&Checkout { id, sandbox, path: None })
}

async fn extend(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<LeaseId>,
    OptionalJson(request): OptionalJson<RenewRequest>,
) -> Result<Response, Refused> {
    let view = app.engine.renew_lease(caller, id, ttl_ms(request.ttl_s)?).await?;
    let sandbox = view::sandbox(&app.engine, &view, caller);
    answer::ok(&Checkout { id, sandbox, path: None })
}

async fn end(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<LeaseId>,
) -> Result<Response, Refused> {
    app.engine.return_lease(caller, id).await?;
    Ok(no_content())
}

async fn abandon(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    if let Some(lease) = app.idempotency.abandon(&headers, caller.key).await? {
        match app.engine.return_lease(caller, lease).await {
            // The lease has already ended.
            Err(refusal)
                if matches!(refusal.code, ErrorCode::LeaseLost | ErrorCode::LeaseUnknown) => {}
            returned => returned?,
        }
    }
    Ok(no_content())
}
