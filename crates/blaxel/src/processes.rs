//! Starts, waits for, lists, shows, stops and kills processes, and writes their input. A wait is a
//! use of the sandbox, and so is a read while a process runs. A `timeout` ends only the wait; with
//! keepAlive it kills the process.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use engine::{
    Command, OutputSelection, ProcessInput, ProcessQuery, ProcessRef, ProcessRequest, Use, UseKind,
};

use model::process::RestartPolicy;
use model::{ErrorCode, ProcessRecord};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::errors::BlaxelError;
use super::exec_stream::ExecStream;
use super::paths::FilePath;
use super::port_wait::{self, Opened};
use super::process_view::{INLINE_BYTES, ProcessText, ProcessView, Where, shown, written};
use super::target::{Target, is_unknown};
use super::{answer, request_body};
use web::body_memory::Share;

/// The longest that a request waits where it does not say how long.
pub(super) const WAIT_MAX: Duration = Duration::from_hours(24);
/// How long the end of a process that is to be killed at its timeout may take to be seen.
const KILL_GRACE: Duration = Duration::from_secs(30);
/// How long a process that is asked to end may take before it is killed.
const STOP_GRACE_MS: u64 = 10_000;
const PORTS_MAX: usize = 64;
const PAGE: u32 = 1_000;
const LISTED_MAX: usize = 10_000;
/// A list shows the output of this many processes, the latest ones.
const WRITTEN_MAX: usize = 20;
/// How much of each output the logs show.
const LOGS_BYTES: u64 = 4 << 20;

/// A request to start a process. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StartRequest {
    command: Option<String>,
    name: Option<String>,
    working_dir: Option<String>,
    env: Option<BTreeMap<String, String>>,
    wait_for_completion: Option<bool>,
    timeout: Option<i64>,
    wait_for_ports: Option<Vec<u16>>,
    restart_on_failure: Option<bool>,
    max_restarts: Option<i64>,
    keep_alive: Option<bool>,
    stdin: Option<bool>,
}

impl StartRequest {
    fn is_on(flag: Option<bool>) -> bool {
        flag.unwrap_or(false)
    }

    /// The request for the engine.
    fn request(&self) -> Result<ProcessRequest, BlaxelError> {
        let command = self.command.as_deref().filter(|command| !command.is_empty());
        let Some(command) = command else {
            return Err(BlaxelError::bad("invalid request body: command is required"));
        };
        if self.wait_for_ports.as_ref().is_some_and(|ports| ports.len() > PORTS_MAX) {
            let cause = format!("invalid request body: at most {PORTS_MAX} ports");
            return Err(BlaxelError::bad(cause));
        }
        let mut request = ProcessRequest::new(Command::Shell(command.to_owned()));
        request.name = self.name.clone().filter(|name| !name.is_empty());
        let given = self.working_dir.as_deref().filter(|path| !path.is_empty());
        request.cwd = given.map(|path| {
            let path = FilePath::new(path);
            // As it was given, where that means the same.
            if path.shown.starts_with('/') { path.shown } else { path.whole }
        });
        request.env = self.env.clone().unwrap_or_default().into_iter().collect();
        request.stdin =
            if Self::is_on(self.stdin) { ProcessInput::Open } else { ProcessInput::Null };
        request.keep_alive = Self::is_on(self.keep_alive);
        request.timeout_ms = match (request.keep_alive, self.timeout) {
            // Nothing kills it.
            (false, _) => Some(0),
            (true, Some(seconds)) => u64::try_from(seconds).ok().map(|s| s.saturating_mul(1000)),
            (true, None) => None,
        };
        request.restart = Self::is_on(self.restart_on_failure).then(|| {
            let max = self.max_restarts.unwrap_or(0);
            // A negative number is no limit.
            let max_restarts = (max >= 0).then(|| u32::try_from(max).unwrap_or(u32::MAX));
            RestartPolicy { max_restarts }
        });
        Ok(request)
    }

