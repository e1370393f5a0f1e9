//! Exec: runs a program to its end and returns its output, or streams the output.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{Collected, ExecSpec, RunLimits, Stdin, Use, UseKind};
use http::HeaderMap;
use model::ErrorCode;
use tokio::time::Instant;
use wire::{ExecExit, ExecRequest, ExecResult};

use crate::accepts;
use crate::exec_stream::{ExecStream, StreamOptions};
use crate::use_routes::{TARGETS, TargetSpec};
use web::answer::{self, Step};
use web::app::App;
use web::body::{Json, json_up_to};
use web::exec_exit::exit;
use web::front::{Admitted, Needs};
use web::input_checks::{checked, checked_command, checked_env, checked_stdin};
use web::key_watch::while_it_works;
use web::operation::{Content, Operation, Route, Takes, Verb, json};
use web::query::NoQuery;
use web::refused::Refused;
use web::stream::{self, Format, NDJSON, SSE};
use web::use_target::UseTarget;

/// Output of so many bytes becomes JSON on another thread. It takes milliseconds, in which this
/// thread would serve no other request.
const LARGE_OUTPUT_BYTES: usize = 64 * 1024;

/// Error codes of any use of a sandbox.
pub(super) const USING: &[ErrorCode] = &[
    ErrorCode::SandboxGone,
    ErrorCode::SandboxCrashed,
    ErrorCode::SandboxBusy,
    ErrorCode::Oom,
    ErrorCode::DiskLimit,
    ErrorCode::PathNotFound,
    ErrorCode::PathExists,
    ErrorCode::PathDenied,
    ErrorCode::PathWrongKind,
    ErrorCode::LimitReached,
    ErrorCode::InvalidArgument,
    ErrorCode::TooLarge,
    ErrorCode::Unsupported,
    ErrorCode::CapacityExhausted,
    ErrorCode::ProcessUnknown,
    ErrorCode::DeadlineExceeded,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().map(route).collect()
}

fn route(target: &TargetSpec) -> Route {
    let exec = Operation::new(
        target.routes.exec.id,
        "Run a program. The `Accept` header decides whether the answer comes at its end or is a stream",
    )
    .answers(
        200,
        "The result, or a stream of `ExecEvent`s whose last one is `exit` or `error`",
        [json("ExecResult"), Content(SSE, Some("ExecEvent")), Content(NDJSON, Some("ExecEvent"))],
    );
    let exec = exec.takes(Takes::Json("ExecRequest")).refuses(USING).refuses(target.refuses);
    Route::new(Verb::Post, target.routes.exec.path, Needs::Use, self::exec, exec)
}

/// The format of the stream; none if the answer comes at the end.
fn format(headers: &HeaderMap) -> Option<Format> {
    if accepts(headers, SSE) {
        return Some(Format::Sse);
    }
    accepts(headers, NDJSON).then_some(Format::Lines)
}

async fn exec(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    NoQuery: NoQuery,
    id: UseTarget,
    request: Request,
) -> Result<Response, Refused> {
    // A caller that may not use the sandbox must not make the server read a large body.
    id.check(&app, caller)?;
    let format = format(request.headers());
    let Json { value, bytes, share } =
        json_up_to(request, &app, app.settings.exec_bytes_max).await?;
    // The input of the program is a copy, which takes their place.
    drop(bytes);
    let asked = CheckedRequest::new(value)?;
    let slot = format.map(|_| app.long_lived.begin(caller.key)).transpose()?;
    let began = Instant::now();
    let used = id.begin(&app, caller, UseKind::Exec).await?;
    let granted = Instant::now();
    let limits = asked.limits(&used, format.is_none())?;
    let grant = Step { name: "grant", took: granted.duration_since(began), desc: None };
    let (Some(format), Some(slot)) = (format, slot) else {
        let run = async { Ok(used.run(asked.spec, limits).await?) };
        let ran = while_it_works(&app, caller.key, run).await?;
        let exec = Step { name: "exec", took: granted.elapsed(), desc: None };
        let mut response = answered(ran).await?;
        answer::timed(&mut response, &[grant, exec]);
        return Ok(response);
    };
    let request_id = request_id.to_str().unwrap_or_default();
    let (output_bytes, patience) = (asked.output_bytes, limits.timeout);
    let watching =
        StreamOptions { app, caller, patience, output_bytes, format, request_id, share, slot };
    let watched = ExecStream::start(used, asked.spec, watching).await?;
    let mut response = stream::response(format, watched);
    answer::timed(&mut response, &[grant]);
    Ok(response)
}

/// A checked request.
struct CheckedRequest {
    spec: ExecSpec,
    timeout_ms: Option<u64>,
    output_bytes: Option<u64>,
}

