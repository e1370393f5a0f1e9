//! Sessions: created, listed, changed, paused, resumed, forked and ended.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use engine::{Caller, SeedFile, SessionQuery, SessionRequest, SessionUpdate};
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use model::{ErrorCode, SessionId, SessionStatus, TemplateName, Wall};
use serde_json::Value;
use tokio::time::Instant;
use wire::{AbortRequest, Aborted, Session, SessionList};

use crate::checkouts::{GETTING, ONCE, check_wait_ms, replayed};
use crate::cursor::{self, Cursor};
use crate::{deadline, seed, view};
use web::answer::{self, Step};
use web::app::App;
use web::body::{Json, OptionalJson, json_up_to};
use web::front::{By, Needs, no_content};
use web::handed_out::{Handover, HandoverGuard};
use web::idempotency::{Answer, Claim};
use web::operation::{Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::Named;
use web::query::{NoQuery, Query};
use web::refused::Refused;

const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
const ALL: &str = "/v1/sessions";
const ONE: &str = "/v1/sessions/{id}";

/// Error codes of changing a session.
const WAIT_MS: Param = Param::new(
    "wait_ms",
    Kind::Number(0, wire::CheckoutRequest::WAIT_MS_MAX),
    "How long to wait for a place if the server is full; the server's default if not given",
);
const CHANGING: &[ErrorCode] = &[
    ErrorCode::SessionUnknown,
    ErrorCode::SessionEnded,
    ErrorCode::SessionStopped,
    ErrorCode::SessionBusy,
    ErrorCode::SandboxBusy,
    ErrorCode::TurnInProgress,
    ErrorCode::TemplateUnknown,
    ErrorCode::InvalidArgument,
    ErrorCode::Unsupported,
    ErrorCode::NetworkRefused,
    ErrorCode::SecretMissing,
    ErrorCode::Aborted,
    ErrorCode::LaunchFailed,
    ErrorCode::BoundaryFull,
    ErrorCode::EgressUnavailable,
    ErrorCode::ReadyTimeout,
    ErrorCode::HarnessFailed,
    ErrorCode::SandboxCrashed,
    ErrorCode::SandboxGone,
    ErrorCode::Oom,
    ErrorCode::DiskLimit,
    ErrorCode::DiskFull,
    ErrorCode::LimitReached,
    ErrorCode::PersistFailed,
    ErrorCode::CapacityExhausted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::QueueFull,
    ErrorCode::PoolClosed,
    ErrorCode::DeadlineExceeded,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

const FILTERS: [Param; 5] = [
    Param::new(
        "status",
        Kind::OneOf(&["starting", "active", "paused", "stopped"]),
        "Only sessions in this status. Ended sessions are in no list",
    ),
    Param::new("template", Kind::Schema("TemplateName"), "Only sessions of this template"),
    Param::new(
        "metadata",
        Kind::Repeated("="),
        "Only sessions with this label, as `name=value`; also as `metadata.name=value`",
    ),
    Param::new("limit", Kind::Number(1, PAGE_MAX), "The most sessions in a page; 100 if not given"),
    Param::new(
        "after",
        Kind::Matching(cursor::PATTERN),
        "Only older sessions: `next` of the previous page",
    ),
];

pub(super) fn routes() -> Vec<Route> {
    [basic_routes(), lifecycle_routes()].into_iter().flatten().collect()
}

fn the_session(id: &'static str, about: &'static str) -> Operation {
    Operation::new(id, about).answers(200, "The session", [json("Session")])
}

fn new_session(id: &'static str, about: &'static str) -> Operation {
    Operation::new(id, about).answers(201, "The session", [json("Session")])
}

fn basic_routes() -> Vec<Route> {
    let new =
        new_session("create_session", "Create a session; it has a sandbox when the answer comes");
    let list = Operation::new("list_sessions", "List your sessions; for admins all").answers(
        200,
        "A page of sessions, newest first",
        [json("SessionList")],
    );
    let get = the_session("get_session", "Get a session");
    let update = the_session(
        "update_session",
        "Change the labels of a session, the configuration of its harness, or its deadline",
    );
    let end = Operation::new("end_session", "End a session at once, even if it is in use").answers(
        204,
        "The session has ended, and none of its processes runs",
        [],
    );
    let known = &[ErrorCode::SessionUnknown, ErrorCode::SessionEnded];
    vec![
        Route::new(
            Verb::Post,
            ALL,
            Needs::Use,
            create,
            new.takes(Takes::Json("SessionRequest"))
                .headers([ONCE])
                .refuses(GETTING)
                .refuses(&[ErrorCode::HarnessFailed, ErrorCode::Unsupported, ErrorCode::Aborted])
                .refuses(&[ErrorCode::LimitReached, ErrorCode::SandboxGone]),
        ),
        Route::new(Verb::Get, ALL, Needs::Read, self::list, list.query(FILTERS)),
        Route::new(Verb::Get, ONE, Needs::Read, read, get.refuses(known)),
        Route::new(
            Verb::Patch,
            ONE,
            Needs::Use,
            change,
            update.takes(Takes::Json("SessionUpdate")).refuses(CHANGING),
        ),
        Route::new(Verb::Delete, ONE, Needs::Use, self::end, end.refuses(CHANGING)),
    ]
}

fn lifecycle_routes() -> Vec<Route> {
    let pause = the_session("pause_session", "Pause a session; the next message resumes it");
    let resume = the_session("resume_session", "Resume a session");
    let stop = the_session(
        "stop_session",
        "End the sandbox of a session, and keep its files until it is resumed",
    );
    let fork = new_session(
        "fork_session",
        "Fork a session: create another one with its files and history",
    );
    let abort = Operation::new(
        "abort_session",
        "Abort the turn in progress; the answer comes when it has ended",
    )
    .answers(200, "What was aborted", [json("Aborted")]);
    vec![
        Route::new(
            Verb::Post,
            "/v1/sessions/{id}/pause",
            Needs::Use,
            self::pause,
            pause.refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sessions/{id}/resume",
            Needs::Use,
            self::resume,
            resume.query([WAIT_MS]).refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sessions/{id}/stop",
            Needs::Use,
            self::stop,
            stop.refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sessions/{id}/fork",
            Needs::Use,
            self::fork,
            fork.refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sessions/{id}/abort",
            Needs::Use,
            self::abort,
            abort.takes(Takes::OptionalJson("AbortRequest")).refuses(CHANGING),
        ),
    ]
}

async fn create(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    request: Request,
) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    // It may bring files.
    let Json { value, bytes, share } =
        json_up_to(request, &app, app.settings.exec_bytes_max).await?;
    let claim = app.idempotency.claim(&headers, caller.key, ALL, &bytes).await?;
    drop(bytes);
    let (mut wanted, files) = wanted(value, app.engine.now().wall)?;
    if let Some(claim) = &claim {
        if let Some(Answer::Session(id)) = claim.answer() {
            return again(&view::session(&app.engine.session(caller, id)?, caller));
        }
        let id = *wanted.session.get_or_insert_with(|| claim.session());
        // An earlier run of the server made it: sessions outlive those.
        if let Ok(known) = app.engine.session(caller, id) {
            return again(&view::session(&known, caller));
        }
    }
    if !files.is_empty() {
        // An invalid request is refused before its files are stored.
        app.engine.known_template(&wanted.template)?;
        wanted.seed = Some(app.engine.put_seed(caller, files).await?);
    }
    let began = Instant::now();
    let made = app.engine.create_session(caller, wanted).await?;
    drop(share);
    let took = began.elapsed();
    let session = view::session(&made, caller);
    let bytes = answer::json_bytes(&session)?;
    let guard = Unknown { app: app.clone(), caller, session: Some(made.id) };
    let settled = claim.map(|claim: Claim| (claim, Answer::Session(made.id)));
    let body = Body::new(Handover::new(bytes, guard, settled));
    let mut response = answer::bytes(StatusCode::CREATED, body);
    located(&mut response, made.id);
    answer::timed(&mut response, &[Step { name: "create", took, desc: None }]);
    Ok(response)
}

fn again(session: &Session) -> Result<Response, Refused> {
    let mut response = answer::json(StatusCode::CREATED, session)?;
    located(&mut response, session.id);
    replayed(&mut response);
    Ok(response)
}

fn located(response: &mut Response, id: SessionId) {
    if let Ok(at) = HeaderValue::try_from(format!("{ALL}/{id}")) {
        response.headers_mut().insert(LOCATION, at);
    }
}

/// A new session whose client has no answer yet. Dropped, the session is ended.
struct Unknown {
    app: App,
    caller: Caller,
    session: Option<SessionId>,
}

impl HandoverGuard for Unknown {
    fn keep(mut self) {
        self.session = None;
    }
}

impl Drop for Unknown {
    fn drop(&mut self) {
        let Some(id) = self.session.take() else { return };
        let (app, caller) = (self.app.clone(), self.caller);
        tasks::spawn(async move {
            if let Err(error) = app.engine.end_session(caller, id).await {
                tracing::warn!(session = %id, %error, "ending an undelivered session failed");
            }
        });
    }
}

/// The session to create, and the files it begins with.
fn wanted(
    request: wire::SessionRequest,
    now: Wall,
) -> Result<(SessionRequest, Vec<SeedFile>), Refused> {
    let most = wire::SessionRequest::IDLE_TIMEOUT_S_MAX;
    if request.idle_timeout_s.is_some_and(|seconds| seconds == 0 || seconds > most) {
        let cause = format!("idle_timeout_s: must be from 1 to {most}");
        return Err(Refused::invalid("idle_timeout_s", cause));
    }
    check_wait_ms(request.wait_ms)?;
    let files = seed::files(request.files)?;
    let wanted = SessionRequest {
        template: request.template,
        session: request.id,
        env: request.env,
        network: request.network,
        secrets: request.secrets,
        secret_values: request.secret_values,
        metadata: request.metadata,
        config: request.config.map(|config| Value::Object(config).to_string().into()),
        seed: None,
        idle_timeout_ms: request.idle_timeout_s.map(|seconds| seconds * 1000),
        deadline: request.deadline.map(|asked| deadline::wanted(asked, now)).transpose()?,
        on_disconnect: request.on_disconnect.unwrap_or_default(),
        wait_ms: request.wait_ms,
    };
    Ok((wanted, files))
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
) -> Result<Response, Refused> {
    let status = query.text("status")?.map(|text| {
        let known = SessionStatus::ALL.into_iter().find(|status| status.as_str() == text);
        let known = known.filter(|status| *status != SessionStatus::Ended);
        known.ok_or_else(|| Refused::bad("status", format!("`status`: {text:?} is not a status")))
    });
    let template = query.text("template")?.map(|text| TemplateName::new(&text)).transpose();
    let template = template.map_err(|error| Refused::bad("template", error.to_string()))?;
    let mut metadata = query.all_beneath("metadata.");
    for word in query.all("metadata") {
        let Some((name, value)) = word.split_once('=') else {
            return Err(Refused::bad("metadata", format!("{word:?} is not `name=value`")));
        };
        metadata.push((name.to_owned(), value.to_owned()));
    }
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE) as u32;
    let after = query.parsed::<Cursor>("after")?.map(|Cursor(made_at, id)| (made_at, id));
    query.done()?;
    let asked = SessionQuery { status: status.transpose()?, template, metadata, after, limit };
    let page = app.engine.sessions(caller, &asked);
    let sessions = page.sessions.iter().map(|view| view::session(view, caller)).collect();
    let next = page.next.map(|(made_at, id)| Cursor(made_at, id).to_string());
    answer::ok(&SessionList { sessions, next })
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    let view = app.engine.session(caller, id)?;
    let workspace = app.engine.session_workspace(caller, id)?;
    let workspace = workspace.as_ref().map(view::workspace);
    answer::ok(&Session { workspace, ..view::session(&view, caller) })
}

