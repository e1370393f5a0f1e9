//! Processes of the sandbox. The wait of a call and the timeout of a process are independent: the
//! end of a wait never kills the process.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{
    Command, LogPage, LogQuery, OutputSelection, ProcessQuery, ProcessRef, ProcessRequest, UseKind,
};
use model::process::RestartPolicy;
use model::{ProcessRecord, SandboxId};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use wire::Time;

use super::{Nothing, UseTarget, now};
use crate::tool::{About, Call, Effect, Tool};
use web::front::Needs;
use web::input_checks::{checked, checked_env};
use web::process_wait::{Waiting, refuse_taken};
use web::refused::Refused;

/// The longest that a call waits: clients give up on calls that take a minute.
const WAIT_MAX: Duration = Duration::from_secs(58);
const WAIT_S: u64 = 30;
const STOP_GRACE_MS: u64 = 10_000;
const LIST_MAX: u32 = 1000;
const LOG_BYTES: u64 = 64 << 10;
const LOG_BYTES_MAX: u64 = 1 << 20;

pub(super) fn tools() -> Vec<Tool<UseTarget>> {
    let reads = |name, text| About::new(name, text, Needs::Read, Effect::Reads);
    let changes = |name, text| About::new(name, text, Needs::Use, Effect::Changes);
    vec![
        Tool::new(
            reads(
                "processesList",
                "List the processes of the sandbox, the latest first, without their output.",
            ),
            list,
        ),
        Tool::new(
            changes(
                "processExecute",
                "Start a process. With waitForCompletion the call waits for its end, at most 58 seconds: after that pollRequired is \
                 true, and the process continues. Without keepAlive, timeout only ends the wait; with keepAlive the process \
                 keeps the sandbox from being frozen and is killed after timeout seconds (600 if not given, 0 is never).",
            ),
            execute,
        ),
        Tool::new(reads("processGet", "Get a process with the end of its output."), get),
        Tool::new(reads("processGetLogs", "Get the end of a process's output."), logs),
        Tool::new(
            changes(
                "processStop",
                "Ask a process and everything it started to end, and kill it if it has not after ten seconds.",
            ),
            stop,
        ),
        Tool::new(changes("processKill", "Kill a process and everything it started."), kill),
    ]
}

/// A process.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Process {
    /// Its process id, the same over restarts.
    pid: String,
    /// Its name.
    name: String,
    /// Its command line.
    command: String,
    /// `running`, `completed`, `failed`, `killed` or `stopped`.
    status: &'static str,
    /// When it was started, in UTC.
    started_at: String,
    /// When it ended, in UTC.
    completed_at: Option<String>,
    /// Its exit code; -1 if a signal ended it, null while it runs.
    exit_code: Option<i32>,
    /// Its working directory.
    working_dir: String,
    /// Whether it is restarted when it fails.
    restart_on_failure: bool,
    /// The most restarts; -1 is no limit.
    max_restarts: i64,
    /// How often it was restarted.
    restart_count: u32,
    /// Whether it keeps the sandbox from being frozen.
    keep_alive: bool,
}

