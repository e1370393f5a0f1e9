//! The keep-alive status of the sandbox, and ending its keep-alive. A sandbox has one schedule,
//! shared by all callers and interfaces.

use engine::SandboxStatusReport;
use model::ProcessRecord;
use model::state::Wakefulness;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use wire::Time;

use super::{Nothing, UseTarget, now};
use crate::tool::{About, Call, Effect, Tool};
use web::front::Needs;
use web::refused::Refused;

pub(super) fn tools() -> Vec<Tool<UseTarget>> {
    vec![
        Tool::new(
            About::new(
                "stop",
                "End the keepAlive of the processes that have it now, at once or after `timeout` seconds, so that the sandbox \
                 may be frozen. No process is killed. The latest call counts; an immediate one cancels a scheduled one.",
                Needs::Use,
                Effect::Changes,
            ),
            stop,
        ),
        Tool::new(
            About::new(
                "status",
                "Show whether the sandbox is kept from being frozen, and by which processes. This does not thaw it.",
                Needs::Read,
                Effect::Reads,
            ),
            status,
        ),
    ]
}

/// The keep-alive status of a sandbox.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// `awake` while something keeps it from being frozen, else `auto`.
    state: &'static str,
    /// When the keep-alive of the processes ends, in UTC.
    scheduled_stop_at: Option<String>,
    /// The processes that keep it from being frozen.
    keep_alive_processes: Vec<KeepAlive>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeepAlive {
    /// Its process id.
    pid: String,
    /// Its name.
    name: String,
    /// Its command line.
    command: String,
    /// When, in UTC.
    started_at: String,
    /// Its timeout in seconds; 0 is none.
    timeout: u64,
}

impl Status {
    fn new(report: &SandboxStatusReport) -> Self {
        let state = match report.wake.wakefulness {
            Wakefulness::Awake => "awake",
            Wakefulness::Auto => "auto",
        };
        Self {
            state,
            scheduled_stop_at: report.wake.scheduled_stop_at.map(|at| Time::from(at).to_string()),
            keep_alive_processes: report.keep_alive.iter().map(KeepAlive::new).collect(),
        }
    }

    /// The status of a session without a sandbox.
    const fn of_nothing() -> Self {
        Self { state: "auto", scheduled_stop_at: None, keep_alive_processes: Vec::new() }
    }
}

impl KeepAlive {
    fn new(record: &ProcessRecord) -> Self {
        Self {
            pid: record.pid.to_string(),
            name: record.name.to_string(),
            command: record.command.to_string(),
            started_at: Time::from(record.started_at).to_string(),
            timeout: record.timeout_ms / 1000,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Stop {
    /// After this many seconds; at once if not given or 0.
    #[serde(default)]
    timeout: Option<i64>,
}

async fn stop(call: Call<UseTarget>, asked: Stop) -> Result<Status, Refused> {
    let after_s = asked.timeout.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    let Some(sandbox) = now(call.of, &call.app, call.caller)? else {
        return Ok(Status::of_nothing());
    };
    let after_ms = after_s.saturating_mul(1000);
    let report = call.app.engine.stop_keeping_awake(call.caller, sandbox, after_ms).await?;
    Ok(Status::new(&report))
}

async fn status(call: Call<UseTarget>, Nothing {}: Nothing) -> Result<Status, Refused> {
    let Some(sandbox) = now(call.of, &call.app, call.caller)? else {
        return Ok(Status::of_nothing());
    };
    Ok(Status::new(&call.app.engine.sandbox_status(call.caller, sandbox).await?))
}