async fn change(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
    request: Json<wire::SessionUpdate>,
) -> Result<Response, Refused> {
    let wire::SessionUpdate { metadata, config, deadline } = request.value;
    if config.as_ref().is_some_and(|config| !config.is_object() && !config.is_null()) {
        return Err(Refused::invalid("config", "config: must be an object or null"));
    }
    let update = SessionUpdate {
        metadata,
        config: config.map(|config| config.to_string().into()),
        deadline: deadline::change(deadline, app.engine.now().wall)?,
    };
    let view = app.engine.update_session(caller, id, update).await?;
    answer::ok(&view::session(&view, caller))
}

async fn end(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    app.engine.end_session(caller, id).await?;
    Ok(no_content())
}

async fn pause(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    answer::ok(&view::session(&app.engine.pause_session(caller, id).await?, caller))
}

async fn resume(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    let wait_ms = query.number("wait_ms", 0..=wire::CheckoutRequest::WAIT_MS_MAX)?;
    query.done()?;
    let began = Instant::now();
    let view = app.engine.resume_session_within(caller, id, wait_ms).await?;
    let mut response = answer::ok(&view::session(&view, caller))?;
    answer::timed(&mut response, &[Step { name: "resume", took: began.elapsed(), desc: None }]);
    Ok(response)
}

async fn stop(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    answer::ok(&view::session(&app.engine.stop_session(caller, id).await?, caller))
}

async fn fork(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    let made = app.engine.fork_session(caller, id).await?;
    let mut response = answer::json(StatusCode::CREATED, &view::session(&made, caller))?;
    located(&mut response, made.id);
    Ok(response)
}

async fn abort(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
    OptionalJson(request): OptionalJson<AbortRequest>,
) -> Result<Response, Refused> {
    let aborted = app.engine.abort_session(caller, id, request.keep_sandbox).await?;
    let session = view::session(&app.engine.session(caller, id)?, caller);
    let (turn_id, sandbox_kept) = (aborted.turn, aborted.sandbox_kept);
    answer::ok(&Aborted { turn_id, sandbox_kept, session })
}
