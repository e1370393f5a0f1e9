//! Starts harnesses and waits until they are ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::template::{Harness, HarnessProgram};
use runtime::{Duplex, ExecSpec, Sandbox};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::ash_bridge::{self, AshBridge};
use crate::binding::Binding;
use crate::connection::{Connection, Received};
use crate::early_bridge::EarlyBridge;
use crate::error::{HarnessError, HarnessErrorCode};
use crate::jsonl::{self, Jsonl};
use crate::link::{HarnessLink, Kind};
use crate::logs::{ErrorTail, Logs};
use crate::program::{Ended, Program, Started};
use crate::program_turn::{Conversation, ProgramHarness};
use crate::shell::Shell;

/// The working directory before there is a session: the workspace may still be replaced.
pub(crate) const UNBOUND_DIRECTORY: &str = "/";

/// The longest time for a bridge, whatever the template allows.
const BRIDGE_READY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two attempts to connect to a socket.
const DIAL_PAUSE: Duration = Duration::from_millis(10);

/// How long the end of a program that was never ready may take to be known.
const EXIT_TIMEOUT: Duration = Duration::from_millis(400);

/// Whom a harness is started for.
#[derive(Debug, Clone, Copy)]
pub enum StartedFor<'a> {
    /// No session yet: it is bound later, which not every kind supports.
    NoSession,
    /// A session: it is started with the binding, and bound.
    Session(&'a Binding),
    /// A caller that uses it directly: it is started with the binding, but gets no message.
    Caller(&'a Binding),
}

impl<'a> StartedFor<'a> {
    const fn binding(self) -> Option<&'a Binding> {
        match self {
            Self::NoSession => None,
            Self::Session(binding) | Self::Caller(binding) => Some(binding),
        }
    }
}

/// Starts the harness of a template in a sandbox, and waits until it is ready. A bridge that has no
/// session yet is ready once it is bound: until then nothing waits for it.
pub async fn start(
    sandbox: Arc<dyn Sandbox>,
    harness: &Harness,
    started_for: StartedFor<'_>,
    logs: Arc<dyn Logs>,
    ready_timeout: Duration,
) -> Result<HarnessLink, HarnessError> {
    let binding = started_for.binding();
    let kind = match (harness, binding) {
        (Harness::Shell, _) => Kind::Shell(Shell::new(sandbox, binding)),
        (Harness::Jsonl(program), _) => {
            let harness =
                jsonl_program(&*sandbox, program, started_for, logs, ready_timeout).await?;
            Kind::Program(harness)
        }
        (Harness::AshBridge(program), Some(binding)) => {
            let ready_timeout = ready_timeout.min(BRIDGE_READY_TIMEOUT);
            Kind::Program(bridge(&*sandbox, program, binding, logs, ready_timeout).await?)
        }
        (Harness::AshBridge(program), None) if program.is_node_script() => {
            let ready_timeout = ready_timeout.min(BRIDGE_READY_TIMEOUT);
            Kind::Early(EarlyBridge::start(sandbox, program, logs, ready_timeout).await?)
        }
        (Harness::AshBridge(_), None) => {
            let cause = "a bridge that is no script of Node cannot be started before its session";
            return Err(HarnessError::new(HarnessErrorCode::NotStarted, cause));
        }
    };
    Ok(HarnessLink(Arc::new(kind)))
}

pub(crate) fn spec(program: &HarnessProgram, env: &BTreeMap<String, String>) -> ExecSpec {
    ExecSpec {
        env: env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        confirm_start: true,
        ..ExecSpec::argv(program.command.iter().cloned())
    }
}

async fn jsonl_program(
    sandbox: &dyn Sandbox,
    program: &HarnessProgram,
    started_for: StartedFor<'_>,
    logs: Arc<dyn Logs>,
    ready_timeout: Duration,
) -> Result<Arc<ProgramHarness>, HarnessError> {
    let deadline = Instant::now() + ready_timeout;
    let binding = started_for.binding();
    let mut spec = match binding {
        Some(binding) => spec(program, &binding.env),
        None => spec(program, &BTreeMap::new()),
    }
    .channel();
    if binding.is_none() {
        spec.cwd = Some(UNBOUND_DIRECTORY.to_owned());
    }
    let Started { program, channel, .. } = Program::start(sandbox, spec, None, logs).await?;
    let Some(channel) = channel else {
        let cause = "the runtime gave the harness no channel";
        return Err(HarnessError::new(HarnessErrorCode::NotStarted, cause));
    };
    let mut connection = Connection::new(channel, jsonl::LINE_BYTES_MAX);
    let ready = async {
        let line = first_line(&program, &mut connection).await?;
        jsonl::check_ready(&line).map_err(|cause| not_ready_said(&cause))
    };
    let error_tail = program.error_tail();
    in_time(deadline, &error_tail, ready).await?;
    let protocol = Box::new(Jsonl::default());
    let harness = Arc::new(ProgramHarness::new(program, Conversation { connection, protocol }));
    if let StartedFor::Session(binding) = started_for {
        in_time(deadline, &error_tail, harness.bind(binding)).await?;
    }
    Ok(harness)
}