    /// How long to wait, and the seconds that the client meant by it.
    fn patience(&self) -> Patience {
        let seconds = self.timeout.and_then(|seconds| u64::try_from(seconds).ok());
        let seconds = seconds.filter(|seconds| *seconds > 0);
        let keeps = Self::is_on(self.keep_alive);
        let wait = match seconds {
            None => WAIT_MAX,
            // It is killed then, and its end is the answer.
            Some(seconds) if keeps => Duration::from_secs(seconds).saturating_add(KILL_GRACE),
            Some(seconds) => Duration::from_secs(seconds),
        };
        Patience { wait: wait.min(WAIT_MAX + KILL_GRACE) }
    }
}

/// How long a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Patience {
    pub(super) wait: Duration,
}

impl Patience {
    /// The refusal when the wait is at its end. The process continues.
    pub(super) fn timed_out(self) -> BlaxelError {
        let text = format!("process timed out after {} seconds", self.wait.as_secs());
        BlaxelError::new(422, text).with_code(ErrorCode::DeadlineExceeded)
    }
}

pub(super) async fn start(target: &Target, request: Request) -> Result<Response, BlaxelError> {
    let app = &target.app;
    let accept = request_body::accept(request.headers());
    let streams = ["text/event-stream", "application/x-ndjson"].map(|kind| accept.contains(kind));
    let (bytes, _share) = request_body::bytes(request, app, app.settings.exec_bytes_max).await?;
    let asked: StartRequest = request_body::parse(&bytes)?;
    let wanted = asked.request()?;
    let patience = asked.patience();
    let is_streamed = streams.contains(&true);
    let slot = is_streamed.then(|| app.long_lived.begin(target.key)).transpose()?;
    let used = target.begin(UseKind::Exec).await?;
    let ports = asked.wait_for_ports.clone().unwrap_or_default();
    if let Some(slot) = slot {
        let started = begin(&used, wanted, &ports).await;
        return Ok(ExecStream::response(target, (used, slot), started, patience).await);
    }
    let record = begin(&used, wanted, &ports).await?;
    let waits = StartRequest::is_on(asked.wait_for_completion);
    let record = if waits {
        wait(target, &used, &record, patience).await?
    } else if ports.is_empty() {
        record
    } else {
        opened(target, &used, record, &ports, patience).await?
    };
    let shown_where = if waits || !ports.is_empty() { Where::Alone } else { Where::Started };
    let written = match shown_where {
        // It was only just started: what it may have written already is for those who ask.
        Where::Started => ProcessText::default(),
        Where::Alone | Where::Listed => written(app, target.caller, &record, INLINE_BYTES).await?,
    };
    answer::ok(&shown(&record, written, shown_where))
}

async fn begin(
    used: &Use,
    wanted: ProcessRequest,
    ports: &[u16],
) -> Result<ProcessRecord, BlaxelError> {
    port_wait::refuse_taken(used, ports).await?;
    let (name, cwd) = (wanted.name.clone(), wanted.cwd.clone());
    let Command::Shell(command) = wanted.command.clone() else {
        return Err(BlaxelError::bad("invalid request body: command is required"));
    };
    match used.start_process(wanted).await {
        Ok(record) => Ok(record),
        Err(refusal) if refusal.code == ErrorCode::ProcessNameTaken => {
            let name = name.unwrap_or_default();
            let text = format!("process with name '{name}' already exists and is running");
            Err(BlaxelError::bad(text).with_code(ErrorCode::ProcessNameTaken))
        }
        Err(refusal) => {
            let is_of_process = [
                ErrorCode::PathNotFound,
                ErrorCode::PathWrongKind,
                ErrorCode::PathDenied,
                ErrorCode::LaunchFailed,
                ErrorCode::LimitReached,
            ];
            let is_of_process = is_of_process.contains(&refusal.code);
            // An ended or busy sandbox cannot be listed either; report that instead.
            let is_missing = match &cwd {
                Some(cwd) if is_of_process => is_missing(used, cwd).await,
                Some(_) | None => false,
            };
            let error = BlaxelError::from(refusal);
            let text = match cwd {
                Some(cwd) if is_missing => format!(
                    "failed to start process: could not execute command '{command}' because \
                     folder '{cwd}' does not exist"
                ),
                Some(_) | None => format!("failed to start process: {}", error.text),
            };
            let status = if is_of_process { 422 } else { error.status };
            Err(error.with_text(text).with_status(status))
        }
    }
}

