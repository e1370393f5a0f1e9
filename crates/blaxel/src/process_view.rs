//! Processes as Blaxel shows them, with the end of their output.

use engine::{Caller, LogQuery, OutputSelection, ProcessRef};
use model::process::ProcessEnd;
use model::{ProcessRecord, Refusal};
use serde::Serialize;

use super::answer::http_date;
use crate::app::App;

/// How much of each output is shown with a process.
pub(super) const INLINE_BYTES: u64 = 64 << 10;
/// The prefix of an output of which only the end is shown.
const CUT: &str = "[... truncated, see the logs of the process for more ...]\n";
/// The exit code in Blaxel of a process that did not end by itself.
const NO_CODE: i32 = -1;

/// A process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessView<'a> {
    pid: String,
    name: &'a str,
    command: &'a str,
    status: &'static str,
    started_at: String,
    /// Nothing at all in a list, and an empty text elsewhere, while it runs.
    completed_at: Option<String>,
    exit_code: i32,
    working_dir: &'a str,
    logs: Option<String>,
    stdout: String,
    stderr: String,
    restart_on_failure: bool,
    max_restarts: i64,
    restart_count: u32,
    keep_alive: bool,
    stdin: bool,
}

/// The output of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessText {
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl ProcessText {
    /// Both, one after the other: Blaxel does not keep their order here.
    pub(super) fn both(&self) -> String {
        [self.stdout.as_str(), self.stderr.as_str()].concat()
    }
}

/// Where a process is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// By itself.
    Alone,
    /// Right after it was started: what it has not written yet is nothing at all.
    Started,
    /// Among others.
    Listed,
}

pub(super) fn shown(
    record: &ProcessRecord,
    written: ProcessText,
    place_shown: Where,
) -> ProcessView<'_> {
    let completed_at = match (&record.end, place_shown) {
        (Some(end), _) => Some(http_date(end.at)),
        (None, Where::Listed) => None,
        (None, Where::Alone | Where::Started) => Some(String::new()),
    };
    let both = written.both();
    let max_restarts = match record.restart {
        None => 0,
        Some(policy) => policy.max_restarts.map_or(-1, i64::from),
    };
    ProcessView {
        pid: record.pid.to_string(),
        name: &record.name,
        command: &record.command,
        status: record.status().as_str(),
        started_at: http_date(record.started_at),
        completed_at,
        exit_code: record.end.as_ref().map_or(0, exit_code),
        working_dir: record.cwd.as_deref().unwrap_or_default(),
        logs: (place_shown != Where::Started || !both.is_empty()).then_some(both),
        stdout: written.stdout,
        stderr: written.stderr,
        restart_on_failure: record.restart.is_some(),
        max_restarts,
        restart_count: record.restarts,
        keep_alive: record.keep_alive,
        stdin: record.stdin,
    }
}

fn exit_code(end: &ProcessEnd) -> i32 {
    end.exit_code.filter(|_| end.signal.is_none()).unwrap_or(NO_CODE)
}

/// The end of what a process wrote.
pub(super) async fn written(
    app: &App,
    caller: Caller,
    record: &ProcessRecord,
    bytes_max: u64,
) -> Result<ProcessText, Refusal> {
    let log = &record.log;
    // That of one that runs may have grown since.
    let nothing = record.end.is_some() && log.stdout_bytes == 0 && log.stderr_bytes == 0;
    if nothing {
        return Ok(ProcessText::default());
    }
    let read = async |wanted, total: u64| {
        if record.end.is_some() && total == 0 {
            return Ok::<_, Refusal>(String::new());
        }
        let query = LogQuery { wanted, offset: None, max_bytes: bytes_max };
        let of = ProcessRef::Id(record.id);
        let page = app.engine.process_log(caller, record.sandbox, &of, query).await?;
        let bytes: Vec<u8> =
            page.pieces.iter().flat_map(|piece| &piece.bytes[..]).copied().collect();
        let is_cut = total > bytes.len() as u64 && !bytes.is_empty();
        Ok(text(&bytes, is_cut))
    };
    let stdout = read(OutputSelection::Stdout, log.stdout_bytes).await?;
    let stderr = read(OutputSelection::Stderr, log.stderr_bytes).await?;
    Ok(ProcessText { stdout, stderr })
}

