//! `shoal doctor`: what this machine can do, why not, and what to do about it. It looks first and
//! then tries: one real sandbox says more than all signs of it.

mod abilities;
mod judge;
mod limits;
mod runtimes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use jail::machine::Machine;
use runtime::{
    Capabilities, Collected, ExecSpec, RunLimits, Runtime, RuntimeError, RuntimeErrorCode, Users,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use self::abilities::{Ability, How};
use self::judge::{Finding, State};
use self::runtimes::Report;
use crate::config::{self, Config, Overrides, Surroundings};
use crate::duration;
use crate::failure::Failure;
use crate::native::{self, Settings};
use crate::output::{Output, Paint};

/// How long the trial may take in all.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(15);
const REPORT: &str = "see the findings above; if all of them are yes, report this as a defect";

/// What was typed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal doctor                  what works for you, and why something does not\n  \
    sudo shoal doctor             what works for root\n  \
    shoal doctor --config x.toml  what a server with this configuration would find\n  \
    shoal doctor --json | jq '.findings[] | select(.state != \"yes\")'\n  \
    shoal doctor --json | jq '.runtimes[] | {runtime, state, why}'\n\n\
    The exit code is 1 if no runtime can run sandboxes on this machine.")]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only look, do not start a sandbox
    #[arg(long)]
    no_trial: bool,
    /// The configuration of the server that is meant [default: what `shoal serve` would find]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let machine = Machine::probe();
    let mut findings = judge::findings(&machine);
    findings.push(limits::finding());
    let mut abilities = Vec::new();
    if !arguments.no_trial && !findings.iter().any(Finding::is_fatal) {
        let (found, can) = trial()?;
        findings.push(found);
        if let Some(mut can) = can {
            // The sandbox that was tried had no use for one.
            can.disk_workspaces = !machine.is_root || machine.idmapped_mounts;
            findings.extend(subordinate(can.users));
            abilities = abilities::abilities(can);
        }
    }
    let (config, found) = configured(arguments);
    findings.extend(found);
    let reports = choices(&config, &findings, !arguments.no_trial)?;
    let able = reports.iter().any(|one| one.state != State::No);
    if arguments.json {
        output.say_json(&json!({
            "able": able,
            "kernel": machine.release,
            "memory_mb": machine.memory_bytes >> 20,
            "swap_mb": machine.swap_bytes >> 20,
            "landlock_abi": machine.calls.landlock_abi,
            "findings": findings,
            "abilities": abilities,
            "runtimes": reports,
        }));
    } else {
        tell(&findings, output);
        tell_abilities(&abilities, output);
        tell_runtimes(&reports, output);
        verdict(able, output);
    }
    Ok(if able { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How the server is configured that would be started now; the defaults if it could not be.
fn configured(arguments: &Arguments) -> (Config, Option<Finding>) {
    let flags = Overrides::of_data_dir(arguments.data_dir.as_deref())
        .with_file(arguments.config.as_deref());
    match config::load(&flags, &Surroundings::read()) {
        Ok(effective) => (effective.config, None),
        Err(error) => {
            let remedy =
                "mend it (shoal config --check FILE); what is said here is of the defaults";
            let found = Finding::no("configuration", error.to_string(), remedy);
            (Config::default(), Some(found))
        }
    }
}

/// What templates can choose.
fn choices(config: &Config, findings: &[Finding], trial: bool) -> Result<Vec<Report>, Failure> {
    let tokio = native::tokio()?;
    let reports = tokio.block_on(runtimes::reports(config, findings, trial));
    tokio.shutdown_background();
    Ok(reports)
}

fn tell(findings: &[Finding], output: &Output) {
    let width = findings.iter().map(|found| found.name.len()).max().unwrap_or(0);
    for found in findings {
        let row = (found.name, found.state, found.why.as_str(), found.remedy.as_deref());
        tell_row(width, row, found.needed, output);
    }
}

fn tell_row(
    width: usize,
    (name, state, why, remedy): (&str, State, &str, Option<&str>),
    needed: bool,
    output: &Output,
) {
    let (word, paint) = match state {
        State::Yes => ("yes   ", Paint::Good),
        State::Partly => ("partly", Paint::Middling),
        State::No => ("no    ", if needed { Paint::Bad } else { Paint::Middling }),
    };
    output.say(&format!("{name:width$}  {}  {why}", output.paint(paint, word)));
    if let Some(remedy) = remedy {
        let arrow = output.paint(Paint::Faint, "try:");
        output.say(&format!("{:width$}          {arrow} {remedy}", ""));
    }
}

fn tell_runtimes(reports: &[Report], output: &Output) {
    output.say(&format!("\n{}", output.paint(Paint::Strong, "What templates can choose:")));
    let width = reports.iter().map(|one| one.runtime.len()).max().unwrap_or(0);
    for one in reports {
        let row = (one.runtime, one.state, one.why.as_str(), one.remedy.as_deref());
        tell_row(width, row, false, output);
    }
}

/// What works here, and how well.
fn tell_abilities(abilities: &[Ability], output: &Output) {
    let width = abilities.iter().map(|one| one.name.len()).max().unwrap_or(0);
    if !abilities.is_empty() {
        output.say(&format!("\n{}", output.paint(Paint::Strong, "What works for you here:")));
    }
    for Ability { name, how, why } in abilities {
        let (word, paint) = match how {
            How::Works => ("works      ", Paint::Good),
            How::Weaker => ("weaker     ", Paint::Middling),
            How::Unsupported => ("unsupported", Paint::Middling),
        };
        output.say(&format!("{name:width$}  {}  {why}", output.paint(paint, word)));
    }
}

fn verdict(able: bool, output: &Output) {
    let verdict = if able {
        output.paint(Paint::Good, "Sandboxes can run on this machine.")
    } else {
        output.paint(Paint::Bad, "Sandboxes cannot run on this machine.")
    };
    output.say(&format!("\n{verdict}"));
}

/// Whether an ordinary user has users to give away.
fn subordinate(users: Users) -> Option<Finding> {
    const NAME: &str = "subordinate users";
    match users {
        Users::Ranges => None,
        Users::Subordinate => Some(Finding::yes(NAME, "each guest has a user of its own")),
        Users::Alone => Some(Finding::no(
            NAME,
            "guests are the same user as programs",
            "install newuidmap and newgidmap (package uidmap), and give yourself as many users as \
             there may be sandboxes: usermod --add-subuids 100000-165535 --add-subgids \
             100000-165535 NAME",
        )),
    }
}

/// Makes a sandbox, with the limits that can be enforced, and runs a program in it. How long it took
/// until it was ready.
async fn try_one(runtime: &dyn Runtime) -> Result<(Collected, Duration), RuntimeError> {
    let limits = model::Limits { best_effort: true, ..model::Limits::default() };
    let spec = native::spec(limits).map_err(|failure| {
        let cause = Failure::to_string(&failure);
        RuntimeError::new(RuntimeErrorCode::System, "name a sandbox", cause)
    })?;
    let started_at = Instant::now();
    let sandbox = runtime.launch(spec).await?;
    let took = started_at.elapsed();
    let limits = RunLimits { output_bytes: 4096, timeout: TRIAL_TIMEOUT };
    Ok((sandbox.run(ExecSpec::shell("echo fine"), limits).await?, took))
}

/// Starts a sandbox and a program in it.
fn trial() -> Result<(Finding, Option<Capabilities>), Failure> {
    const NAME: &str = "a sandbox starts";
    let tokio = native::tokio()?;
    let attempt = async {
        // As many as a server has: whoever has users for two may not have them for all.
        let slots = model::NodeConfig::default().max_live;
        let opened = native::open(Settings { slots, ..Settings::for_one(None) }).await?;
        let can = opened.capabilities();
        let tried = try_one(&*opened).await;
        let closed = opened.shutdown().await;
        let (ran, took) =
            tried.map_err(|error| Failure::of_runtime("cannot start a sandbox", &error))?;
        closed.map_err(|error| Failure::of_runtime("cannot clean up", &error))?;
        Ok((ran, took, can))
    };
    let tried = tokio.block_on(async { timeout(TRIAL_TIMEOUT, attempt).await });
    tokio.shutdown_background();
    let can = match &tried {
        Ok(Ok((_, _, can))) => Some(*can),
        Ok(Err(_)) | Err(_) => None,
    };
    let found = match tried {
        Ok(Ok((ran, took, _))) if ran.stdout == b"fine\n" => {
            Finding::yes(NAME, format!("ready in {}", duration::words(took)))
        }
        Ok(Ok((ran, _, _))) => {
            let why = format!("a shell in it ended with {:?}", ran.exit.status);
            Finding::no(NAME, why, REPORT)
        }
        Ok(Err(failure)) => Finding::no(NAME, Failure::to_string(&failure), REPORT),
        Err(_) => {
            let why = format!("it was not done after {}", duration::words(TRIAL_TIMEOUT));
            Finding::no(NAME, why, REPORT)
        }
    };
    Ok((found.needed(), can))
}
