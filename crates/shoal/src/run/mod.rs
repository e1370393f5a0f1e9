//! `shoal run`: runs one program in a new sandbox, connected to our streams, signals and terminal.
//! Its exit code is ours.

mod arguments;
mod outcome;
pub(crate) mod signals;
pub(crate) mod streams;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use model::InstanceId;
use runtime::{
    Capabilities, Collected, ExecSpec, LaunchSpec, Root, RunLimits, Runtime, Sandbox, Sink, Stdin,
    WorkspaceSource,
};
use rustix::io::fcntl_getfd;
use tokio::time::Instant;

pub(crate) use self::arguments::{Arguments, When};
use self::arguments::{RunPlan, StdioContext};
use self::outcome::ProgramOutcome;
use self::signals::{SignalAction, Signals};
use self::streams::Ours;
use crate::failure::Failure;
use crate::image;
use crate::native::{self, Settings};
use crate::output::Output;

/// How long a sandbox may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most input for a program whose output is collected.
const INPUT_BYTES_MAX: u64 = 64 << 20;
/// "No timeout" for calls that want one.
const FOREVER: Duration = Duration::from_hours(24 * 3650);
/// After this many interrupts we no longer wait for the program.
const INTERRUPTS_MAX: u32 = 3;

pub(crate) fn main(typed: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let stdio = StdioContext {
        stdin_open: fcntl_getfd(io::stdin()).is_ok(),
        stdin_terminal: io::stdin().is_terminal(),
        stdout_terminal: io::stdout().is_terminal(),
    };
    let plan = RunPlan::of(typed, stdio, |key| std::env::var(key).ok())?;
    let workspace = plan.workspace.as_deref().map(native::HostWorkspace::check).transpose()?;
    let mut settings = Settings::for_one(workspace.as_ref());
    let root = match &plan.image {
        None => Root::Host,
        Some(image) => {
            let found = image::LocalImage::by_name(image)?;
            settings.images = Some(found.store);
            Root::Image(found.id)
        }
    };
    let source = workspace.as_ref().map_or(WorkspaceSource::Memory, native::HostWorkspace::source);
    let tokio = native::tokio()?;
    let outcome = native::block_on(&tokio, async {
        let mut signals = Signals::listen()?;
        let opened = tokio::select! {
            opened = native::open(settings) => opened?,
            number = signals.next_end() => return Ok(ProgramOutcome::interrupted(number)),
        };
        let outcome =
            run_in_sandbox(opened.as_ref(), plan, (root, source), &mut signals, output).await;
        // A failure to clean up is reported if nothing worse happened.
        let closed = opened.shutdown().await;
        let outcome = outcome?;
        closed.map_err(|error| Failure::of_runtime("cannot clean up", &error))?;
        Ok(outcome)
    });
    // The thread that reads our input may still wait for some.
    tokio.shutdown_background();
    let outcome: ProgramOutcome = outcome?;
    outcome.report(output);
    Ok(outcome.exit_code())
}

async fn run_in_sandbox(
    runtime: &dyn Runtime,
    plan: RunPlan,
    (root, workspace): (Root, WorkspaceSource),
    signals: &mut Signals,
    output: &Output,
) -> Result<ProgramOutcome, Failure> {
    check_limits(runtime.capabilities(), &plan, output)?;
    let spec = LaunchSpec {
        instance: InstanceId::from_u128(native::random()?),
        root,
        limits: plan.limits,
        workspace,
        aliases: Vec::new(),
        mounts: Vec::new(),
        settings: None,
        ready_timeout: READY_TIMEOUT,
    };
    let launched = tokio::select! {
        launched = runtime.launch(spec) => launched,
        number = signals.next_end() => return Ok(ProgramOutcome::interrupted(number)),
    };
    let sandbox = launched.map_err(|e| Failure::of_runtime("cannot make a sandbox", &e))?;
    if plan.json {
        run_collected(sandbox.as_ref(), plan, signals, output).await
    } else {
        run_streamed(sandbox.as_ref(), plan, signals).await
    }
}