/// Whether there is no such directory.
async fn is_missing(used: &Use, path: &str) -> bool {
    let codes = [ErrorCode::PathNotFound, ErrorCode::PathWrongKind];
    used.list_files(path, None, 1).await.is_err_and(|refusal| codes.contains(&refusal.code))
}

async fn wait(
    target: &Target,
    used: &Use,
    record: &ProcessRecord,
    patience: Patience,
) -> Result<ProcessRecord, BlaxelError> {
    let of = ProcessRef::Id(record.id);
    let over = target.app.engine.wait_process(target.caller, used.sandbox(), &of);
    tokio::select! {
        over = timeout(patience.wait, over) => match over {
            Ok(record) => Ok(record?),
            Err(_) => Err(patience.timed_out()),
        },
        () = target.server_stops() => Err(stopping()),
    }
}

/// The refusal of a wait when the server stops.
pub(super) fn stopping() -> BlaxelError {
    let cause = "the server stopped during the wait for the process";
    model::Refusal::new(ErrorCode::ShuttingDown, cause).into()
}

async fn opened(
    target: &Target,
    used: &Use,
    record: ProcessRecord,
    ports: &[u16],
    patience: Patience,
) -> Result<ProcessRecord, BlaxelError> {
    let of = ProcessRef::Id(record.id);
    let over = target.app.engine.wait_process(target.caller, used.sandbox(), &of);
    let open = timeout(patience.wait, port_wait::until_open(used, &record, ports, over));
    let open = tokio::select! {
        open = open => open,
        () = target.server_stops() => return Err(stopping()),
    };
    match open {
        Ok(Ok(Opened::All)) => {
            Ok(target.app.engine.process(target.caller, used.sandbox(), &of).await?)
        }
        Ok(Ok(Opened::Over(record))) => Ok(*record),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(patience.timed_out()),
    }
}

pub(super) async fn list(target: &Target) -> Result<Response, BlaxelError> {
    let mut records: Vec<ProcessRecord> = Vec::new();
    for sandbox in target.all() {
        let mut before = None;
        loop {
            let query = ProcessQuery { before, limit: PAGE, running: false };
            let page = match target.app.engine.processes(target.caller, sandbox, &query).await {
                Ok(page) => page,
                Err(refusal) if is_unknown(&refusal) => break,
                Err(refusal) => return Err(refusal.into()),
            };
            before = page.processes.last().filter(|_| page.more).map(|last| last.number);
            records.extend(page.processes);
            if before.is_none() || records.len() >= LISTED_MAX {
                break;
            }
        }
    }
    records.truncate(LISTED_MAX);
    target.note_process_read();
    let mut listed: Vec<ProcessView<'_>> = Vec::with_capacity(records.len());
    for (n, record) in records.iter().enumerate() {
        let written = if n < WRITTEN_MAX {
            written(&target.app, target.caller, record, INLINE_BYTES).await?
        } else {
            ProcessText::default()
        };
        listed.push(shown(record, written, Where::Listed));
    }
    answer::counted(&target.app, Share::default(), &listed)
}

pub(super) async fn get(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    target.note_process_read();
    let written = written(&target.app, target.caller, &record, INLINE_BYTES).await?;
    answer::ok(&shown(&record, written, Where::Alone))
}

pub(super) async fn logs(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    target.note_process_read();
    let written = written(&target.app, target.caller, &record, LOGS_BYTES).await?;
    let both = written.both();
    let logs_view = json!({"stdout": written.stdout, "stderr": written.stderr, "logs": both});
    answer::counted(&target.app, Share::default(), &logs_view)
}

pub(super) async fn stop(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let (of, record) = running(target, id, "stop").await?;
    let engine = &target.app.engine;
    let done = engine.stop_process(target.caller, record.sandbox, &of, STOP_GRACE_MS).await;
    done.map_err(|refusal| ended(refusal.into(), id, "stop"))?;
    answer::ok(&json!({"message": "Process stopped successfully"}))
}

