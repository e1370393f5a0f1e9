//! Starting a process, and waiting for its end or for its ports. Nothing that happens to the wait
//! happens to the process.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{ProcessRef, Use, UseKind};
use http::StatusCode;
use model::{ErrorCode, ProcessRecord, SandboxId};
use tokio::time::Instant;
use wire::ExecRequest;

use super::asked::{Asked, Wait};
use super::waiting::Waiting;
use crate::answer;
use crate::app::App;
use crate::body::{Json, json_up_to};
use crate::front::By;
use crate::idempotency::{Answer, Claim};
use crate::path::Named;
use crate::query::NoQuery;
use crate::refused::Refused;
use crate::routes::checkouts::replayed;
use crate::routes::used::Used as _;
use crate::view;

pub(super) async fn start(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SandboxId>,
    request: Request,
) -> Result<Response, Refused> {
    // Who may not use the sandbox has no business sending the input of a program.
    id.check(&app, caller)?;
    let headers = request.headers().clone();
    let Json { value, bytes, share } =
        json_up_to(request, &app, app.settings.exec_bytes_max).await?;
    let Asked { process, wait, wait_ms } = Asked::new(value)?;
    let route = format!("/v1/sandboxes/{id}/processes");
    let claim = app.idempotency.claim(&headers, caller.key, &route, &bytes).await?;
    drop(bytes);
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    if let Some(Answer::Process(process)) = claim.as_ref().and_then(Claim::answer) {
        drop(claim);
        let waiting = Waiting { app: &app, caller, sandbox: id, process };
        let record = app.engine.process(caller, id, &ProcessRef::Id(process)).await?;
        // One that is over is not waited for, and its sandbox may be gone.
        let used = match record.end {
            None if wait != Wait::Nothing => Some(id.begin(&app, caller, UseKind::Exec).await?),
            None | Some(_) => None,
        };
        let mut response = waited(&waiting, &wait, deadline, record, used.as_ref()).await?;
        replayed(&mut response);
        return Ok(response);
    }
    let used = id.begin(&app, caller, UseKind::Exec).await?;
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

/// Nothing is started for a port on which somebody else would answer.
pub(crate) async fn refuse_taken(used: &Use, ports: &[u16]) -> Result<(), Refused> {
    let listening = used.ports().await?;
    match ports.iter().find(|wanted| listening.iter().any(|one| one.port == **wanted)) {
        None => Ok(()),
        Some(port) => {
            let cause = format!("something listens on port {port} already; nothing was started");
            let mut refused = Refused::new(ErrorCode::PortTaken, cause);
            refused.field = Some("wait_for_ports".into());
            Err(refused)
        }
    }
}

/// The answer, after what is waited for.
async fn waited(
    waiting: &Waiting<'_>,
    wait: &Wait,
    deadline: Instant,
    record: ProcessRecord,
    used: Option<&Use>,
) -> Result<Response, Refused> {
    let told = match (wait, used) {
        (Wait::Nothing, _) => view::process(&record),
        (Wait::End, used) => {
            let record = waiting.end(deadline, record).await?;
            let kept =
                used.map_or(ExecRequest::OUTPUT_BYTES_MAX, |used| used.limits().exec_output_bytes);
            let output = Some(waiting.output(kept).await?);
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
    answer::json(StatusCode::CREATED, &told)
}
