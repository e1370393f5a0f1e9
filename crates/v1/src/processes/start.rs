//! Starts a process, and waits for its end or its ports. If the wait fails, the process continues.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{ProcessRef, Use, UseKind};
use http::StatusCode;
use model::{ProcessRecord, SandboxId};
use tokio::time::Instant;
use wire::ExecRequest;

use super::output::output;
use super::start_request::{StartRequest, Wait};
use crate::checkouts::replayed;
use crate::view;
use web::answer;
use web::app::App;
use web::body::{Json, json_up_to};
use web::front::By;
use web::idempotency::{Answer, Claim};
use web::path::Named;
use web::process_wait::{Waiting, refuse_taken};
use web::query::NoQuery;
use web::refused::Refused;
use web::use_target::UseTarget;

pub(super) async fn start(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    request: Request,
) -> Result<Response, Refused> {
    // A caller that may not use the sandbox must not make the server read a large body.
    UseTarget::from(id).check(&app, caller)?;
    let headers = request.headers().clone();
    let Json { value, bytes, share } =
        json_up_to(request, &app, app.settings.exec_bytes_max).await?;
    let StartRequest { process, wait, wait_ms } = StartRequest::new(value)?;
    let route = format!("/v1/sandboxes/{id}/processes");
    let claim = app.idempotency.claim(&headers, caller.key, &route, &bytes).await?;
    drop(bytes);
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    if let Some(Answer::Process(process)) = claim.as_ref().and_then(Claim::answer) {
        drop(claim);
        let waiting = Waiting { app: &app, caller, sandbox: id, process };
        let record = app.engine.process(caller, id, &ProcessRef::Id(process)).await?;
        // An ended process needs no wait, and its sandbox may have ended.
        let used = match record.end {
            None if wait != Wait::Nothing => {
                Some(UseTarget::from(id).begin(&app, caller, UseKind::Exec).await?)
            }
            None | Some(_) => None,
        };
        let mut response = waited(&waiting, &wait, deadline, record, used.as_ref()).await?;
        replayed(&mut response);
        return Ok(response);
    }
    let used = UseTarget::from(id).begin(&app, caller, UseKind::Exec).await?;
    if let Wait::Ports(ports) = &wait {
        refuse_taken(&used, ports).await?;
    }
    let record = used.start_process(process).await?;
    drop(share);
    if let Some(claim) = claim {
        claim.settle(Answer::Process(record.id));
    }
    let waiting = Waiting { app: &app, caller, sandbox: id, process: record.id };
    waited(&waiting, &wait, deadline, record, Some(&used)).await
}

/// The answer, after what is waited for.
async fn waited(
    waiting: &Waiting<'_>,
    wait: &Wait,
    deadline: Instant,
    record: ProcessRecord,
    used: Option<&Use>,
) -> Result<Response, Refused> {
    let process_view = match (wait, used) {
        (Wait::Nothing, _) => view::process(&record),
        (Wait::End, used) => {
            let record = waiting.end(deadline, record).await?;
            let kept =
                used.map_or(ExecRequest::OUTPUT_BYTES_MAX, |used| used.limits().exec_output_bytes);
            let output = Some(output(waiting, kept).await?);
            wire::Process { output, ..view::process(&record) }
        }
        (Wait::Ports(ports), Some(used)) => {
            let (record, open) = waiting.ports(deadline, record, used, ports).await?;
            wire::Process { ports_open: Some(open), ..view::process(&record) }
        }
        (Wait::Ports(_), None) => {
            wire::Process { ports_open: Some(false), ..view::process(&record) }
        }
    };
    answer::json(StatusCode::CREATED, &process_view)
}
