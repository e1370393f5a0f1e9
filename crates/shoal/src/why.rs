//! `shoal why`: explains the state of a sandbox, or how it ended.

use std::process::ExitCode;

use model::SandboxId;
use model::why::Shortage;
use wire::{Time, Why, WhyAlive, WhyEnded};

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::relative_time;
use crate::server::{Server, cannot};

/// Arguments of `shoal why`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal why SANDBOX                  one sentence, and the facts behind it\n  \
    shoal why SANDBOX --json | jq '.cause // .ending // .slept'\n                                     \
    why it ended, is being ended, or is cold\n\n\
    The server still knows ended sandboxes, and how they ended.\n\n\
    Exit codes: 0; 1 if the server does not know the sandbox; 3 if no server answers.")]
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

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let why = arguments.server.with(async |client| {
        let sandbox = client.sandbox(arguments.sandbox);
        sandbox.why().await.map_err(cannot("explain the sandbox"))
    })?;
    if arguments.json {
        output.say_value(&why)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.say(&output.paint(Paint::Strong, why.summary()));
    let facts = match &why {
        Why::Alive(alive) => of_life(alive, relative_time::now()),
        Why::Ended(ended) => of_end(ended, relative_time::now()),
    };
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, fact) in facts {
        output.say(&format!("  {name:width$}  {fact}"));
    }
    Ok(ExitCode::SUCCESS)
}

type Fact = (&'static str, String);

fn of_life(alive: &WhyAlive, now: Time) -> Vec<Fact> {
    let after = |name, at: Option<Time>| Some((name, relative_time::until(at?, now)));
    let counted = |name, count: u32| (count > 0).then(|| (name, count.to_string()));
    let optional = |name, what: Option<String>| Some((name, what?));
    [
        Some(("template", alive.template.to_string())),
        Some(("runtime", alive.runtime.as_str().to_owned())),
        optional("container", alive.container_id.clone()),
        counted("times handed out", alive.use_count),
        Some(("state", alive.state.as_str().to_owned())),
        alive.frozen.then(|| ("frozen", "until its next use".to_owned())),
        optional("lease", alive.lease.map(|id| id.to_string())),
        optional("session", alive.session.map(|id| id.to_string())),
        counted("calls in progress", alive.uses_in_progress),
        optional("kept awake by", kept_awake_by(alive)),
        optional("workspace", workspace(alive)),
        optional("ending because", alive.ending.map(|cause| cause.as_str().to_owned())),
        optional("cold because", alive.slept.map(|cause| cause.as_str().to_owned())),
        Some(("last used", relative_time::ago(alive.last_used_at, now))),
        after("freezes", alive.freezes_at),
        after("becomes cold", alive.sleeps_at),
        after(if alive.lease.is_some() { "lease expires" } else { "ends" }, alive.expires_at),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What keeps the sandbox awake: its processes, the scale file, or both.
fn kept_awake_by(alive: &WhyAlive) -> Option<String> {
    let processes = match alive.keep_alive_processes {
        0 => None,
        1 => Some("1 process".to_owned()),
        many => Some(format!("{many} processes")),
    };
    let scale = (alive.scale > 0).then(|| format!("the scale file ({})", alive.scale));
    let reasons: Vec<_> = processes.into_iter().chain(scale).collect();
    (!reasons.is_empty()).then(|| reasons.join(" and "))
}

/// The limit of a workspace on disk, and its size when it was last measured.
fn workspace(alive: &WhyAlive) -> Option<String> {
    let limit = alive.workspace_limit?.as_str();
    Some(match alive.workspace_bytes {
        Some(bytes) => format!("on disk, {limit} limit, {} MB", bytes.div_ceil(1 << 20)),
        None => format!("on disk, {limit} limit"),
    })
}

const fn lack(shortage: Shortage) -> &'static str {
    match shortage {
        Shortage::Entries => "lack of entries (node.max_sandboxes)",
        Shortage::Processes => "lack of places for live sandboxes (node.max_live)",
        Shortage::Memory => "lack of memory (node.memory_budget_mb)",
    }
}

fn of_end(ended: &WhyEnded, now: Time) -> Vec<Fact> {
    let optional = |name, what: Option<String>| Some((name, what?));
    let lived_ms = ended.ended_at.ms_after(ended.created_at);
    [
        Some(("template", ended.template.to_string())),
        Some(("reason", ended.reason.as_str().to_owned())),
        Some(("cause", ended.cause.as_str().to_owned())),
        optional("detail", ended.detail.clone()),
        optional("lease", ended.lease.map(|id| id.to_string())),
        optional("session", ended.session.map(|id| id.to_string())),
        optional(
            "evicted for",
            ended.eviction.as_ref().map(|eviction| lack(eviction.shortage).to_owned()),
        ),
        Some(("ended", relative_time::ago(ended.ended_at, now))),
        Some(("lived for", relative_time::span(lived_ms))),
    ]
    .into_iter()
    .flatten()
    .collect()
}