/// Refuses limits that were given and cannot be enforced. Notes default limits that cannot be.
fn check_limits(can: Capabilities, plan: &RunPlan, output: &Output) -> Result<(), Failure> {
    let unenforced: Vec<_> = can.unenforced().collect();
    if let Some((_, flag)) = plan.asked.iter().find(|(name, _)| unenforced.contains(name)) {
        let why = "this machine cannot enforce that limit for you";
        return Err(Failure::new(format!("cannot limit by {flag}"), why).remedy(
            "`shoal doctor` says what to do about it; or leave the flag out and run without this limit",
        ));
    }
    if !unenforced.is_empty() {
        let words: Vec<_> = unenforced.iter().map(|name| native::limit_in_words(name)).collect();
        output.note(&format!("not limited here: {} (`shoal doctor` says why)", words.join(", ")));
    }
    Ok(())
}

/// Runs a program connected to our streams.
async fn run_streamed(
    sandbox: &dyn Sandbox,
    plan: RunPlan,
    signals: &mut Signals,
) -> Result<ProgramOutcome, Failure> {
    let spec = ExecSpec {
        env: plan.env,
        cwd: plan.cwd,
        stdin: if plan.stdin { Stdin::Stream } else { Stdin::Null },
        stderr: if plan.terminal { Sink::Null } else { Sink::Stream },
        terminal: plan.terminal.then(terminal::size),
        ..ExecSpec::new(plan.command)
    };
    let failed = |error| Failure::of_start(&plan.name, &error);
    let started_at = Instant::now();
    let mut process = sandbox.inside().exec(spec).await.map_err(failed)?;
    let handle = process.handle();
    let raw = plan.terminal.then(terminal::Raw::enter);
    if let Some(input) = process.stdin.take() {
        streams::feed(input);
    }
    let drains = [
        streams::drain(process.stdout.take(), Ours::Stdout),
        streams::drain(process.stderr.take(), Ours::Stderr),
    ];
    let deadline = tokio::time::sleep(plan.timeout.unwrap_or(FOREVER));
    tokio::pin!(deadline);
    let (mut timed_out, mut interrupts) = (false, 0);
    let exit = loop {
        tokio::select! {
            exit = process.wait() => break exit,
            () = &mut deadline, if !timed_out => {
                timed_out = true;
                handle.kill().await.map_err(failed)?;
            }
            action = signals.next() => match action {
                SignalAction::Resized if plan.terminal => {
                    // Fails if the program has ended; then the size does not matter.
                    let _ = handle.resize(terminal::size()).await;
                }
                SignalAction::Resized => {}
                SignalAction::Forward(number) => {
                    interrupts += u32::from(signals::asks_to_end(number));
                    if interrupts >= INTERRUPTS_MAX {
                        return Ok(ProgramOutcome::interrupted(number));
                    }
                    let _ = handle.signal_tree(number).await;
                }
            },
        }
    };
    let exit = exit.map_err(failed)?;
    for drain in drains {
        let drained = drain.await.map_err(|error| Failure::new("cannot write output", error))?;
        drained.map_err(|error| Failure::of_runtime("cannot write output", &error))?;
    }
    drop(raw);
    let limit = plan.timeout.filter(|_| exit.timed_out(timed_out));
    Ok(ProgramOutcome::of(exit, started_at.elapsed(), limit, plan.limits.memory_mb))
}

/// Runs a program, collects its output, and prints one JSON object.
async fn run_collected(
    sandbox: &dyn Sandbox,
    plan: RunPlan,
    signals: &mut Signals,
    output: &Output,
) -> Result<ProgramOutcome, Failure> {
    let stdin = if plan.stdin {
        let read = tokio::task::block_in_place(|| streams::read_input(INPUT_BYTES_MAX));
        Stdin::Bytes(read.map_err(|error| Failure::new("cannot read input", error))?)
    } else {
        Stdin::Null
    };
    let spec = ExecSpec { env: plan.env, cwd: plan.cwd, stdin, ..ExecSpec::new(plan.command) };
    let limits = RunLimits {
        output_bytes: plan.limits.exec_output_bytes,
        timeout: plan.timeout.unwrap_or(FOREVER),
    };
    let collected: Collected = tokio::select! {
        ran = sandbox.inside().run(spec, limits) => ran.map_err(|e| Failure::of_start(&plan.name, &e))?,
        number = signals.next_end() => return Ok(ProgramOutcome::interrupted(number)),
    };
    let limit = plan.timeout.filter(|_| collected.timed_out);
    let outcome =
        ProgramOutcome::of(collected.exit, collected.duration, limit, plan.limits.memory_mb);
    output.say_json(&outcome.json(&collected));
    Ok(outcome.reported())
}