impl Process {
    fn new(record: &ProcessRecord) -> Self {
        let end = record.end.as_ref();
        let max_restarts = match record.restart {
            None => 0,
            Some(RestartPolicy { max_restarts: None }) => -1,
            Some(RestartPolicy { max_restarts: Some(most) }) => i64::from(most),
        };
        Self {
            pid: record.pid.to_string(),
            name: record.name.to_string(),
            command: record.command.to_string(),
            status: record.status().as_str(),
            started_at: Time::from(record.started_at).to_string(),
            completed_at: end.map(|end| Time::from(end.at).to_string()),
            exit_code: end.map(|end| end.exit_code.unwrap_or(-1)),
            working_dir: record.cwd.as_deref().unwrap_or_default().to_owned(),
            restart_on_failure: record.restart.is_some(),
            max_restarts,
            restart_count: record.restarts,
            keep_alive: record.keep_alive,
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct ProcessList {
    /// The processes.
    processes: Vec<Process>,
    /// Whether there are older ones that are not listed.
    truncated: bool,
}

async fn list(call: Call<UseTarget>, Nothing {}: Nothing) -> Result<ProcessList, Refused> {
    let Some(sandbox) = now(call.of, &call.app, call.caller)? else {
        return Ok(ProcessList { processes: Vec::new(), truncated: false });
    };
    let query = ProcessQuery { before: None, limit: LIST_MAX, running: false };
    let page = call.app.engine.processes(call.caller, sandbox, &query).await?;
    call.app.engine.note_process_read(call.caller, sandbox);
    let processes = page.processes.iter().map(Process::new).collect();
    Ok(ProcessList { processes, truncated: page.more })
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Execute {
    /// A command line for the shell.
    command: String,
    /// The name of the process; generated if not given.
    #[serde(default)]
    name: Option<String>,
    /// Its working directory; the workspace if not given.
    #[serde(default)]
    working_dir: Option<String>,
    /// Environment variables, added to those of the sandbox.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    /// Wait for its end.
    #[serde(default)]
    wait_for_completion: Option<bool>,
    /// In seconds. Without keepAlive: how long to wait, 30 if not given. With keepAlive: when the
    /// process is killed.
    #[serde(default)]
    timeout: Option<i64>,
    /// Wait until all of these ports are open.
    #[serde(default)]
    wait_for_ports: Option<Vec<u16>>,
    /// Restart it when it fails.
    #[serde(default)]
    restart_on_failure: Option<bool>,
    /// The most restarts; a negative number is no limit.
    #[serde(default)]
    max_restarts: Option<i64>,
    /// Keep the sandbox from being frozen while it runs.
    #[serde(default)]
    keep_alive: Option<bool>,
}

impl Execute {
    /// Seconds that were meant: negative ones were not.
    fn timeout_s(&self) -> Option<u64> {
        self.timeout.and_then(|seconds| u64::try_from(seconds).ok())
    }

    fn is_kept_alive(&self) -> bool {
        self.keep_alive.unwrap_or(false)
    }

    /// How long the call waits. It is never when the process is killed.
    fn wait(&self) -> Duration {
        let seconds = if self.is_kept_alive() { None } else { self.timeout_s() };
        match seconds {
            None if self.is_kept_alive() => WAIT_MAX,
            None | Some(0) => Duration::from_secs(WAIT_S),
            Some(seconds) => Duration::from_secs(seconds).min(WAIT_MAX),
        }
    }

    fn request(&self) -> Result<ProcessRequest, Refused> {
        let restart = self.restart_on_failure.unwrap_or(false).then(|| {
            let most = self.max_restarts.unwrap_or(0);
            RestartPolicy {
                max_restarts: (most >= 0).then(|| u32::try_from(most).unwrap_or(u32::MAX)),
            }
        });
        let kills_after_ms = |seconds: u64| seconds.saturating_mul(1000);
        Ok(ProcessRequest {
            name: self.name.clone(),
            cwd: self.working_dir.clone().map(|cwd| checked("workingDir", cwd)).transpose()?,
            env: checked_env(self.env.clone().unwrap_or_default())?,
            keep_alive: self.is_kept_alive(),
            timeout_ms: self.timeout_s().filter(|_| self.is_kept_alive()).map(kills_after_ms),
            restart,
            ..ProcessRequest::new(Command::Shell(checked("command", self.command.clone())?))
        })
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Executed {
    /// Its process id.
    pid: String,
    /// Its name.
    name: String,
    /// `running`, `completed`, `failed`, `killed` or `stopped`.
    status: &'static str,
    /// Its exit code; -1 if a signal ended it, null while it runs.
    exit_code: Option<i32>,
    /// The end of its output.
    logs: Option<String>,
    /// What to do next.
    message: Option<String>,
    /// The wait ended before the process: check it again with processGet.
    poll_required: Option<bool>,
}

async fn execute(call: Call<UseTarget>, asked: Execute) -> Result<Executed, Refused> {
    let request = asked.request()?;
    let ports = asked.wait_for_ports.clone().unwrap_or_default();
    let used = call.begin(UseKind::Exec).await?;
    if !ports.is_empty() {
        refuse_taken(&used, &ports).await?;
    }
    let until = Instant::now() + asked.wait();
    let record = used.start_process(request).await?;
    let waiting = Waiting {
        app: &call.app,
        caller: call.caller,
        sandbox: used.sandbox(),
        process: record.id,
    };
    let waits_for_end = asked.wait_for_completion.unwrap_or(false);
    let (record, is_done) = if waits_for_end {
        let record = waiting.end(until, record).await?;
        let is_over = record.end.is_some();
        (record, is_over)
    } else if ports.is_empty() {
        (record, true)
    } else {
        let (record, are_open) = waiting.ports(until, record, &used, &ports).await?;
        let is_over = record.end.is_some();
        (record, are_open || is_over)
    };
    let logs = if waits_for_end || record.end.is_some() {
        Some(tail(&call, used.sandbox(), &record, LOG_BYTES).await?.0)
    } else {
        None
    };
    let message = (!is_done).then(|| {
        let what = if waits_for_end { "has not ended" } else { "does not listen on every port" };
        format!(
            "The process {what} yet and continues. Check it with processGet, and read its output with processGetLogs; the \
             identifier is {}.",
            record.name
        )
    });
    Ok(Executed {
        pid: record.pid.to_string(),
        name: record.name.to_string(),
        status: record.status().as_str(),
        exit_code: record.end.as_ref().map(|end| end.exit_code.unwrap_or(-1)),
        logs,
        poll_required: (!is_done).then_some(true),
        message,
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProcessArgument {
    /// The process id or the name of the process.
    identifier: String,
}

#[derive(Serialize, JsonSchema)]
struct ProcessWithLogs {
    #[serde(flatten)]
    process: Process,
    /// The end of its output, both streams in the order in which they came.
    logs: String,
}

async fn get(call: Call<UseTarget>, asked: ProcessArgument) -> Result<ProcessWithLogs, Refused> {
    let sandbox = call.sandbox()?;
    let of = ProcessRef::parse(&asked.identifier);
    let record = call.app.engine.process(call.caller, sandbox, &of).await?;
    call.app.engine.note_process_read(call.caller, sandbox);
    let (logs, _) = tail(&call, sandbox, &record, LOG_BYTES).await?;
    Ok(ProcessWithLogs { process: Process::new(&record), logs })
}

#[derive(Serialize, JsonSchema)]
struct Logs {
    /// Both streams in the order in which they came.
    logs: String,
    /// Whether there was more before.
    truncated: bool,
}

async fn logs(call: Call<UseTarget>, asked: ProcessArgument) -> Result<Logs, Refused> {
    let sandbox = call.sandbox()?;
    let of = ProcessRef::parse(&asked.identifier);
    let record = call.app.engine.process(call.caller, sandbox, &of).await?;
    call.app.engine.note_process_read(call.caller, sandbox);
    let (logs, truncated) = tail(&call, sandbox, &record, LOG_BYTES_MAX).await?;
    Ok(Logs { logs, truncated })
}

/// The end of a process's output, and whether there was more before.
async fn tail(
    call: &Call<UseTarget>,
    sandbox: SandboxId,
    record: &ProcessRecord,
    max_bytes: u64,
) -> Result<(String, bool), Refused> {
    let query = LogQuery { wanted: OutputSelection::Both, offset: None, max_bytes };
    let of = ProcessRef::Id(record.id);
    let page = call.app.engine.process_log(call.caller, sandbox, &of, query).await?;
    Ok(joined(&page))
}

fn joined(page: &LogPage) -> (String, bool) {
    let bytes: Vec<u8> = page.pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
    let is_cut = page.pieces.first().is_some_and(|piece| piece.offset > 0);
    (String::from_utf8_lossy(&bytes).into_owned(), is_cut)
}

#[derive(Serialize, JsonSchema)]
struct Ended {
    /// How it ended: `stopped`, or `killed`.
    status: &'static str,
}

async fn stop(call: Call<UseTarget>, asked: ProcessArgument) -> Result<Ended, Refused> {
    let sandbox = call.sandbox()?;
    let of = ProcessRef::parse(&asked.identifier);
    let ended = call.app.engine.stop_process(call.caller, sandbox, &of, STOP_GRACE_MS).await?;
    Ok(Ended { status: ended.status().as_str() })
}

async fn kill(call: Call<UseTarget>, asked: ProcessArgument) -> Result<Ended, Refused> {
    let sandbox = call.sandbox()?;
    let of = ProcessRef::parse(&asked.identifier);
    let ended = call.app.engine.kill_process(call.caller, sandbox, &of).await?;
    Ok(Ended { status: ended.status().as_str() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(keep_alive: bool, timeout: Option<i64>) -> Execute {
        let value = serde_json::json!({
            "command": "true", "keepAlive": keep_alive, "timeout": timeout,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn process_wait_is_bounded_and_kills_nothing() {
        for (keep_alive, timeout, wait_s, kill_ms) in [
            (false, None, 30, None),
            (false, Some(5), 5, None),
            (false, Some(3600), 58, None),
            (false, Some(-1), 30, None),
            (true, None, 58, None),
            (true, Some(3600), 58, Some(3_600_000)),
            (true, Some(5), 58, Some(5_000)),
            (true, Some(0), 58, Some(0)),
            (true, Some(-1), 58, None),
        ] {
            let asked = asked(keep_alive, timeout);
            assert_eq!(asked.wait().as_secs(), wait_s, "{keep_alive} {timeout:?}");
            assert_eq!(asked.request().unwrap().timeout_ms, kill_ms, "{keep_alive} {timeout:?}");
        }
    }
}
