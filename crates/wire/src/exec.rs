//! Programs that run in a sandbox. Output is text where it is UTF-8, and base64 where it is not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::{self, Base64Error};
use crate::problem::Problem;

/// The header of an answer that reports lost files of a session: the reason, with the values of
/// `sandbox_terminated`.
pub const STATE_LOST_HEADER: &str = "shoal-state-lost";

/// A program to run. Exactly one of `command` and `argv`; at most one of `stdin` and
/// `stdin_base64`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecRequest {
    /// A command line for the shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "echo hi"))]
    pub command: Option<String>,
    /// A program and its arguments, without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Its working directory; `/workspace` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables, added to those given at checkout.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its standard input, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Its standard input, as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Its timeout, after which it is killed; the template's `exec_timeout_ms` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 86_400_000))]
    pub timeout_ms: Option<u64>,
    /// The most bytes to return of each output; the template's `exec_output_bytes` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 16_777_216))]
    pub output_bytes: Option<u64>,
}

impl ExecRequest {
    /// The longest timeout.
    pub const TIMEOUT_MS_MAX: u64 = 86_400_000;
    /// The most output that is returned.
    pub const OUTPUT_BYTES_MAX: u64 = 16 << 20;

    /// A command line for the shell.
    pub fn shell(line: impl Into<String>) -> Self {
        Self { command: Some(line.into()), ..Self::default() }
    }

    /// A program and its arguments.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self { argv: Some(argv.into_iter().map(Into::into).collect()), ..Self::default() }
    }
}

/// Values of the environment and the input may be secret: only names and sizes show.
impl std::fmt::Debug for ExecRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecRequest")
            .field("command", &self.command)
            .field("argv", &self.argv)
            .field("cwd", &self.cwd)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("timeout_ms", &self.timeout_ms)
            .finish_non_exhaustive()
    }
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecResult {
    /// Its exit code; 128 and the number of the signal if one ended it.
    pub exit_code: i32,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
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
    /// Whether either output was truncated: it was longer than `output_bytes`, or the server had no
    /// memory for more of it.
    pub truncated: bool,
    /// Whether `stdout` was truncated.
    pub stdout_truncated: bool,
    /// Whether `stderr` was truncated.
    pub stderr_truncated: bool,
    /// Whether it was killed because it reached its timeout.
    pub timed_out: bool,
    /// Whether it ended because the sandbox ran out of memory.
    pub oom: bool,
    /// How long it took.
    pub duration_ms: f64,
    /// Whether files of the session were lost before this program ran, and this answer is the first
    /// to report it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_lost: bool,
    /// Why they were lost: a reason of `sandbox_terminated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lost_reason: Option<String>,
}

impl ExecResult {
    /// How it ended, and what it wrote to its two outputs.
    pub fn new(exit: ExecExit, stdout: Vec<u8>, stderr: Vec<u8>) -> Self {
        let (stdout, stdout_base64) = bytes::text_or_base64(stdout);
        let (stderr, stderr_base64) = bytes::text_or_base64(stderr);
        Self {
            exit_code: exit.exit_code,
            signal: exit.signal,
            stdout,
            stderr,
            stdout_base64,
            stderr_base64,
            truncated: exit.truncated,
            stdout_truncated: exit.stdout_truncated,
            stderr_truncated: exit.stderr_truncated,
            timed_out: exit.timed_out,
            oom: exit.oom,
            duration_ms: exit.duration_ms,
            state_lost: false,
            state_lost_reason: None,
        }
    }

    /// Its standard output.
    pub fn stdout_bytes(&self) -> Result<Vec<u8>, Base64Error> {
        bytes::join(self.stdout.as_deref(), self.stdout_base64.as_deref())
    }

    /// Its standard error.
    pub fn stderr_bytes(&self) -> Result<Vec<u8>, Base64Error> {
        bytes::join(self.stderr.as_deref(), self.stderr_base64.as_deref())
    }
}

/// How a program ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExecExit {
    /// Its exit code; 128 and the number of the signal if one ended it.
    pub exit_code: i32,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Whether either output was truncated: it was longer than `output_bytes`, or the server had no
    /// memory for more of it.
    pub truncated: bool,
    /// Whether `stdout` was truncated.
    pub stdout_truncated: bool,
    /// Whether `stderr` was truncated.
    pub stderr_truncated: bool,
    /// Whether it was killed because it reached its timeout.
    pub timed_out: bool,
    /// Whether it ended because the sandbox ran out of memory.
    pub oom: bool,
    /// How long it took.
    pub duration_ms: f64,
}

/// One event of a program's output, in an event stream or as a JSON line. The last one is
/// `exit` or `error`; a stream without either was cut off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ExecEvent {
    /// The program is about to start.
    Started,
    /// Output on `stdout`.
    Stdout(Output),
    /// Output on `stderr`.
    Stderr(Output),
    /// The program ended.
    Exit(ExecExit),
    /// The program could not be started, or its sandbox ended before it.
    Error {
        /// Why.
        problem: Box<Problem>,
    },
}

impl ExecEvent {
    /// The name of the event in a stream: its `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Stdout(_) => "stdout",
            Self::Stderr(_) => "stderr",
            Self::Exit(_) => "exit",
            Self::Error { .. } => "error",
        }
    }
}

/// Bytes that a program wrote: one of the two fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Output {
    /// As text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// As base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

impl Output {
    /// As text if they are, else as base64.
    pub fn new(bytes: Vec<u8>) -> Self {
        let (data, data_base64) = bytes::text_or_base64(bytes);
        Self { data, data_base64 }
    }

    /// The bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, Base64Error> {
        bytes::join(self.data.as_deref(), self.data_base64.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_result_has_the_documented_fields() {
        let exit = ExecExit { duration_ms: 0.6, ..ExecExit::default() };
        let result = ExecResult::new(exit, b"hi\n".to_vec(), Vec::new());
        assert_eq!(
            serde_json::to_value(&result).unwrap(),
            serde_json::json!({
                "exit_code": 0, "signal": null, "stdout": "hi\n", "stderr": "",
                "truncated": false, "stdout_truncated": false, "stderr_truncated": false,
                "timed_out": false, "oom": false, "duration_ms": 0.6,
            })
        );
        let binary = ExecResult::new(ExecExit::default(), vec![0xff], Vec::new());
        let value = serde_json::to_value(&binary).unwrap();
        assert_eq!(
            (&value["stdout"], &value["stdout_base64"]),
            (&serde_json::Value::Null, &"/w==".into())
        );
        assert_eq!(binary.stdout_bytes().unwrap(), [0xff]);
    }

    #[test]
    fn exec_events_are_tagged_by_their_name() {
        let problem =
            Problem::new(&model::Refusal::new(model::ErrorCode::Oom, "no memory"), None, "r");
        for event in [
            ExecEvent::Started,
            ExecEvent::Stdout(Output::new(b"a".to_vec())),
            ExecEvent::Stderr(Output::new(vec![0xff])),
            ExecEvent::Exit(ExecExit::default()),
            ExecEvent::Error { problem: Box::new(problem) },
        ] {
            let value = serde_json::to_value(&event).unwrap();
            assert_eq!(value["type"], event.name());
            assert_eq!(serde_json::from_value::<ExecEvent>(value).unwrap(), event);
        }
    }

    #[test]
    fn exec_request_does_not_print_secrets() {
        let mut request = ExecRequest::shell("x");
        request.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
        request.stdin = Some("hunter3".to_owned());
        let shown = format!("{request:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter"), "{shown}");
    }
}
