//! Programs in the sandbox of a session, beside what its agent does.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::{Collected, ExecSpec, ExitStatus, RunLimits, UseKind, bridge_variables};
use serde_json::{Value, json};

use super::errors::AshError;
use super::fields::{At, session_id};
use super::known_sessions::find_session;
use super::messages::refuse_unless_active;
use super::{Routes, answer, request_body};
use crate::app::App;
use web::front::{By, Needs};

const COMMAND_CHARS_MAX: usize = 100_000;
const TIMEOUT_MS: u64 = 30_000;
const TIMEOUT_MS_MAX: u64 = 300_000;
/// What Ash answers for a program that did not end by itself.
const CUT_SHORT: i32 = 1;

pub(super) fn routes(routes: &mut Routes) {
    let (of, name) = ("/api/sessions/{id}/exec", "/compat/ash/api/sessions/{id}/exec");
    routes.add(MethodFilter::POST, of, name, Needs::Use, exec);
}

async fn exec(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let mut body = request_body::fields(request, &app, app.settings.json_bytes_max).await?;
    let command = body.required_text("command", COMMAND_CHARS_MAX)?;
    let timeout_ms = body.number("timeout", 1, TIMEOUT_MS_MAX)?.unwrap_or(TIMEOUT_MS);
    body.refuse_rest()?;
    if command.is_empty() || command.contains('\0') {
        return Err(AshError::invalid("body/command must be a line for the shell"));
    }
    refuse_unless_active(find_session(&app, caller, id).await?.status, app.options.strict)?;
    let used = app.engine.use_session(caller, id, UseKind::Exec, Some(0)).await?;
    let output_bytes = used.limits().exec_output_bytes;
    let limits = RunLimits { output_bytes, timeout: Duration::from_millis(timeout_ms) };
    let mut spec = ExecSpec::shell(command);
    // A program finds what it would find in a bridge, which runs it in Ash.
    spec.env.extend(bridge_variables(id, used.sandbox()));
    let ran = used.run(spec, limits).await?;
    Ok(answer::ok(&result_view(&ran)))
}

fn result_view(ran: &Collected) -> Value {
    let exit_code = match ran.exit.status {
        ExitStatus::Code(code) => i64::from(code),
        ExitStatus::Signal(_) => CUT_SHORT.into(),
    };
    json!({
        "exitCode": exit_code,
        "stdout": String::from_utf8_lossy(&ran.stdout),
        "stderr": String::from_utf8_lossy(&ran.stderr),
        "timedOut": ran.timed_out,
        "truncated": ran.stdout_truncated || ran.stderr_truncated,
    })
}