/// Starts a bridge for its session.
pub(crate) async fn bridge(
    sandbox: &dyn Sandbox,
    program: &HarnessProgram,
    binding: &Binding,
    logs: Arc<dyn Logs>,
    ready_timeout: Duration,
) -> Result<Arc<ProgramHarness>, HarnessError> {
    let deadline = Instant::now() + ready_timeout;
    let socket = ash_bridge::socket_path(binding.sandbox);
    // The socket of a dead bridge would be in the way of the next one.
    let _ = sandbox.inside().remove(&socket, false).await;
    let mut env = binding.env.clone();
    env.extend(ash_bridge::bridge_variables(binding.session, binding.sandbox));
    let spec = spec(program, &env);
    let started = Program::start(sandbox, spec, Some(ash_bridge::READY_BYTE), logs).await?;
    connect_bridge(sandbox, started.program, started.ready, binding, deadline).await
}

/// Connects to a bridge that is about to listen.
pub(crate) async fn connect_bridge(
    sandbox: &dyn Sandbox,
    program: Program,
    ready: oneshot::Receiver<()>,
    binding: &Binding,
    deadline: Instant,
) -> Result<Arc<ProgramHarness>, HarnessError> {
    let socket = ash_bridge::socket_path(binding.sandbox);
    let connected = async {
        let mut end = program.end();
        tokio::select! {
            // The bridge may run without its ready byte: an output that has ended says nothing.
            _ = ready => {}
            ended = end.wait() => return Err(ended.into_error()),
        }
        let mut connection =
            Connection::new(dial(sandbox, &socket, &program).await?, ash_bridge::LINE_BYTES_MAX);
        let line = first_line(&program, &mut connection).await?;
        ash_bridge::check_ready(&line).map_err(|cause| not_ready_said(&cause))?;
        Ok(connection)
    };
    let connection = in_time(deadline, &program.error_tail(), connected).await?;
    let protocol = Box::new(AshBridge::new(binding.session));
    Ok(Arc::new(ProgramHarness::new(program, Conversation { connection, protocol })))
}

/// Connects to a socket, which may appear later.
async fn dial(
    sandbox: &dyn Sandbox,
    path: &str,
    program: &Program,
) -> Result<Box<dyn Duplex>, HarnessError> {
    loop {
        match sandbox.inside().dial_unix(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.code == runtime::RuntimeErrorCode::NotFound => {}
            // The end of the program explains more than its silent socket.
            Err(error) => {
                let ended = timeout(EXIT_TIMEOUT, program.end().wait()).await;
                return Err(ended.map_or_else(|_| error.into(), Ended::into_error));
            }
        }
        if !program.is_running() {
            return Err(program.end().wait().await.into_error());
        }
        sleep(DIAL_PAUSE).await;
    }
}

/// The first line of a program, or how it ended instead.
pub(crate) async fn first_line(
    program: &Program,
    connection: &mut Connection,
) -> Result<String, HarnessError> {
    match connection.next().await {
        Received::Line(line) => Ok(line),
        Received::Garbage => Err(not_ready("its first line is not UTF-8")),
        Received::TooLong => Err(not_ready("its first line is too long")),
        Received::End => match timeout(EXIT_TIMEOUT, program.end().wait()).await {
            Ok(ended) => Err(ended.into_error()),
            Err(_) => Err(not_ready("it closed its connection before it was ready")),
        },
    }
}

fn not_ready(cause: &str) -> HarnessError {
    HarnessError::new(HarnessErrorCode::Protocol, format!("the harness is not ready: {cause}"))
}

/// The same, where the cause contains output of the program.
fn not_ready_said(cause: &str) -> HarnessError {
    HarnessError::with_program_text(HarnessErrorCode::Protocol, "the harness is not ready", cause)
}

pub(crate) async fn in_time<T>(
    deadline: Instant,
    error_tail: &ErrorTail,
    what: impl Future<Output = Result<T, HarnessError>>,
) -> Result<T, HarnessError> {
    tokio::time::timeout_at(deadline, what).await.unwrap_or_else(|_| {
        let cause = "the harness was not ready in time";
        Err(HarnessError::with_program_text(
            HarnessErrorCode::ReadyTimeout,
            cause,
            &error_tail.get(),
        ))
    })
}
