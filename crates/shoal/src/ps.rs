//! `shoal ps`: lists sandboxes.

use std::process::ExitCode;

use client::{Client, SandboxFilter};
use model::{SandboxState, TemplateName};
use serde_json::json;
use wire::{Sandbox, Time};

use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::sandbox_request::pair;
use crate::server::{Server, cannot};
use crate::table::Table;

/// Sandboxes per request.
const PAGE: u32 = 500;

/// Arguments of `shoal ps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal ps                        every sandbox that your key may see\n  \
    shoal ps --state running\n  \
    shoal ps -l user=ada -q         only the ids, for other commands\n  \
    shoal ps --json | jq '.sandboxes[].id'\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// Only sandboxes of this template
    #[arg(long, short = 'T', value_name = "NAME", value_parser = TemplateName::new)]
    template: Option<TemplateName>,
    /// Only sandboxes in this state
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<SandboxState>,
    /// Only sandboxes with this label
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Print ids only
    #[arg(long, short = 'q', conflicts_with = "json")]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

fn state(text: &str) -> Result<SandboxState, String> {
    let known = SandboxState::ALL.into_iter().find(|state| state.as_str() == text);
    known.ok_or_else(|| "the state is one of cold, warming, warm, waiting, running".to_owned())
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let filter = SandboxFilter {
        template: arguments.template.clone(),
        state: arguments.state,
        labels: arguments.labels.clone(),
        limit: Some(PAGE),
        ..SandboxFilter::default()
    };
    let sandboxes = arguments.server.with(async |client| all(&client, filter).await)?;
    if arguments.json {
        output.say_json(&json!({ "sandboxes": sandboxes }));
    } else if arguments.quiet {
        for sandbox in &sandboxes {
            output.say(&sandbox.id.to_string());
        }
    } else {
        table(&sandboxes, relative_time::now()).say(output, "there are no sandboxes");
    }
    Ok(ExitCode::SUCCESS)
}

/// Every page of them.
pub(crate) async fn all(
    client: &Client,
    mut filter: SandboxFilter,
) -> Result<Vec<Sandbox>, Failure> {
    let mut sandboxes = Vec::new();
    loop {
        let page = client.sandboxes(&filter).await.map_err(cannot("list sandboxes"))?;
        sandboxes.extend(page.sandboxes);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(sandboxes),
        }
    }
}

fn table(sandboxes: &[Sandbox], now: Time) -> Table {
    let mut table = Table::new(&[
        "SANDBOX",
        "TEMPLATE",
        "RUNTIME",
        "CONTAINER",
        "STATE",
        "FREEZES",
        "CREATED",
        "USED",
        "USES",
        "ENDS",
        "OWNER",
        "LABELS",
    ]);
    for sandbox in sandboxes {
        let state = match sandbox.ending {
            Some(_) => "ending".to_owned(),
            None => sandbox.state.as_str().to_owned(),
        };
        let labels: Vec<_> = sandbox.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        table.row([
            sandbox.id.to_string(),
            sandbox.template.to_string(),
            sandbox.runtime.as_str().to_owned(),
            sandbox.container_id.as_deref().map_or("-", short).to_owned(),
            state,
            freezes(sandbox, now),
            relative_time::ago(sandbox.created_at, now),
            relative_time::ago(sandbox.last_used_at, now),
            sandbox.use_count.to_string(),
            sandbox.expires_at.map_or_else(|| "-".to_owned(), |end| relative_time::until(end, now)),
            owner(sandbox),
            labels.join(","),
        ]);
    }
    table
}

/// The part of the id of a container that identifies it.
fn short(id: &str) -> &str {
    // Ids of an engine differ at their beginning; our names differ at their end.
    if id.bytes().all(|byte| byte.is_ascii_hexdigit()) { id.get(..12).unwrap_or(id) } else { id }
}

/// Whether it is frozen, or when it will be if nothing uses it.
fn freezes(sandbox: &Sandbox, now: Time) -> String {
    match (sandbox.frozen, sandbox.awake, sandbox.freezes_at) {
        (true, _, _) => "frozen".to_owned(),
        (false, true, _) => "kept awake".to_owned(),
        (false, false, Some(at)) => relative_time::until(at, now),
        (false, false, None) => "-".to_owned(),
    }
}

/// The owner of the sandbox: a session, a lease, or none.
fn owner(sandbox: &Sandbox) -> String {
    match (sandbox.session, sandbox.lease) {
        (Some(session), _) => format!("session {session}"),
        (None, Some(_)) => "lease".to_owned(),
        (None, None) => "-".to_owned(),
    }
}