pub(super) async fn kill(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let (of, record) = running(target, id, "kill").await?;
    let done = target.app.engine.kill_process(target.caller, record.sandbox, &of).await;
    done.map_err(|refusal| ended(refusal.into(), id, "kill"))?;
    answer::ok(&json!({"message": "Process killed successfully"}))
}

/// A process to end; an ended one is refused.
async fn running(
    target: &Target,
    id: &str,
    verb: &str,
) -> Result<(ProcessRef, ProcessRecord), BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    if record.end.is_some() {
        return Err(not_running(id, verb));
    }
    Ok((ProcessRef::Id(record.id), record))
}

fn not_running(id: &str, verb: &str) -> BlaxelError {
    let text = format!("failed to {verb} process {id}: the process is not running");
    BlaxelError::new(404, text).with_code(ErrorCode::ProcessOver)
}

/// One that ended while it was to be ended was not running either.
fn ended(error: BlaxelError, id: &str, verb: &str) -> BlaxelError {
    if error.is(ErrorCode::ProcessOver) { not_running(id, verb) } else { error }
}

pub(super) async fn write_stdin(
    target: &Target,
    id: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    let app = &target.app;
    let (bytes, _share) = request_body::bytes(request, app, app.settings.exec_bytes_max).await?;
    let of = ProcessRef::Id(record.id);
    app.engine.write_stdin(target.caller, record.sandbox, &of, bytes).await?;
    answer::done("", "Input written successfully")
}

pub(super) async fn close_stdin(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let record = target.process(&ProcessRef::parse(id)).await?;
    let of = ProcessRef::Id(record.id);
    target.app.engine.close_stdin(target.caller, record.sandbox, &of).await?;
    answer::done("", "Input closed successfully")
}

/// The outputs in a stream of logs.
pub(super) const BOTH: OutputSelection = OutputSelection::Both;

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> StartRequest {
        request_body::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn process_timeout_kills_only_with_keep_alive() {
        for (text, killed_ms, wait_s) in [
            (r#"{"command":"a"}"#, Some(0), WAIT_MAX.as_secs()),
            (r#"{"command":"a","timeout":5}"#, Some(0), 5),
            (r#"{"command":"a","timeout":0}"#, Some(0), WAIT_MAX.as_secs()),
            (r#"{"command":"a","keepAlive":true}"#, None, WAIT_MAX.as_secs()),
            (r#"{"command":"a","keepAlive":true,"timeout":-1}"#, None, WAIT_MAX.as_secs()),
            (r#"{"command":"a","keepAlive":true,"timeout":0}"#, Some(0), WAIT_MAX.as_secs()),
            (r#"{"command":"a","keepAlive":true,"timeout":5}"#, Some(5000), 35),
        ] {
            let asked = asked(text);
            assert_eq!(asked.request().unwrap().timeout_ms, killed_ms, "{text}");
            assert_eq!(asked.patience().wait.as_secs(), wait_s, "{text}");
        }
    }

    #[test]
    fn process_request_is_read_leniently_but_needs_a_command() {
        let full = asked(
            r#"{"command":"a","cwd":"ignored","workingDir":"~/x","env":{"A":"1"},"stdin":true,
                "restartOnFailure":true,"maxRestarts":-1,"name":null,"waitForPorts":null}"#,
        );
        let request = full.request().unwrap();
        assert_eq!(request.cwd.as_deref(), Some("/workspace/x"));
        assert_eq!(request.env, [("A".to_owned(), "1".to_owned())]);
        assert!(matches!(request.stdin, ProcessInput::Open));
        assert_eq!(request.restart, Some(RestartPolicy { max_restarts: None }));
        let none = asked(r#"{"command":"a","restartOnFailure":true}"#).request().unwrap();
        assert_eq!(none.restart, Some(RestartPolicy { max_restarts: Some(0) }));
        for bad in ["", "{}", r#"{"command":""}"#] {
            assert_eq!(asked(bad).request().unwrap_err().status, 400, "{bad}");
        }
        for bad in ["[]", "nonsense", r#"{"command":7}"#, r#"{"command":"a","env":{"A":1}}"#] {
            assert!(request_body::parse::<StartRequest>(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
