//! The keep-alive status of a sandbox, and ending its keep-alive, which kills nothing. Reading does
//! not count as activity and thaws nothing. A session without a sandbox has no keep-alive; one that
//! has ended is refused.

use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use engine::SandboxStatusReport;
use model::state::Wakefulness;
use model::{ErrorCode, ProcessRecord, Wall};
use serde::{Deserialize, Serialize};

use super::errors::BlaxelError;
use super::target::Target;
use super::{answer, request_body};

/// A year: the longest delay.
const TIMEOUT_S_MAX: f64 = 31_536_000.0;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StopRequest {
    timeout: Option<f64>,
}

impl StopRequest {
    /// An unreadable delay means at once, as in Blaxel.
    fn after_ms(bytes: &[u8]) -> u64 {
        let asked: Self = serde_json::from_slice(bytes).unwrap_or_default();
        let seconds = asked.timeout.unwrap_or(0.0);
        let seconds = seconds.clamp(0.0, TIMEOUT_S_MAX);
        Duration::try_from_secs_f64(seconds).map_or(0, |after| after.as_millis() as u64)
    }
}

pub(super) async fn status(target: &Target) -> Result<Response, BlaxelError> {
    target.refuse_if_over().await?;
    let Some(sandbox) = target.now() else { return answer::ok(&resting()) };
    match target.app.engine.sandbox_status(target.caller, sandbox).await {
        Ok(report) => answer::ok(&status_view(&report)),
        Err(refusal) if refusal.code == ErrorCode::SandboxGone => answer::ok(&resting()),
        Err(refusal) => Err(refusal.into()),
    }
}

pub(super) async fn stop(target: &Target, request: Request) -> Result<Response, BlaxelError> {
    let app = &target.app;
    let (bytes, _share) = request_body::bytes(request, app, app.settings.json_bytes_max).await?;
    let after_ms = StopRequest::after_ms(&bytes);
    target.refuse_if_over().await?;
    let Some(sandbox) = target.now() else { return answer::ok(&resting()) };
    match app.engine.stop_keeping_awake(target.caller, sandbox, after_ms).await {
        Ok(report) => answer::ok(&status_view(&report)),
        Err(refusal) if refusal.code == ErrorCode::SandboxGone => answer::ok(&resting()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// In the order in which Blaxel prints it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    state: &'static str,
    scheduled_stop_at: Option<String>,
    keep_alive_processes: Vec<KeepAliveProcess<'a>>,
}

/// A process that keeps its sandbox alive.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeepAliveProcess<'a> {
    pid: String,
    name: &'a str,
    command: &'a str,
    started_at: String,
    timeout: u64,
}

impl<'a> KeepAliveProcess<'a> {
    fn of(record: &'a ProcessRecord) -> Self {
        Self {
            pid: record.pid.to_string(),
            name: &record.name,
            command: &record.command,
            started_at: answer::second(record.started_at),
            timeout: record.timeout_ms / 1000,
        }
    }
}

fn resting() -> Status<'static> {
    status_of(Wakefulness::Auto, None, &[])
}

fn status_view(report: &SandboxStatusReport) -> Status<'_> {
    let wake = &report.wake;
    status_of(wake.wakefulness, wake.scheduled_stop_at, &report.keep_alive)
}

fn status_of(
    wakefulness: Wakefulness,
    scheduled_stop_at: Option<Wall>,
    keep_alive: &[ProcessRecord],
) -> Status<'_> {
    let state = match wakefulness {
        Wakefulness::Awake => "awake",
        Wakefulness::Auto => "auto",
    };
    Status {
        state,
        scheduled_stop_at: scheduled_stop_at.map(answer::moment),
        keep_alive_processes: keep_alive.iter().map(KeepAliveProcess::of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::process_view::tests::record;
    use super::*;

    #[test]
    fn keep_alive_stop_is_at_once_unless_delayed() {
        for (text, ms) in [
            ("", 0),
            ("{}", 0),
            ("nonsense", 0),
            (r#"{"timeout":0}"#, 0),
            (r#"{"timeout":-5}"#, 0),
            (r#"{"timeout":300}"#, 300_000),
            (r#"{"timeout":0.5}"#, 500),
            (r#"{"timeout":1e300}"#, 31_536_000_000),
            (r#"{"timeout":"300"}"#, 0),
        ] {
            assert_eq!(StopRequest::after_ms(text.as_bytes()), ms, "{text}");
        }
    }

    #[test]
    fn keep_alive_status_has_all_fields_in_order() {
        let text = |status: &Status<'_>| serde_json::to_string(status).unwrap();
        let at = Some(Wall(1_136_214_245_678));
        let expected = concat!(
            r#"{"state":"awake","scheduledStopAt":"2006-01-02T15:04:05.678Z","#,
            r#""keepAliveProcesses":[{"pid":"42","name":"my-app","command":"npm run dev","#,
            r#""startedAt":"2006-01-02T15:04:05Z","timeout":600}]}"#,
        );
        assert_eq!(text(&status_of(Wakefulness::Awake, at, &[record(None)])), expected);
        let expected = r#"{"state":"auto","scheduledStopAt":null,"keepAliveProcesses":[]}"#;
        assert_eq!(text(&resting()), expected);
    }
}
