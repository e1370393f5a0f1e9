//! The harness without a program: a turn is a command line. Its output is passed on as it comes,
//! its exit is the result. What it leaves running in the background stays, as with any command,
//! unless the turn is cancelled or dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::signals;
use runtime::{ByteReader, ExecSpec, Exit, ExitStatus, Process, RuntimeError, Sandbox};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::binding::Binding;
use crate::error::{HarnessError, HarnessErrorCode, is_gone};
use crate::link::{Cancelled, HarnessEnd, HarnessEvent, Stream};
use crate::program::broken;
use crate::text::TextStream;

const READ_BYTES: usize = 32 * 1024;

/// The signal that asks to end.
const SIGTERM: i32 = 15;

/// How long a kill may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A turn as a command line.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandLine {
    command: String,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

fn command_line(input: &str) -> Result<CommandLine, HarnessError> {
    let bad = |cause: String| HarnessError::new(HarnessErrorCode::Input, cause);
    let line = if input.trim_start().starts_with('"') {
        serde_json::from_str(input).map(|command| CommandLine {
            command,
            cwd: None,
            env: BTreeMap::new(),
        })
    } else {
        serde_json::from_str(input)
    };
    let line = line.map_err(|error| {
        bad(format!(
            "a turn of the shell is a string, or {{\"command\", \"cwd\", \"env\"}}: {error}"
        ))
    })?;
    if line.command.trim().is_empty() {
        return Err(bad("the command is empty".to_owned()));
    }
    Ok(line)
}

/// Command lines in a sandbox.
pub(crate) struct Shell {
    sandbox: Arc<dyn Sandbox>,
    env: Mutex<BTreeMap<String, String>>,
}

impl Shell {
    pub(crate) fn new(sandbox: Arc<dyn Sandbox>, binding: Option<&Binding>) -> Self {
        let shell = Self { sandbox, env: Mutex::default() };
        if let Some(binding) = binding {
            shell.bind(binding);
        }
        shell
    }

    pub(crate) fn bind(&self, binding: &Binding) {
        let mut env = self.env.lock().unwrap_or_else(PoisonError::into_inner);
        env.clone_from(&binding.env);
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.sandbox.ended().is_none()
    }

    pub(crate) async fn turn(&self, input: &str) -> Result<ShellTurn, HarnessError> {
        let line = command_line(input)?;
        let mut env = self.env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        env.extend(line.env);
        let spec = ExecSpec {
            env: env.into_iter().collect(),
            cwd: line.cwd,
            ..ExecSpec::shell(line.command)
        };
        let mut process = self.sandbox.inside().exec(spec).await?;
        let (out, err) = (process.stdout.take(), process.stderr.take());
        Ok(ShellTurn {
            process,
            stdout: Output::new(Stream::Stdout, out),
            stderr: Output::new(Stream::Stderr, err),
            exit: None,
        })
    }
}

/// A command that runs.
pub(crate) struct ShellTurn {
    process: Process,
    stdout: Output,
    stderr: Output,
    exit: Option<Result<Exit, RuntimeError>>,
}

/// One of its outputs.
struct Output {
    stream: Stream,
    reader: Option<ByteReader>,
    chunk: Vec<u8>,
    text: TextStream,
}

impl Output {
    fn new(stream: Stream, reader: Option<ByteReader>) -> Self {
        Self { stream, reader, chunk: vec![0; READ_BYTES], text: TextStream::default() }
    }

    /// The next text. Never returns at the end: see `has_ended`.
    async fn next(&mut self) -> String {
        loop {
            let Some(reader) = &mut self.reader else { return std::future::pending().await };
            let text = match reader.read(&mut self.chunk).await {
                Ok(count) if count > 0 => self.text.push(&self.chunk[..count]),
                // The program's end says why reading failed.
                Ok(_) | Err(_) => {
                    self.reader = None;
                    self.text.finish()
                }
            };
            if !text.is_empty() || self.reader.is_none() {
                return text;
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.reader.is_none()
    }
}

impl ShellTurn {
    pub(crate) async fn next(&mut self) -> HarnessEvent {
        loop {
            if let Some(exit) = &self.exit
                && self.stdout.has_ended()
                && self.stderr.has_ended()
            {
                return HarnessEvent::Ended(end_of(exit));
            }
            let (stream, text) = tokio::select! {
                text = self.stdout.next() => (self.stdout.stream, text),
                text = self.stderr.next() => (self.stderr.stream, text),
                exit = self.process.wait(), if self.exit.is_none() => {
                    self.exit = Some(exit);
                    continue;
                }
            };
            if !text.is_empty() {
                return HarnessEvent::Output { stream, text };
            }
        }
    }

    pub(crate) async fn cancel(
        &mut self,
        grace: Duration,
        take: &mut (dyn FnMut(HarnessEvent) + Send),
    ) -> Cancelled {
        let until = Instant::now() + grace;
        let handle = self.process.handle();
        let signalled = timeout_at(until, handle.signal_tree(SIGTERM)).await;
        let mut ended = None;
        while ended.is_none() && matches!(signalled, Ok(Ok(()))) {
            match timeout_at(until, self.next()).await {
                Ok(HarnessEvent::Ended(end)) => ended = Some(end),
                Ok(event) => take(event),
                Err(_) => break,
            }
        }
        // Also processes that it has left in the background.
        let killed = timeout(KILL_TIMEOUT, handle.kill()).await;
        match (ended, killed) {
            (Some(HarnessEnd::SandboxGone), _) => Cancelled::SandboxGone,
            (_, Ok(Err(error))) if is_gone(error.code) => Cancelled::SandboxGone,
            (Some(end), _) => Cancelled::Ended(end),
            (None, _) => Cancelled::Killed,
        }
    }
}

fn end_of(exit: &Result<Exit, RuntimeError>) -> HarnessEnd {
    match exit {
        Ok(exit) => {
            let (code, signal) = match exit.status {
                ExitStatus::Code(code) => (code, None),
                ExitStatus::Signal(signal) => (128 + signal, Some(signals::name(signal))),
            };
            let mut result = serde_json::json!({ "exit_code": code, "signal": signal });
            if exit.out_of_memory {
                result["oom"] = true.into();
            }
            HarnessEnd::Completed { result: Some(Arc::from(result.to_string())) }
        }
        Err(error) if is_gone(error.code) => HarnessEnd::SandboxGone,
        Err(error) => broken(HarnessErrorCode::NotStarted, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_inputs_are_command_lines() {
        let line = |command: &str| CommandLine {
            command: command.to_owned(),
            cwd: None,
            env: BTreeMap::new(),
        };
        assert_eq!(command_line("\"ls\\n\""), Ok(line("ls\n")));
        assert_eq!(command_line("{\"command\":\"ls\"}"), Ok(line("ls")));
        let full = command_line(" {\"command\":\"ls\",\"cwd\":\"/tmp\",\"env\":{\"A\":\"1\"}}");
        let full = full.unwrap();
        assert_eq!(full.cwd.as_deref(), Some("/tmp"));
        assert_eq!(full.env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
    }

    #[test]
    fn invalid_shell_inputs_are_refused() {
        for input in ["", "7", "[]", "{}", "\"\"", "\" \"", "{\"command\":\"x\",\"typo\":1}", "\"x"]
        {
            let error = command_line(input).unwrap_err();
            assert_eq!(error.code, HarnessErrorCode::Input, "{input}");
        }
    }
}
