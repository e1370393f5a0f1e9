//! Log lines about keep-alive, with the texts of Blaxel: its users look for them.

use engine::KeepAliveChange;

/// Writes the lines about what happened.
pub(super) fn write(observed: KeepAliveChange<'_>) {
    let line = line(observed);
    match observed {
        KeepAliveChange::Started(_) | KeepAliveChange::Ended(_) => tracing::info!("{line}"),
        KeepAliveChange::Released { sandbox, .. } => tracing::info!(%sandbox, "{line}"),
        KeepAliveChange::ReleasedOne(record) => tracing::info!(sandbox = %record.sandbox, "{line}"),
    }
}

fn line(observed: KeepAliveChange<'_>) -> String {
    match observed {
        KeepAliveChange::Started(record) => {
            let timeout = match record.timeout_ms {
                0 => "infinite timeout".to_owned(),
                ms => format!("timeout {}s", seconds(ms)),
            };
            let (pid, name, command) = (record.pid, &record.name, on_one_line(&record.command));
            format!(
                "[KeepAlive] Started process {pid} (name: {name}, command: {command}) with {timeout}"
            )
        }
        KeepAliveChange::Ended(record) => {
            let (pid, name) = (record.pid, &record.name);
            let end = record.end.as_ref();
            let status = end.map_or("", |end| end.status.as_str());
            let exit_code = end.and_then(|end| end.exit_code).unwrap_or(-1);
            format!(
                "[KeepAlive] Stopped process {pid} (name: {name}, status: {status}, exit_code: {exit_code})"
            )
        }
        KeepAliveChange::Released { processes: 0, .. } => {
            "[Lifecycle] No keepAlive processes to stop".to_owned()
        }
        KeepAliveChange::Released { processes, after_ms: 0, .. } => {
            format!("[Lifecycle] Executing immediate stop for {processes} processes")
        }
        KeepAliveChange::Released { processes, after_ms, .. } => {
            let after_s = after_ms.div_ceil(1000);
            format!("[Lifecycle] Scheduling stop in {after_s} seconds for {processes} processes")
        }
        KeepAliveChange::ReleasedOne(record) => {
            let (pid, name) = (record.pid, &record.name);
            format!(
                "[KeepAlive] Removed keepAlive from process {pid} (name: {name}) via force stop"
            )
        }
    }
}

/// A text without anything that could end a line or do worse to a terminal.
fn on_one_line(text: &str) -> String {
    let shown =
        |one: char| if one.is_control() { one.escape_default().to_string() } else { one.into() };
    text.chars().map(shown).collect()
}

/// Seconds as people write them.
fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1_000) {
        (ms / 1_000).to_string()
    } else {
        format!("{}.{:03}", ms / 1_000, ms % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::process::{LogExtent, ProcessEnd, ProcessEndReason};
    use model::{KeyId, ProcessId, ProcessRecord, ProcessStatus, SandboxId, Wall};

    use super::*;

    fn record(timeout_ms: u64, end: Option<ProcessEnd>) -> ProcessRecord {
        ProcessRecord {
            id: ProcessId::from_u128(1),
            number: 1,
            sandbox: SandboxId::from_u128(2),
            tenant: KeyId::NIL,
            pid: 7,
            name: Arc::from("dev"),
            command: Arc::from("npm run\ndev"),
            cwd: None,
            keep_alive: true,
            timeout_ms,
            restart: None,
            restarts: 0,
            terminal: false,
            stdin: false,
            started_at: Wall(0),
            end,
            log: LogExtent::default(),
        }
    }

    fn end(exit_code: Option<i32>) -> ProcessEnd {
        let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::Exited);
        ProcessEnd { at: Wall(1), status, exit_code, signal: None, reason, detail: None }
    }

    #[test]
    fn keep_alive_log_lines_have_the_texts_of_blaxel() {
        let sandbox = SandboxId::from_u128(2);
        let released =
            |processes, after_ms| KeepAliveChange::Released { sandbox, processes, after_ms };
        let started = "[KeepAlive] Started process 7 (name: dev, command: npm run\\ndev) with";
        let stopped = "[KeepAlive] Stopped process 7 (name: dev, status: failed, exit_code:";
        for (observed, expected) in [
            (KeepAliveChange::Started(&record(0, None)), format!("{started} infinite timeout")),
            (KeepAliveChange::Started(&record(600_000, None)), format!("{started} timeout 600s")),
            (KeepAliveChange::Ended(&record(0, Some(end(Some(3))))), format!("{stopped} 3)")),
            (KeepAliveChange::Ended(&record(0, Some(end(None)))), format!("{stopped} -1)")),
            (released(0, 0), "[Lifecycle] No keepAlive processes to stop".to_owned()),
            (released(0, 5), "[Lifecycle] No keepAlive processes to stop".to_owned()),
            (released(2, 0), "[Lifecycle] Executing immediate stop for 2 processes".to_owned()),
            (
                released(2, 1_001),
                "[Lifecycle] Scheduling stop in 2 seconds for 2 processes".to_owned(),
            ),
            (
                KeepAliveChange::ReleasedOne(&record(0, None)),
                "[KeepAlive] Removed keepAlive from process 7 (name: dev) via force stop"
                    .to_owned(),
            ),
        ] {
            assert_eq!(line(observed), expected);
        }
    }

    #[test]
    fn keep_alive_log_escapes_line_breaks_of_commands() {
        assert_eq!(on_one_line("echo 'a b' \u{e9}"), "echo 'a b' \u{e9}");
        assert_eq!(on_one_line("a\nb\u{1b}[m"), "a\\nb\\u{1b}[m");
    }

    #[test]
    fn keep_alive_log_shows_whole_seconds_without_fraction() {
        for (ms, expected) in [(600_000, "600"), (1_500, "1.500"), (1, "0.001")] {
            assert_eq!(seconds(ms), expected);
        }
    }
}
