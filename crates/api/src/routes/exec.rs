//! Programs: run to their end with their output kept, or watched while they run.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{Collected, Command, ExecSpec, Exit, ExitStatus, RunLimits, Stdin, Use, UseKind};
use http::HeaderMap;
use model::{ErrorCode, SandboxId, SessionId};
use tokio::time::Instant;
use wire::{ExecExit, ExecRequest, ExecResult};

use crate::answer::{self, Step};
use crate::app::App;
use crate::body::{Json, json_up_to};
use crate::exec_stream::{Watched, Watching};
use crate::front::{Admitted, Needs};
use crate::key_watch::while_it_works;
use crate::operation::{Content, Operation, Route, Takes, Verb, json};
use crate::path::Named;
use crate::query::NoQuery;
use crate::refused::Refused;
use crate::routes::accepts;
use crate::routes::used::Used;
use crate::stream::{self, Format, NDJSON, SSE};

const ARGUMENTS_MAX: usize = 4096;
const ARGUMENT_BYTES_MAX: usize = 128 * 1024;
pub(super) const STDIN_BYTES_MAX: usize = 16 << 20;

/// What any use of a sandbox may be refused for.
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
    vec![route::<SandboxId>(), route::<SessionId>()]
}

fn route<T: Used>() -> Route {
    let exec = Operation::new(
        T::AT.exec.id,
        "Run a program; by `Accept` its end is waited for, or it is watched as a stream",
    )
    .answers(
        200,
        "What came of it, or a stream of `ExecEvent`s of which the last is `exit` or `error`",
        [json("ExecResult"), Content(SSE, Some("ExecEvent")), Content(NDJSON, Some("ExecEvent"))],
    );
    let exec = exec.takes(Takes::Json("ExecRequest")).refuses(USING).refuses(T::REFUSES);
    Route::new(Verb::Post, T::AT.exec.path, Needs::Use, self::exec::<T>, exec)
}

/// How the program is to be watched; not at all if its end is waited for.
fn format(headers: &HeaderMap) -> Option<Format> {
    if accepts(headers, SSE) {
        return Some(Format::Sse);
    }
    accepts(headers, NDJSON).then_some(Format::Lines)
}

async fn exec<T: Used>(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    NoQuery: NoQuery,
    Named(id): Named<T>,
    request: Request,
) -> Result<Response, Refused> {
    // Who may not use the sandbox has no business sending the input of a program.
    id.check(&app, caller)?;
    let format = format(request.headers());
    let Json { value, bytes, share } =
        json_up_to(request, &app, app.settings.exec_bytes_max).await?;
    // The input of the program is a copy, which takes their place.
    drop(bytes);
    let asked = Asked::new(value)?;
    let began = Instant::now();
    let used = id.begin(&app, caller, UseKind::Exec).await?;
    let granted = Instant::now();
    let limits = asked.limits(&used, format.is_none())?;
    let grant = Step { name: "grant", took: granted.duration_since(began), desc: None };
    let Some(format) = format else {
        let run = async { Ok(used.run(asked.spec, limits).await?) };
        let ran = while_it_works(&app, caller.key, run).await?;
        let exec = Step { name: "exec", took: granted.elapsed(), desc: None };
        let mut response = answer::ok(&result(ran))?;
        answer::timed(&mut response, &[grant, exec]);
        return Ok(response);
    };
    let request_id = request_id.to_str().unwrap_or_default();
    let (output_bytes, patience) = (asked.output_bytes, limits.timeout);
    let watching = Watching { app, caller, patience, output_bytes, format, request_id, share };
    let watched = Watched::start(used, asked.spec, watching).await?;
    let mut response = stream::response(format, watched);
    answer::timed(&mut response, &[grant]);
    Ok(response)
}

/// A program that could be run.
struct Asked {
    spec: ExecSpec,
    timeout_ms: Option<u64>,
    output_bytes: Option<u64>,
}

impl Asked {
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

    /// The template bounds how much output the server keeps: who wants more takes it as a stream.
    fn limits(&self, used: &Use, is_kept: bool) -> Result<RunLimits, Refused> {
        let template = used.limits();
        let most = template.exec_output_bytes.min(ExecRequest::OUTPUT_BYTES_MAX);
        let output_bytes = self.output_bytes.unwrap_or(most);
        if is_kept && output_bytes > most {
            let cause = format!("output_bytes: at most {most} are kept; a stream has no limit");
            return Err(Refused::invalid("output_bytes", cause));
        }
        let timeout_ms = self.timeout_ms.unwrap_or(template.exec_timeout_ms);
        Ok(RunLimits { output_bytes, timeout: Duration::from_millis(timeout_ms) })
    }
}

