//! `shoal doctor`: what this machine can do, what it lacks, and what to do about it. It checks the
//! host first and then starts a sandbox, which proves more than all checks.

mod abilities;
mod host_checks;
mod memory;
mod runtimes;
mod workspace_limits;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use jail::machine::Machine;
use jail::plan::USER;
use model::template::WorkspaceKind;
use model::{Placed, Template, TemplateName};
use runtime::{
    Capabilities, Collected, ExecSpec, LaunchSpec, RunLimits, Runtime, RuntimeError,
    RuntimeErrorCode, Users,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, timeout};

use self::abilities::{Ability, How};
use self::host_checks::{Finding, State};
use self::runtimes::Report;
use crate::config::{self, Config, HostContext, Overrides};
use crate::duration;
use crate::failure::Failure;
use crate::native::{self, HostWorkspace, Settings};
use crate::output::{Output, Paint};
use crate::workspace_placement::{WorkspacePlacement, nearest_existing};

/// How long a trial sandbox may take in all.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(15);
const REPORT: &str = "see the findings above; if all of them are yes, report this as a bug";

/// Arguments of `shoal doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal doctor                  what works for your user, and why other things do not\n  \
    sudo shoal doctor             what works for root\n  \
    shoal doctor --config x.toml  what a server with this configuration can do\n  \
    shoal doctor --json | jq '.findings[] | select(.state != \"yes\")'\n  \
    shoal doctor --json | jq '.runtimes[] | {runtime, state, why}'\n\n\
    Exit codes: 0; 1 if no runtime can run sandboxes on this machine.")]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only check this machine; start no trial sandbox
    #[arg(long)]
    no_trial: bool,
    /// Configuration of the server [default: the one that `shoal serve` would use]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the server
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let machine = Machine::probe();
    let mut findings = host_checks::findings(&machine);
    let (config, unusable) = configured(arguments);
    let data_dir = &config.server.data_dir;
    findings.push(workspace_limits::finding(data_dir));
    findings.push(memory::finding(&config));
    let mut placement = WorkspacePlacement::probe(data_dir);
    let mut abilities = Vec::new();
    if !arguments.no_trial && !findings.iter().any(Finding::is_fatal) {
        let TrialResult { found, can, disk } = trial(data_dir)?;
        findings.push(found);
        if let Some(mut can) = can {
            let looks_able = !machine.is_root || machine.idmapped_mounts;
            can.disk_workspaces = disk.as_ref().map_or(looks_able, Result::is_ok);
            findings.extend(subordinate(can.users));
            abilities = abilities::abilities(can);
            if !config.egress.enabled {
                abilities = abilities::without_egress(abilities);
            }
            if let Some(disk) = disk {
                placement = placement.with_trial(disk);
            }
        }
    }
    findings.extend(unusable);
    let templates = template_reports(&config, &placement);
    let reports = runtime_reports(&config, &findings, !arguments.no_trial)?;
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
            "templates": templates,
        }));
    } else {
        print_findings(&findings, output);
        print_abilities(&abilities, output);
        print_runtimes(&reports, output);
        print_templates(&templates, output);
        print_verdict(able, output);
    }
    Ok(if able { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configuration that `shoal serve` would use; the defaults if it is not valid.
fn configured(arguments: &Arguments) -> (Config, Option<Finding>) {
    let flags = Overrides::of_data_dir(arguments.data_dir.as_deref())
        .with_file(arguments.config.as_deref());
    match config::load(&flags, &HostContext::read()) {
        Ok(effective) => (effective.config, None),
        Err(error) => {
            let remedy = "correct the file (shoal config --check FILE); this report uses the default configuration";
            let found = Finding::no("configuration", error.to_string(), remedy);
            (Config::default(), Some(found))
        }
    }
}

/// Where the workspaces of a template are on this machine.
#[derive(Debug, Serialize)]
struct TemplateReport {
    template: TemplateName,
    workspace: Option<Placed>,
    /// Why that is not known, or why the template is refused.
    why_not: Option<String>,
}

/// A report on each configured template, or on the built-in one.
fn template_reports(config: &Config, placement: &WorkspacePlacement) -> Vec<TemplateReport> {
    let templates = config.templates.clone().unwrap_or_else(Config::built_in);
    let report = |template: Template| {
        let placed = placement.placed(&template);
        let (workspace, why_not) = match placed {
            Ok(placed) => (Some(placed), None),
            Err(why) => (None, Some(why)),
        };
        TemplateReport { template: template.name, workspace, why_not }
    };
    templates.into_iter().map(report).collect()
}

fn print_templates(reports: &[TemplateReport], output: &Output) {
    output.say(&format!(
        "\n{}",
        output.paint(Paint::Strong, "Where the workspaces of each template are:")
    ));
    let width = reports.iter().map(|one| one.template.as_str().len()).max().unwrap_or(0);
    for TemplateReport { template, workspace, why_not } in reports {
        let (state, why) = match (workspace, why_not) {
            (Some(Placed { kind, limit, why }), _) => {
                let state = match (kind, why) {
                    (WorkspaceKind::Memory, Some(_)) => State::Partly,
                    (WorkspaceKind::Memory, None) | (WorkspaceKind::Disk, _) => State::Yes,
                };
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                (state, format!("{}, {} limit{why}", kind.as_str(), limit.as_str()))
            }
            (None, why) => (State::No, why.clone().unwrap_or_default()),
        };
        print_row(width, (template.as_str(), state, &why, None), false, output);
    }
}

/// A report on each runtime that templates can choose.
fn runtime_reports(
    config: &Config,
    findings: &[Finding],
    trial: bool,
) -> Result<Vec<Report>, Failure> {
    let tokio = native::tokio()?;
    let reports = native::block_on(&tokio, runtimes::reports(config, findings, trial));
    tokio.shutdown_background();
    Ok(reports)
}

fn print_findings(findings: &[Finding], output: &Output) {
    let width = findings.iter().map(|found| found.name.len()).max().unwrap_or(0);
    for found in findings {
        let row = (found.name, found.state, found.why.as_str(), found.remedy.as_deref());
        print_row(width, row, found.needed, output);
    }
}

fn print_row(
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

fn print_runtimes(reports: &[Report], output: &Output) {
    output
        .say(&format!("\n{}", output.paint(Paint::Strong, "Runtimes that templates can choose:")));
    let width = reports.iter().map(|one| one.runtime.len()).max().unwrap_or(0);
    for one in reports {
        let row = (one.runtime, one.state, one.why.as_str(), one.remedy.as_deref());
        print_row(width, row, false, output);
    }
}

/// Prints what works for this user, and how well.
fn print_abilities(abilities: &[Ability], output: &Output) {
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

fn print_verdict(able: bool, output: &Output) {
    let verdict = if able {
        output.paint(Paint::Good, "Sandboxes can run on this machine.")
    } else {
        output.paint(Paint::Bad, "Sandboxes cannot run on this machine.")
    };
    output.say(&format!("\n{verdict}"));
}

/// Whether an ordinary user has subordinate users for guests.
fn subordinate(users: Users) -> Option<Finding> {
    const NAME: &str = "subordinate users";
    match users {
        Users::Ranges => None,
        Users::Subordinate => Some(Finding::yes(NAME, "each guest runs as a user of its own")),
        Users::Alone => Some(Finding::no(
            NAME,
            "guests run as the same user as programs",
            "install newuidmap and newgidmap (package uidmap), and give yourself one subordinate \
             user per sandbox: usermod --add-subuids 100000-165535 --add-subgids \
             100000-165535 NAME",
        )),
    }
}

/// Starts a sandbox, with the limits that this machine can enforce, and runs a program in it. Gives
/// the time until the sandbox was ready.
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
    Ok((sandbox.inside().run(ExecSpec::shell("echo fine"), limits).await?, took))
}

/// The result of a trial sandbox.
struct TrialResult {
    found: Finding,
    can: Option<Capabilities>,
    /// Whether a sandbox with its workspace in the data directory starts, if that was tried.
    disk: Option<Result<(), String>>,
}

/// Starts a sandbox and a program in it, and a second one with its workspace in the data directory.
fn trial(data_dir: &Path) -> Result<TrialResult, Failure> {
    const NAME: &str = "a sandbox starts";
    let tokio = native::tokio()?;
    let trial_workspace = TrialWorkspace::make_in(&nearest_existing(data_dir));
    let mut disk = None;
    let attempt = async {
        // As many slots as a server has: subordinate users may suffice for two and not for all.
        let slots = model::NodeConfig::default().max_live;
        let workspace = trial_workspace.as_ref().map(|trial| &trial.workspace);
        let opened = native::open(Settings { slots, ..Settings::for_one(workspace) }).await?;
        let can = opened.capabilities();
        let tried = try_one(&*opened).await;
        if let (Ok(_), Some(workspace)) = (&tried, workspace) {
            disk = Some(try_on_disk(&*opened, workspace).await);
        }
        let closed = opened.shutdown().await;
        let (ran, took) =
            tried.map_err(|error| Failure::of_runtime("cannot start a sandbox", &error))?;
        closed.map_err(|error| Failure::of_runtime("cannot clean up", &error))?;
        Ok((ran, took, can))
    };
    let tried = native::block_on(&tokio, async { timeout(TRIAL_TIMEOUT, attempt).await });
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
            let why = format!("a shell in the sandbox ended with {:?}", ran.exit.status);
            Finding::no(NAME, why, REPORT)
        }
        Ok(Err(failure)) => Finding::no(NAME, Failure::to_string(&failure), REPORT),
        Err(_) => {
            let why = format!("the trial did not end within {}", duration::words(TRIAL_TIMEOUT));
            Finding::no(NAME, why, REPORT)
        }
    };
    Ok(TrialResult { found: found.needed(), can, disk })
}

/// A workspace in the data directory for a trial. Dropping it removes it.
struct TrialWorkspace {
    path: PathBuf,
    workspace: HostWorkspace,
}

impl TrialWorkspace {
    /// None if we may not make one. The user who runs the server may.
    fn make_in(place: &Path) -> Option<Self> {
        let path = place.join(format!(".shoal-workspace-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o755).create(&path).ok()?;
        let owned = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(USER), Some(USER))
        } else {
            Ok(())
        };
        if let Some(workspace) = owned.ok().and_then(|()| HostWorkspace::check(&path).ok()) {
            return Some(Self { path, workspace });
        }
        let _ = std::fs::remove_dir(&path);
        None
    }
}

impl Drop for TrialWorkspace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Starts a sandbox with this workspace, and kills it.
async fn try_on_disk(runtime: &dyn Runtime, workspace: &HostWorkspace) -> Result<(), String> {
    let limits = model::Limits { best_effort: true, ..model::Limits::default() };
    let spec = native::spec(limits).map_err(|failure| Failure::to_string(&failure))?;
    let (instance, workspace) = (spec.instance, workspace.source());
    let launched = runtime.launch(LaunchSpec { workspace, ..spec }).await;
    // If this fails, the shutdown of the runtime ends the sandbox.
    let _ = runtime.kill(instance).await;
    launched.map(|_| ()).map_err(|error| error.to_string())
}
