//! Starts a process under a use, which it outlives. A caller that goes away before the start leaves
//! nothing behind.

use std::sync::Arc;

use model::process::LogExtent;
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal};
use runtime::{Command, ExecSpec, Stdin};
use tokio::sync::OwnedSemaphorePermit;

use super::live::Live;
use super::requests::{ProcessInput, ProcessRequest};
use super::runner;
use crate::Use;
use crate::boxed;
use crate::core::Core;
use crate::ids::fresh_uuid;
use crate::keep_alive_observers::KeepAliveChange;

/// How much of a command is stored.
const COMMAND_BYTES_MAX: usize = 4 * 1024;
/// How much input may be given at the start, and to a process that may be restarted.
const GIVEN_BYTES_MAX: usize = 1024 * 1024;
const GIVEN_AGAIN_BYTES_MAX: usize = 64 * 1024;

impl Use {
    /// Starts a process. It continues after the use has ended.
    #[boxed]
    pub async fn start_process(&self, request: ProcessRequest) -> Result<ProcessRecord, Refusal> {
        let core = self.core();
        let sandbox = self.sandbox();
        let tenant = core.read(|kernel| kernel.tenant_of_sandbox(sandbox)).unwrap_or_default();
        let given = check_input(core, &request)?;
        let reserved = loop {
            let last = core.processes.last_of_earlier(&*core.store, self.grant()).await?;
            let name = request.name.as_deref();
            let reserved = core.processes.reserve(self.grant(), name, core.max_processes, last)?;
            // Tried again where its table was removed just now.
            if let Some(reserved) = reserved {
                break reserved;
            }
        };
        let spec = spec(&request);
        let again = request.restart.map(|_| spec.clone());
        let mut process = self.exec(spec).await?;
        let now = core.now().wall;
        let Some(pid) = process.pid() else {
            let cause = "the runtime did not say the process id";
            return Err(Refusal::new(ErrorCode::Internal, cause));
        };
        let id = ProcessId::from_uuid(fresh_uuid(now)?);
        let name = Arc::clone(&reserved.name);
        let timeout_ms =
            core.read(|kernel| kernel.process_timeout_ms(request.keep_alive, request.timeout_ms));
        let instance = self.grant().instance;
        let live = reserved.fill(instance, |number| {
            let record = ProcessRecord {
                id,
                number,
                sandbox,
                tenant,
                pid,
                name,
                command: line(&request.command).into(),
                cwd: request.cwd.as_deref().map(Arc::from),
                keep_alive: request.keep_alive,
                timeout_ms,
                restart: request.restart,
                restarts: 0,
                terminal: request.terminal.is_some(),
                stdin: request.terminal.is_some() || matches!(request.stdin, ProcessInput::Open),
                started_at: now,
                end: None,
                log: LogExtent::default(),
            };
            Live::new(record, instance, &core.processes, &mut process, again, given)
        });
        let record = live.record();
        runner::report_started(core, &record, &live);
        core.metrics.process_started();
        core.processes.changed(&record, &live);
        if record.keep_alive {
            core.observers.notify(KeepAliveChange::Started(&record));
        }
        runner::begin(core, live, process);
        Ok(record)
    }
}

/// Refuses more input than can be held until a program reads it, and reserves room for the rest.
fn check_input(
    core: &Core,
    request: &ProcessRequest,
) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
    let ProcessInput::Bytes(bytes) = &request.stdin else { return Ok(None) };
    let again = request.restart.is_some();
    let most = if again { GIVEN_AGAIN_BYTES_MAX } else { GIVEN_BYTES_MAX };
    if bytes.len() > most {
        let cause = format!("stdin: at most {most} bytes can be given; write the rest later");
        return Err(Refusal::new(ErrorCode::TooLarge, cause));
    }
    let held = u32::try_from(bytes.len() * if again { 2 } else { 1 }).unwrap_or(u32::MAX);
    core.processes.input().try_acquire_many_owned(held).map(Some).map_err(|_| {
        let cause = "too much input waits for other programs to read it";
        Refusal::new(ErrorCode::QueueFull, cause).retry_after(1_000)
    })
}

fn spec(request: &ProcessRequest) -> ExecSpec {
    let mut spec = ExecSpec::new(request.command.clone());
    spec.env.clone_from(&request.env);
    spec.cwd.clone_from(&request.cwd);
    spec.terminal = request.terminal;
    spec.confirm_start = true;
    spec.stdin = match (&request.stdin, request.terminal) {
        (ProcessInput::Bytes(bytes), _) => Stdin::Bytes(bytes.clone()),
        (ProcessInput::Open, _) | (ProcessInput::Null, Some(_)) => Stdin::Stream,
        (ProcessInput::Null, None) => Stdin::Null,
    };
    spec
}

/// The command as a shell line, cut where it is very long.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_command_is_shown_as_a_shell_line() {
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
}