/// Bytes as text. What was cut at its beginning may begin within a character.
fn text(bytes: &[u8], is_cut: bool) -> String {
    if !is_cut {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let is_rest = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let rest = bytes.iter().take(3).take_while(|byte| is_rest(byte)).count();
    format!("{CUT}{}", String::from_utf8_lossy(&bytes[rest..]))
}

#[cfg(test)]
pub(super) mod tests {
    use model::process::{LogExtent, ProcessEndReason, ProcessStatus, RestartPolicy};
    use model::{KeyId, ProcessId, SandboxId, Wall};
    use serde_json::json;

    use super::*;

    pub(in super::super) fn record(end: Option<ProcessEnd>) -> ProcessRecord {
        ProcessRecord {
            id: ProcessId::from_u128(1),
            number: 1,
            sandbox: SandboxId::from_u128(2),
            tenant: KeyId::NIL,
            pid: 42,
            name: "my-app".into(),
            command: "npm run dev".into(),
            cwd: Some("/app".into()),
            keep_alive: true,
            timeout_ms: 600_000,
            restart: None,
            restarts: 0,
            terminal: false,
            stdin: false,
            started_at: Wall(1_136_214_245_678),
            end,
            log: LogExtent::default(),
        }
    }

    fn ended(exit_code: Option<i32>, signal: Option<i32>) -> ProcessEnd {
        ProcessEnd {
            at: Wall(1_136_214_246_000),
            status: ProcessStatus::Failed,
            exit_code,
            signal,
            reason: ProcessEndReason::Exited,
            detail: None,
        }
    }

    #[test]
    fn running_process_has_the_fields_of_blaxel() {
        let running = record(None);
        let place_shown = |written, place_shown| {
            serde_json::to_value(shown(&running, written, place_shown)).unwrap()
        };
        let expected = json!({
            "pid": "42", "name": "my-app", "command": "npm run dev", "status": "running",
            "startedAt": "Mon, 02 Jan 2006 15:04:05 GMT", "completedAt": "", "exitCode": 0,
            "workingDir": "/app", "logs": null, "stdout": "", "stderr": "",
            "restartOnFailure": false, "maxRestarts": 0, "restartCount": 0, "keepAlive": true,
            "stdin": false,
        });
        assert_eq!(place_shown(ProcessText::default(), Where::Started), expected);
        let alone = place_shown(ProcessText::default(), Where::Alone);
        assert_eq!((&alone["logs"], &alone["completedAt"]), (&json!(""), &json!("")));
        let listed = place_shown(ProcessText::default(), Where::Listed);
        assert_eq!((&listed["logs"], &listed["completedAt"]), (&json!(""), &json!(null)));
        let written = ProcessText { stdout: "out\n".to_owned(), stderr: "err\n".to_owned() };
        assert_eq!(place_shown(written, Where::Started)["logs"], "out\nerr\n");
    }

    #[test]
    fn ended_process_has_an_exit_code_or_none() {
        for (code, signal, place_shown) in
            [(Some(0), None, 0), (Some(7), None, 7), (None, Some(9), -1)]
        {
            let mut over = record(Some(ended(code, signal)));
            over.restart = Some(RestartPolicy { max_restarts: None });
            let over =
                serde_json::to_value(shown(&over, ProcessText::default(), Where::Alone)).unwrap();
            assert_eq!(over["exitCode"], place_shown);
            assert_eq!(over["completedAt"], "Mon, 02 Jan 2006 15:04:06 GMT");
            assert_eq!(
                (&over["restartOnFailure"], &over["maxRestarts"]),
                (&json!(true), &json!(-1))
            );
        }
    }

    #[test]
    fn truncated_output_says_so_and_begins_with_a_whole_character() {
        assert_eq!(text("ü".as_bytes(), false), "ü");
        assert_eq!(text(&"üx".as_bytes()[1..], true), format!("{CUT}x"));
        assert_eq!(text(b"\xff", false), "\u{fffd}");
    }
}
