//! `shoal status` and `shoal stop`: what keeps a sandbox awake, and ending that.

use std::process::ExitCode;
use std::time::Duration;

use model::SandboxId;
use model::state::Wakefulness;
use wire::StatusReport;

use crate::duration;
use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::relative_time;
use crate::server::{Server, cannot};

/// Arguments of `shoal status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal status SANDBOX                    what keeps the sandbox awake, and when it will be frozen\n  \
    shoal status SANDBOX --json | jq .state\n\n\
    This command neither wakes the sandbox nor counts as activity.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// Arguments of `shoal stop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal stop SANDBOX               release the keep-alive of its processes now\n  \
    shoal stop SANDBOX --after 5m    release it in five minutes, for the processes that run now\n\n\
    This command kills nothing: the processes run on until the sandbox is frozen. `shoal process stop`\n\
    ends a process, and `shoal rm` ends a sandbox. A later `shoal stop` replaces an earlier one.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Stop {
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Release the keep-alive after this time instead of at once, like 300s or 5m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let report = arguments.server.with(async |client| {
        client.sandbox(arguments.sandbox).status().await.map_err(cannot("read the status"))
    })?;
    print_report(&report, arguments.json, output)
}

pub(crate) fn stop(arguments: &Stop, output: &Output) -> Result<ExitCode, Failure> {
    // Rounded up, so that nothing ends sooner than the user wanted.
    let after_s = arguments.after.map(|time| time.as_millis().div_ceil(1000) as u64);
    let report = arguments.server.with(async |client| {
        let sandbox = client.sandbox(arguments.sandbox);
        sandbox
            .stop_keeping_awake(after_s)
            .await
            .map_err(cannot("stop the processes from keeping the sandbox awake"))
    })?;
    print_report(&report, arguments.json, output)
}

fn print_report(report: &StatusReport, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    if json {
        output.say_value(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = match (report.frozen, report.state) {
        (true, _) => "frozen",
        (false, Wakefulness::Awake) => "awake",
        (false, Wakefulness::Auto) => "auto",
    };
    output.say(&format!("{}: {}", output.paint(Paint::Strong, state), report.because));
    let now = relative_time::now();
    for (name, at) in [
        ("freezes", report.freezes_at),
        ("becomes cold", report.sleeps_at),
        ("keep-alive of its processes ends", report.scheduled_stop_at),
    ] {
        if let Some(at) = at {
            output.say(&format!("  {name} {}", relative_time::until(at, now)));
        }
    }
    for process in &report.keep_alive_processes {
        output.say(&format!("  kept awake by process {} ({})", process.pid, process.name));
    }
    if report.scale > 0 {
        output.say(&format!("  kept awake by the scale file ({})", report.scale));
    }
    Ok(ExitCode::SUCCESS)
}
