//! `shoal exec`: runs a program in a sandbox of a running server. Its output is printed as it
//! comes, and its exit code is ours.

mod input;
mod request;

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use client::{Client, ExecEvent, ExecRequest, Inside, Lease};
use model::SessionId;
use tokio::task::block_in_place;
use tokio::time::timeout;
use wire::{CheckoutRequest, ExecExit, ExecResult};

pub(crate) use self::request::{Arguments, Program};
use self::request::{ExecPlan, ExecTarget};
use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::run::signals::Signals;
use crate::run::streams::write_all;
use crate::server::Server;

/// How long the return of a sandbox may take. If it fails, the lease still expires.
const RETURN_PATIENCE: Duration = Duration::from_secs(10);
/// Added to the number of the signal that ended us, as shells do.
const SIGNAL_BASE: i32 = 128;

pub(crate) fn main(typed: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let client = typed.server.client().map_err(Failure::as_own_failure)?;
    let plan =
        ExecPlan::of(typed, |key| std::env::var(key).ok()).map_err(Failure::as_own_failure)?;
    carry_out(&client, plan, output)
}

/// Runs a program in the sandbox of a session.
pub(crate) fn in_session(
    session: SessionId,
    program: Program,
    words: Vec<String>,
    server: &Server,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let client = server.client().map_err(Failure::as_own_failure)?;
    let target = ExecTarget::Session(session);
    let plan = program.plan(target, words, |key| std::env::var(key).ok());
    carry_out(&client, plan.map_err(Failure::as_own_failure)?, output)
}

fn carry_out(client: &Client, plan: ExecPlan, output: &Output) -> Result<ExitCode, Failure> {
    // Two threads, so that signals are handled while a slow reader blocks a write.
    let tokio = native::tokio()?;
    let code = native::block_on(&tokio, async {
        let mut signals = Signals::listen()?;
        check_out_and_run(client, plan, &mut signals, output).await
    });
    // The thread that reads our input may still wait for some.
    tokio.shutdown_background();
    code.map(|code| ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
}

/// Runs the program until it ends or a signal arrives. A checked-out sandbox is always returned.
async fn check_out_and_run(
    client: &Client,
    plan: ExecPlan,
    signals: &mut Signals,
    output: &Output,
) -> Result<i32, Failure> {
    let request = tokio::select! {
        request = input::give(plan.request, plan.stdin, output) => request?,
        number = signals.next_end() => return Ok(SIGNAL_BASE + number),
    };
    let (inside, lease) = match plan.target {
        ExecTarget::Session(id) => (Inside::clone(&client.session(id)), None),
        ExecTarget::Sandbox(id) => (Inside::clone(&client.sandbox(id)), None),
        ExecTarget::Checkout(request) => {
            let lease = tokio::select! {
                lease = check_out(client, request) => lease?,
                number = signals.next_end() => return Ok(SIGNAL_BASE + number),
            };
            (Inside::clone(&lease), Some(lease))
        }
    };
    let code = tokio::select! {
        code = run(&inside, request, plan.json, output) => code,
        number = signals.next_end() => Ok(SIGNAL_BASE + number),
    };
    if let Some(lease) = lease {
        return_lease(lease, output).await;
    }
    code
}

async fn check_out(client: &Client, request: CheckoutRequest) -> Result<Lease, Failure> {
    client
        .checkout(request)
        .await
        .map_err(|e| Failure::of_client("cannot get a sandbox", &e).as_own_failure())
}

async fn return_lease(lease: Lease, output: &Output) {
    let trouble = match timeout(RETURN_PATIENCE, lease.give_back()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    output.note(&format!("cannot return the sandbox; it ends when its lease expires: {trouble}"));
}

async fn run(
    inside: &Inside,
    request: ExecRequest,
    json: bool,
    output: &Output,
) -> Result<i32, Failure> {
    let failed = |error| Failure::of_exec("cannot run the program", &error);
    if json {
        let ran: ExecResult = inside.exec(request).await.map_err(failed)?;
        output.say_value(&ran)?;
        return Ok(ran.exit_code);
    }
    let mut stream = inside.exec_stream(request).await.map_err(failed)?;
    if let Some(reason) = stream.state_lost() {
        output.note(&format!("files of this session were lost before this command ({reason})"));
    }
    while let Some(event) = stream.next().await.map_err(failed)? {
        let written = match event {
            ExecEvent::Started | ExecEvent::Error { .. } => Ok(()),
            ExecEvent::Stdout(piece) => {
                let bytes = piece.bytes().map_err(|e| Failure::new("cannot read output", e))?;
                block_in_place(|| write_all(io::stdout().as_fd(), &bytes))
            }
            ExecEvent::Stderr(piece) => {
                let bytes = piece.bytes().map_err(|e| Failure::new("cannot read output", e))?;
                block_in_place(|| write_all(io::stderr().as_fd(), &bytes))
            }
            ExecEvent::Exit(exit) => {
                print_notes(&exit, output);
                return Ok(exit.exit_code);
            }
        };
        match written {
            Ok(()) => {}
            // Our output is closed: dropping the stream ends the program, as a pipe would.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(BROKEN_PIPE),
            Err(error) => return Err(Failure::new("cannot write output", error)),
        }
    }
    Err(Failure::new(
        "cannot run the program",
        "the output ended before the server reported the exit of the program",
    ))
}

/// The exit code of a program that writes to a closed pipe.
const BROKEN_PIPE: i32 = SIGNAL_BASE + 13;

/// Prints what the exit code alone does not say.
fn print_notes(exit: &ExecExit, output: &Output) {
    if exit.oom {
        output.note(
            "out of memory: the kernel killed the program; raise limits.memory_mb of the template",
        );
    } else if exit.timed_out {
        output.note("timed out: the server killed the program; a larger --timeout gives the program more time");
    }
    if exit.truncated {
        output.note("the output is incomplete: it exceeded the limit of the template");
    }
}
