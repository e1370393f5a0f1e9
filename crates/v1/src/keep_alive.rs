//! The keep-alive status of a sandbox, and ending its keep-alive. Neither thaws the sandbox, and
//! reading does not count as activity.

use axum::extract::State;
use axum::response::Response;
use engine::SandboxStatusReport;
use model::{ErrorCode, SandboxId};
use wire::{StatusReport, StopRequest, Time};

use crate::view;
use web::answer;
use web::app::App;
use web::body::OptionalJson;
use web::front::{By, Needs};
use web::operation::{Operation, Route, Takes, Verb, json};
use web::path::Named;
use web::query::NoQuery;
use web::refused::Refused;
use web::use_target::with_replacement;

/// A year, as everywhere else.
const AFTER_S_MAX: u64 = 31_536_000;

const REFUSES: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::SandboxGone,
    ErrorCode::NotLeased,
    ErrorCode::InvalidArgument,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
    ErrorCode::DeadlineExceeded,
];

pub(super) fn routes() -> Vec<Route> {
    let status_view = |id, about| {
        Operation::new(id, about).answers(200, "The status now", [json("StatusReport")])
    };
    let status = status_view(
        "sandbox_status",
        "Show what keeps a sandbox from being frozen, and when it will be frozen",
    );
    let stop = status_view(
        "stop_keeping_awake",
        "End the keep-alive of the processes that have it now, at once or after a delay. No process \
         is killed, and the latest call counts",
    );
    vec![
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/status",
            Needs::Read,
            self::status,
            status.refuses(REFUSES),
        ),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/stop",
            Needs::Use,
            self::stop,
            stop.takes(Takes::OptionalJson("StopRequest")).refuses(REFUSES),
        ),
    ]
}

fn status_view(report: &SandboxStatusReport) -> StatusReport {
    let wake = &report.wake;
    StatusReport {
        state: wake.wakefulness,
        scheduled_stop_at: wake.scheduled_stop_at.map(Time::from),
        keep_alive_processes: report.keep_alive.iter().map(view::process).collect(),
        scale: wake.scale,
        frozen: report.frozen,
        freezes_at: report.freezes_at.map(Time::from),
        sleeps_at: report.sleeps_at.map(Time::from),
        because: wake.because.words().to_owned(),
    }
}

async fn status(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    match app.engine.sandbox_status(caller, id).await {
        Ok(report) => answer::ok(&status_view(&report)),
        Err(refusal) => Err(with_replacement(&app, caller, id, refusal.into()).await),
    }
}

async fn stop(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    OptionalJson(request): OptionalJson<StopRequest>,
) -> Result<Response, Refused> {
    let after_s = request.after_s.unwrap_or(0);
    if after_s > AFTER_S_MAX {
        let cause = format!("after_s: must be at most {AFTER_S_MAX}");
        return Err(Refused::invalid("after_s", cause));
    }
    match app.engine.stop_keeping_awake(caller, id, after_s * 1000).await {
        Ok(report) => answer::ok(&status_view(&report)),
        Err(refusal) => Err(with_replacement(&app, caller, id, refusal.into()).await),
    }
}
