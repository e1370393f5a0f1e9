//! Operations on a process that exists. Those that need the sandbox thaw it; stored data is read
//! without.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{ProcessQuery, ProcessRef, UseKind};
use model::SandboxId;
use tokio::time::Instant;
use wire::{ProcessList, ProcessRequest, SignalRequest};

use super::output::output;
use super::start_request::checked_size;
use crate::events::AFTER_MAX;
use crate::view;
use web::answer;
use web::app::App;
use web::body::{Json, whole_body};
use web::front::{By, no_content};
use web::input_checks::STDIN_BYTES_MAX;
use web::path::{Named, NamedOf};
use web::process_wait::Waiting;
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::use_target::UseTarget;

const PAGE: u64 = 100;
pub(super) const PAGE_MAX: u64 = 1000;
const GRACE_MS: u64 = 10_000;
pub(super) const GRACE_MS_MAX: u64 = 600_000;

type ProcessPath = NamedOf<SandboxId, ProcessRef>;

pub(super) async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<SandboxId>,
) -> Result<Response, Refused> {
    let before = query.number("before", 0..=AFTER_MAX)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE) as u32;
    let running = query.flag("running")?;
    let observe = query.flag("observe")?;
    query.done()?;
    let asked = ProcessQuery { before, limit, running };
    let page = app.engine.processes(caller, id, &asked).await?;
    if !observe {
        app.engine.note_process_read(caller, id);
    }
    let next = page.processes.last().filter(|_| page.more).map(|record| record.number);
    answer::ok(&ProcessList { processes: page.processes.iter().map(view::process).collect(), next })
}

pub(super) async fn read(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    NamedOf(id, of): ProcessPath,
) -> Result<Response, Refused> {
    let observe = query.flag("observe")?;
    query.done()?;
    let record = app.engine.process(caller, id, &of).await?;
    if !observe {
        app.engine.note_process_read(caller, id);
    }
    answer::ok(&view::process(&record))
}

pub(super) async fn stop(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    NamedOf(id, of): ProcessPath,
) -> Result<Response, Refused> {
    let grace_ms = query.number("grace_ms", 0..=GRACE_MS_MAX)?.unwrap_or(GRACE_MS);
    query.done()?;
    answer::ok(&view::process(&app.engine.stop_process(caller, id, &of, grace_ms).await?))
}

pub(super) async fn kill(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, of): ProcessPath,
) -> Result<Response, Refused> {
    answer::ok(&view::process(&app.engine.kill_process(caller, id, &of).await?))
}

pub(super) async fn signal(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, of): ProcessPath,
    request: Json<SignalRequest>,
) -> Result<Response, Refused> {
    let SignalRequest { signal, tree } = request.value;
    let Some(number) = model::signals::number(&signal) else {
        let cause = format!("signal: {signal:?} is not a signal");
        return Err(Refused::invalid("signal", cause));
    };
    let record = app.engine.signal_process(caller, id, &of, number, tree).await?;
    answer::ok(&view::process(&record))
}

pub(super) async fn wait(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    NamedOf(id, of): ProcessPath,
) -> Result<Response, Refused> {
    let timeout_ms = query.number("timeout_ms", 1..=ProcessRequest::WAIT_MS_MAX)?;
    query.done()?;
    let wait = Duration::from_millis(timeout_ms.unwrap_or(ProcessRequest::WAIT_MS));
    let deadline = Instant::now() + wait;
    let record = app.engine.process(caller, id, &of).await?;
    // An ended process needs no wait, and its sandbox may have ended.
    let used = match record.end {
        Some(_) => None,
        None => Some(UseTarget::from(id).begin(&app, caller, UseKind::Exec).await?),
    };
    let waiting = Waiting { app: &app, caller, sandbox: id, process: record.id };
    let record = waiting.end(deadline, record).await?;
    let kept = used.map_or(1 << 20, |used| used.limits().exec_output_bytes);
    let output = Some(output(&waiting, kept).await?);
    answer::ok(&wire::Process { output, ..view::process(&record) })
}

pub(super) async fn write_stdin(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, of): ProcessPath,
    request: Request,
) -> Result<Response, Refused> {
    // A caller that may not write to it must not make the server read a body.
    app.engine.process(caller, id, &of).await?;
    let (bytes, _share) = whole_body(request, &app, STDIN_BYTES_MAX as u64).await?;
    if bytes.is_empty() {
        let cause = "body: is empty; use DELETE to close the standard input";
        return Err(Refused::invalid("body", cause));
    }
    app.engine.write_stdin(caller, id, &of, bytes).await?;
    Ok(no_content())
}

pub(super) async fn close_stdin(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, of): ProcessPath,
) -> Result<Response, Refused> {
    app.engine.close_stdin(caller, id, &of).await?;
    Ok(no_content())
}

pub(super) async fn resize(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, of): ProcessPath,
    request: Json<wire::TerminalSize>,
) -> Result<Response, Refused> {
    let size = checked_size("rows", request.value)?;
    app.engine.resize_process(caller, id, &of, size).await?;
    Ok(no_content())
}