impl CheckedRequest {
    fn new(request: ExecRequest) -> Result<Self, Refused> {
        let ExecRequest { command, argv, cwd, env, stdin, stdin_base64, timeout_ms, output_bytes } =
            request;
        let command = checked_command(command, argv)?;
        let stdin = checked_stdin(stdin, stdin_base64)?.map_or(Stdin::Null, Stdin::Bytes);
        let most = ExecRequest::TIMEOUT_MS_MAX;
        if timeout_ms.is_some_and(|ms| ms == 0 || ms > most) {
            let cause = format!("timeout_ms: must be from 1 to {most}");
            return Err(Refused::invalid("timeout_ms", cause));
        }
        let mut spec = ExecSpec::new(command).stdin(stdin);
        spec.cwd = cwd.map(|cwd| checked("cwd", cwd)).transpose()?;
        spec.env = checked_env(env)?;
        Ok(Self { spec, timeout_ms, output_bytes })
    }

    /// The template limits the output that the server buffers: a stream has no limit.
    fn limits(&self, used: &Use, is_kept: bool) -> Result<RunLimits, Refused> {
        let template = used.limits();
        let most = template.exec_output_bytes.min(ExecRequest::OUTPUT_BYTES_MAX);
        let output_bytes = self.output_bytes.unwrap_or(most);
        if is_kept && output_bytes > most {
            let cause = format!("output_bytes: must be at most {most}; a stream has no limit");
            return Err(Refused::invalid("output_bytes", cause));
        }
        let timeout_ms = self.timeout_ms.unwrap_or(template.exec_timeout_ms);
        Ok(RunLimits { output_bytes, timeout: Duration::from_millis(timeout_ms) })
    }
}

async fn answered(ran: Collected) -> Result<Response, Refused> {
    if ran.stdout.len() + ran.stderr.len() < LARGE_OUTPUT_BYTES {
        return answer::ok(&result(ran));
    }
    let answered = tasks::spawn_blocking(move || answer::ok(&result(ran))).await;
    answered.map_err(|error| Refused::new(ErrorCode::Internal, error.to_string()))?
}

fn result(ran: Collected) -> ExecResult {
    let exit = ExecExit {
        truncated: ran.stdout_truncated || ran.stderr_truncated,
        stdout_truncated: ran.stdout_truncated,
        stderr_truncated: ran.stderr_truncated,
        timed_out: ran.timed_out,
        ..exit(&ran.exit, ran.duration)
    };
    ExecResult::new(exit, ran.stdout, ran.stderr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use web::input_checks::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX};

    fn blamed(request: ExecRequest) -> Option<String> {
        CheckedRequest::new(request)
            .err()
            .map(|refused| refused.field.unwrap_or_default().into_owned())
    }

    #[test]
    fn exec_requests_are_refused_by_field() {
        let base = || ExecRequest::shell("true");
        let text = |text: &str| Some(text.to_owned());
        for (request, field) in [
            (base(), None),
            (ExecRequest::argv(["true"]), None),
            (ExecRequest::default(), Some("command")),
            (ExecRequest { argv: Some(vec!["a".into()]), ..base() }, Some("argv")),
            (ExecRequest::argv(Vec::<String>::new()), Some("argv")),
            (ExecRequest::argv([""]), Some("argv")),
            (ExecRequest::argv(["a", ""]), None),
            (ExecRequest::argv(["a", "\0"]), Some("argv")),
            (ExecRequest::argv(vec!["a"; ARGUMENTS_MAX + 1]), Some("argv")),
            (ExecRequest::shell(""), Some("command")),
            (ExecRequest::shell("a\0b"), Some("command")),
            (ExecRequest::shell("x".repeat(ARGUMENT_BYTES_MAX + 1)), Some("command")),
            (ExecRequest { cwd: text(""), ..base() }, Some("cwd")),
            (ExecRequest { stdin: text("a"), ..base() }, None),
            (ExecRequest { stdin_base64: text("YQ=="), ..base() }, None),
            (ExecRequest { stdin_base64: text("a"), ..base() }, Some("stdin_base64")),
            (
                ExecRequest { stdin: text("a"), stdin_base64: text("YQ=="), ..base() },
                Some("stdin_base64"),
            ),
            (ExecRequest { timeout_ms: Some(0), ..base() }, Some("timeout_ms")),
            (ExecRequest { timeout_ms: Some(u64::MAX), ..base() }, Some("timeout_ms")),
            (ExecRequest { env: [("A=".into(), "1".into())].into(), ..base() }, Some("env")),
            (ExecRequest { env: [("A".into(), "\0".into())].into(), ..base() }, Some("env")),
        ] {
            assert_eq!(blamed(request.clone()).as_deref(), field, "{request:?}");
        }
    }
}
