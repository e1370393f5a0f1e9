//! Processes: programs in a sandbox that outlive the request that started them.

use std::collections::BTreeMap;
use std::fmt;

use model::process::{ProcessEndReason, ProcessStatus};
use model::{ProcessId, SandboxId};
use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::time::Time;

/// A process to start. Exactly one of `command` and `argv`; at most one of `stdin`, `stdin_base64`
/// and `stdin_open`; at most one of `wait` and `wait_for_ports`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessRequest {
    /// A command line for the shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "npm run dev"))]
    pub command: Option<String>,
    /// A program and its arguments, without a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Its name; generated if not given. Not only digits, no `/`, unique among running processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 128))]
    pub name: Option<String>,
    /// Its working directory; `/workspace` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables, added to those given at checkout.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its standard input, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Its standard input, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Whether its standard input stays open to be written later.
    #[serde(skip_serializing_if = "is_false")]
    pub stdin_open: bool,
    /// Whether it keeps its sandbox from being frozen.
    #[serde(skip_serializing_if = "is_false")]
    pub keep_alive: bool,
    /// Its timeout in seconds, not counting time in which the sandbox is frozen; 0 is none. Not
    /// given: none, or the node's default if `keep_alive` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 31_536_000))]
    pub timeout_s: Option<u64>,
    /// Whether to wait for its end. If the wait ends first, the process continues.
    #[serde(skip_serializing_if = "is_false")]
    pub wait: bool,
    /// How long to wait for its end or its ports; ten minutes if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86_400_000))]
    pub wait_timeout_ms: Option<u64>,
    /// Answer when all of these ports are open, or when the process has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub wait_for_ports: Vec<u16>,
    /// Whether it is restarted when it fails.
    #[serde(skip_serializing_if = "is_false")]
    pub restart_on_failure: bool,
    /// The most restarts; without a limit if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<u32>,
    /// Run it on a terminal of this size. Its input can be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl ProcessRequest {
    /// The longest timeout.
    pub const TIMEOUT_S_MAX: u64 = 31_536_000;
    /// The longest wait.
    pub const WAIT_MS_MAX: u64 = 86_400_000;
    /// The wait if none is given.
    pub const WAIT_MS: u64 = 600_000;
    /// The most ports that are waited for.
    pub const PORTS_MAX: usize = 32;

    /// A command line for the shell.
    pub fn shell(line: impl Into<String>) -> Self {
        Self { command: Some(line.into()), ..Self::default() }
    }

    /// A program and its arguments.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self { argv: Some(argv.into_iter().map(Into::into).collect()), ..Self::default() }
    }
}

/// The command, its environment and its input may be secret: only names are shown.
impl fmt::Debug for ProcessRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessRequest")
            .field("name", &self.name)
            .field("cwd", &self.cwd)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("keep_alive", &self.keep_alive)
            .field("timeout_s", &self.timeout_s)
            .finish_non_exhaustive()
    }
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TerminalSize {
    /// Rows.
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub rows: u16,
    /// Columns.
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub columns: u16,
}

/// A process as it is now, or how it ended.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Process {
    /// Its id, the same over restarts.
    pub id: ProcessId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// Its number among the processes of its sandbox, from 1.
    pub number: u64,
    /// Its first process id inside the sandbox; unchanged by restarts.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// Its working directory, if given.
    pub cwd: Option<String>,
    /// Its status.
    pub status: ProcessStatus,
    /// Whether it keeps its sandbox from being frozen.
    pub keep_alive: bool,
    /// Its timeout in seconds, not counting time in which the sandbox is frozen; 0 is none.
    pub timeout_s: u64,
    /// Whether it is restarted when it fails.
    pub restart_on_failure: bool,
    /// The most restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<u32>,
    /// How often it was restarted.
    pub restarts: u32,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether its input can be written.
    pub stdin_open: bool,
    /// When it was last started.
    pub started_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Its exit code; 128 and the number of the signal if one ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended.
    pub reason: Option<ProcessEndReason>,
    /// More about why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The stored part of its output.
    pub log: LogExtent,
    /// Only in the answer to a start that waits for ports: whether all of them are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports_open: Option<bool>,
    /// The end of its output; only in answers to requests that wait for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ProcessOutput>,
}