/// What to run, if exactly one way to say it was used.
pub(super) fn checked_command(
    command: Option<String>,
    argv: Option<Vec<String>>,
) -> Result<Command, Refused> {
    match (command, argv) {
        (Some(line), None) => Ok(Command::Shell(checked("command", line)?)),
        (None, Some(argv)) => Ok(Command::Argv(checked_argv(argv)?)),
        (Some(_), Some(_)) => {
            Err(Refused::invalid("argv", "only one of command and argv may be given"))
        }
        (None, None) => Err(Refused::invalid("command", "one of command and argv must be given")),
    }
}

/// The input of a program, if it was given in at most one way.
pub(crate) fn checked_stdin(
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, Refused> {
    let stdin = match (text, base64) {
        (None, None) => None,
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(text)) => {
            let wrong = |error: wire::Base64Error| {
                Refused::invalid("stdin_base64", format!("stdin_base64: {error}"))
            };
            Some(wire::from_base64(&text).map_err(wrong)?)
        }
        (Some(_), Some(_)) => {
            let cause = "only one of stdin and stdin_base64 may be given";
            return Err(Refused::invalid("stdin_base64", cause));
        }
    };
    if stdin.as_ref().is_some_and(|bytes| bytes.len() > STDIN_BYTES_MAX) {
        let cause = format!("the input has more than {STDIN_BYTES_MAX} bytes");
        return Err(Refused::new(ErrorCode::TooLarge, cause));
    }
    Ok(stdin)
}

pub(crate) fn checked(field: &'static str, text: String) -> Result<String, Refused> {
    if text.contains('\0') {
        return Err(Refused::invalid(field, format!("{field}: has a zero byte in it")));
    }
    if text.is_empty() {
        return Err(Refused::invalid(field, format!("{field}: is empty")));
    }
    if text.len() > ARGUMENT_BYTES_MAX {
        let cause = format!("{field}: has more than {ARGUMENT_BYTES_MAX} bytes");
        return Err(Refused::invalid(field, cause));
    }
    Ok(text)
}

pub(super) fn checked_argv(argv: Vec<String>) -> Result<Vec<String>, Refused> {
    let wrong = |cause: String| Err(Refused::invalid("argv", format!("argv: {cause}")));
    match argv.first() {
        None => return wrong("is empty".to_owned()),
        Some(program) if program.is_empty() => {
            return wrong("the name of the program is empty".to_owned());
        }
        Some(_) => {}
    }
    if argv.len() > ARGUMENTS_MAX {
        return wrong(format!("has more than {ARGUMENTS_MAX} arguments"));
    }
    let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
    if bytes > ARGUMENT_BYTES_MAX {
        return wrong(format!("has more than {ARGUMENT_BYTES_MAX} bytes"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return wrong("an argument has a zero byte in it".to_owned());
    }
    Ok(argv)
}

pub(crate) fn checked_env(env: BTreeMap<String, String>) -> Result<Vec<(String, String)>, Refused> {
    let wrong = |cause: String| Err(Refused::invalid("env", format!("env: {cause}")));
    let mut bytes = 0;
    for (name, value) in &env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return wrong("a name is empty, or has a = or a zero byte in it".to_owned());
        }
        if value.contains('\0') {
            return wrong(format!("the value of {name:?} has a zero byte in it"));
        }
        bytes += name.len() + value.len() + 2;
    }
    if bytes > ARGUMENT_BYTES_MAX {
        return wrong(format!("has more than {ARGUMENT_BYTES_MAX} bytes"));
    }
    Ok(env.into_iter().collect())
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

/// How a program ended; what its outputs were cut to is not known here.
pub(crate) fn exit(exit: &Exit, took: Duration) -> ExecExit {
    let (exit_code, signal) = match exit.status {
        ExitStatus::Code(code) => (code, None),
        ExitStatus::Signal(signal) => (128 + signal, Some(model::signals::name(signal))),
    };
    ExecExit {
        exit_code,
        signal,
        oom: exit.out_of_memory,
        duration_ms: (took.as_secs_f64() * 1_000_000.0).round() / 1000.0,
        ..ExecExit::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blamed(request: ExecRequest) -> Option<String> {
        Asked::new(request).err().map(|refused| refused.field.unwrap_or_default().into_owned())
    }

    #[test]
    fn requests_that_could_not_be_run_are_refused_by_field() {
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

    #[test]
    fn a_signal_has_a_name_and_a_code() {
        let of =
            |status| Exit { status, out_of_memory: false, user_us: 0, system_us: 0, max_rss_kb: 0 };
        let took = Duration::from_micros(612);
        let killed = exit(&of(ExitStatus::Signal(9)), took);
        assert_eq!((killed.exit_code, killed.signal.as_deref()), (137, Some("SIGKILL")));
        let ended = exit(&of(ExitStatus::Code(3)), took);
        assert_eq!((ended.exit_code, ended.signal, ended.duration_ms), (3, None, 0.612));
    }
}
