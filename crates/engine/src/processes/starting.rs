//! Starting a process: under a use, which it outlives. A caller who goes away before it was started
//! leaves nothing behind.

use std::sync::Arc;

use model::process::LogExtent;
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal};
use runtime::{Command, ExecSpec, Stdin};

use super::asked::{ProcessInput, ProcessRequest};
use super::live::Live;
use super::running;
use crate::Use;
use crate::ids::fresh_uuid;

/// How much of a command is remembered.
const COMMAND_BYTES_MAX: usize = 16 * 1024;

impl Use {
    /// Starts a process. It runs on when the use is over.
    pub async fn start_process(&self, asked: ProcessRequest) -> Result<ProcessRecord, Refusal> {
        let core = self.core();
        let sandbox = self.sandbox();
        let tenant = core.read(|kernel| kernel.tenant_of_sandbox(sandbox)).unwrap_or_default();
        let last = core.processes.last_of_earlier(&*core.store, self.grant()).await?;
        let name = asked.name.as_deref();
        let reserved = core.processes.reserve(sandbox, name, core.max_processes, last)?;
        let spec = spec(&asked);
        let again = asked.restart.map(|_| spec.clone());
        let process = self.exec(spec).await?;
        let now = core.now().wall;
        let Some(pid) = process.pid() else {
            let cause = "the runtime did not say the process id";
            return Err(Refusal::new(ErrorCode::Internal, cause));
        };
        let id = ProcessId::from_uuid(fresh_uuid(now)?);
        let name = Arc::clone(&reserved.name);
        let timeout_ms =
            core.read(|kernel| kernel.process_timeout_ms(asked.keep_alive, asked.timeout_ms));
        let instance = self.grant().instance;
        let live = reserved.fill(instance, |number| {
            let record = ProcessRecord {
                id,
                number,
                sandbox,
                tenant,
                pid,
                name,
                command: line(&asked.command).into(),
                cwd: asked.cwd.as_deref().map(Arc::from),
                keep_alive: asked.keep_alive,
                timeout_ms,
                restart: asked.restart,
                restarts: 0,
                terminal: asked.terminal.is_some(),
                stdin: asked.terminal.is_some() || matches!(asked.stdin, ProcessInput::Open),
                started_at: now,
                end: None,
                log: LogExtent::default(),
            };
            Live::new(record, instance, core.processes.shelf())
        });
        let record = live.record();
        running::tell_started(core, &record, &live);
        core.metrics.process_started();
        core.processes.changed(&record, &live);
        if record.keep_alive {
            let timeout = match record.timeout_ms {
                0 => "infinite timeout".to_owned(),
                ms => format!("timeout {}s", seconds(ms)),
            };
            tracing::info!(
                "[KeepAlive] Started process {pid} (name: {}, command: {}) with {timeout}",
                record.name,
                record.command,
            );
        }
        running::begin(core, live, process, again);
        Ok(record)
    }
}

fn spec(asked: &ProcessRequest) -> ExecSpec {
    let mut spec = ExecSpec::new(asked.command.clone());
    spec.env.clone_from(&asked.env);
    spec.cwd.clone_from(&asked.cwd);
    spec.terminal = asked.terminal;
    spec.confirm_start = true;
    spec.stdin = match (&asked.stdin, asked.terminal) {
        (ProcessInput::Bytes(bytes), _) => Stdin::Bytes(bytes.clone()),
        (ProcessInput::Open, _) | (ProcessInput::Null, Some(_)) => Stdin::Stream,
        (ProcessInput::Null, None) => Stdin::Null,
    };
    spec
}

/// What was started, as a line that a shell would take, cut where it is very long.
fn line(command: &Command) -> String {
    let mut line = whole_line(command);
    line.truncate(line.floor_char_boundary(COMMAND_BYTES_MAX));
    line
}

fn whole_line(command: &Command) -> String {
    match command {
        Command::Shell(line) => line.clone(),
        Command::Argv(argv) => argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
    use super::*;

    #[test]
    fn what_was_started_is_told_as_a_line() {
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|&word| word.into()).collect());
        for (command, expected) in [
            (Command::Shell("npm run dev".into()), "npm run dev"),
            (argv(&["echo", "hi"]), "echo hi"),
            (argv(&["echo", "a b", ""]), "echo 'a b' ''"),
            (argv(&["echo", "it's"]), r"echo 'it'\''s'"),
        ] {
            assert_eq!(line(&command), expected);
        }
    }

    #[test]
    fn seconds_are_told_without_what_is_not_needed() {
        for (ms, expected) in [(600_000, "600"), (1_500, "1.500"), (1, "0.001")] {
            assert_eq!(seconds(ms), expected);
        }
    }
}