impl fmt::Debug for Process {
    /// The command line and the output may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("id", &self.id)
            .field("pid", &self.pid)
            .field("name", &self.name)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The end of a process's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessOutput {
    /// Its standard output; null if that is not UTF-8.
    pub stdout: Option<String>,
    /// Its standard error; null if that is not UTF-8.
    pub stderr: Option<String>,
    /// Its standard output as base64, if that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Its standard error as base64, if that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Whether `stdout` had more before this.
    pub stdout_truncated: bool,
    /// Whether `stderr` had more before this.
    pub stderr_truncated: bool,
}

impl ProcessOutput {
    /// The ends of both outputs, and how much there was of each.
    pub fn new(stdout: Vec<u8>, stderr: Vec<u8>, extent: LogExtent) -> Self {
        let (stdout_truncated, stderr_truncated) = (
            (stdout.len() as u64) < extent.stdout_bytes,
            (stderr.len() as u64) < extent.stderr_bytes,
        );
        let (stdout, stdout_base64) = bytes::text_or_base64(stdout);
        let (stderr, stderr_base64) = bytes::text_or_base64(stderr);
        Self { stdout, stderr, stdout_base64, stderr_base64, stdout_truncated, stderr_truncated }
    }
}

/// The stored part of a process's output. Offsets count the bytes of both streams together, in the
/// order in which they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogExtent {
    /// The first byte that is still stored.
    pub first_offset: u64,
    /// One past the last.
    pub end_offset: u64,
    /// Bytes written to `stdout` in total.
    pub stdout_bytes: u64,
    /// Bytes written to `stderr` in total.
    pub stderr_bytes: u64,
}

/// Processes of a sandbox, the latest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessList {
    /// One page of them.
    pub processes: Vec<Process>,
    /// The value of `before` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A request to send a signal to a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignalRequest {
    /// Its name, such as `SIGHUP`, with or without `SIG`.
    #[cfg_attr(feature = "schema", schema(example = "SIGHUP"))]
    pub signal: String,
    /// Whether all descendants of the process get it too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tree: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_request_omits_defaults() {
        let request = ProcessRequest::shell("sleep 1");
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"command":"sleep 1"}"#);
        let text = r#"{"argv":["a"],"keep_alive":true,"timeout_s":0,"terminal":{"rows":2,"columns":3},
            "wait_for_ports":[3000]}"#;
        let request: ProcessRequest = serde_json::from_str(text).unwrap();
        assert!(request.keep_alive && request.wait_for_ports == [3000]);
        assert_eq!(request.terminal, Some(TerminalSize { rows: 2, columns: 3 }));
        for (wrong, part) in [
            (r#"{"commands":"a"}"#, "commands"),
            (r#"{"wait_for_ports":[70000]}"#, "70000"),
            (r#"{"terminal":{"rows":2}}"#, "columns"),
        ] {
            let error = serde_json::from_str::<ProcessRequest>(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn process_request_does_not_print_secrets() {
        let mut request = ProcessRequest::shell("run --token hunter1");
        request.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
        request.stdin = Some("hunter3".to_owned());
        let shown = format!("{request:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn process_output_tail_shows_whether_it_is_complete() {
        let extent = LogExtent { stdout_bytes: 3, stderr_bytes: 2, ..LogExtent::default() };
        let output = ProcessOutput::new(b"abc".to_vec(), vec![0xff], extent);
        assert_eq!((output.stdout.as_deref(), output.stdout_truncated), (Some("abc"), false));
        assert_eq!((output.stderr, output.stderr_base64.as_deref()), (None, Some("/w==")));
        assert!(output.stderr_truncated);
    }
}
