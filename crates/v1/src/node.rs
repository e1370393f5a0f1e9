//! Health, statistics and metrics of the server. Reading them never counts as activity.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use engine::Degraded;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use model::{ErrorCode, Role, SessionStatus};
use wire::{Health, HealthStatus, MemoryLimits, SessionCounts, Stats};

use web::answer;
use web::app::App;
use web::front::{By, Needs, authenticate};
use web::key_metrics;
use web::operation::{Content, Operation, Route, Verb, json};
use web::query::NoQuery;
use web::refused::{RETRY_AFTER_MS, Refused};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROMETHEUS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes() -> Vec<Route> {
    let health =
        Operation::new("get_health", "Get the health of the server; without a key only its status")
            .answers(200, "The server works, perhaps not all of it", [json("Health")])
            .answers(503, "The server is stopping", [json("Health")]);
    let stats = Operation::new("get_stats", "Get the statistics of the server and of each pool")
        .answers(200, "The counts", [json("Stats")]);
    let metrics = Operation::new("get_metrics", "Get all metrics, for Prometheus").answers(
        200,
        "The metrics",
        [Content(PROMETHEUS, None)],
    );
    vec![
        Route::new(Verb::Get, "/health", Needs::Public, self::health, health),
        Route::new(Verb::Get, "/v1/stats", Needs::Read, self::stats, stats),
        Route::new(Verb::Get, "/metrics", Needs::Read, self::metrics, metrics),
    ]
}

async fn health(
    State(app): State<App>,
    NoQuery: NoQuery,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let health = app.engine.health();
    // Counts tell what others do, so they need a key. Causes name paths and programs of the
    // machine, so only administrators see them. A wrong key must not make the health check fail.
    let role = authenticate(&app, &headers).ok().map(|caller| caller.role);
    let is_admin = role == Some(Role::Admin);
    let reason_text = |Degraded { what, cause }: Degraded| {
        if is_admin { format!("{what}: {cause}") } else { what }
    };
    let (status, code) = match (health.stopping, health.degraded.is_empty()) {
        (true, _) => (HealthStatus::Stopping, StatusCode::SERVICE_UNAVAILABLE),
        (false, true) => (HealthStatus::Ok, StatusCode::OK),
        (false, false) => (HealthStatus::Degraded, StatusCode::OK),
    };
    let said = Health {
        status,
        reasons: role.map(|_| health.degraded.into_iter().map(reason_text).collect()),
        version: role.map(|_| VERSION.to_owned()),
        uptime_s: role.map(|_| health.uptime.as_secs()),
        lost_commits: role.map(|_| app.engine.store_condition().lost_commits),
        pool: role.map(|_| app.engine.stats()),
        memory: role.map(|_| MemoryLimits {
            live_mb: app.engine.live_memory_mb(),
            machine_mb: app.engine.machine_memory_mb(),
        }),
        files_given_up: role.map(|_| app.engine.files_given_up()),
    };
    let mut response = answer::json(code, &said)?;
    if code == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_MS / 1000));
    }
    Ok(response)
}

async fn stats(State(app): State<App>, NoQuery: NoQuery) -> Result<Response, Refused> {
    answer::ok(&Stats {
        pool: app.engine.stats(),
        pools: app.engine.pools(),
        sessions: sessions(&app),
        uptime_s: app.engine.health().uptime.as_secs(),
        version: VERSION.to_owned(),
    })
}

fn sessions(app: &App) -> SessionCounts {
    let mut counts = SessionCounts::default();
    for (status, count) in app.engine.sessions_by_status() {
        *match status {
            SessionStatus::Starting => &mut counts.starting,
            SessionStatus::Active => &mut counts.active,
            SessionStatus::Paused => &mut counts.paused,
            SessionStatus::Stopped => &mut counts.stopped,
            SessionStatus::Ended => &mut counts.ended,
        } = count;
    }
    counts
}

async fn metrics(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
) -> Result<Response, Refused> {
    let failed = |error: std::fmt::Error| Refused::new(ErrorCode::Internal, error.to_string());
    // The other metrics must be there while the store is not.
    let events = app.engine.event_counts().await.unwrap_or_default();
    let page = key_metrics::page(&app, caller, &events).map_err(failed)?;
    let mut response = Response::new(Body::from(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROMETHEUS));
    Ok(response)
}
