//! `shoal network`: shows and changes what a sandbox or session may reach, and what it tried.

use std::process::ExitCode;
use std::time::Duration;

use client::{Client, Inside, NetworkLogFilter};
use model::{ErrorCode, NetworkPolicy, NetworkRule, SandboxId, SessionId};
use uuid::Uuid;
use wire::{Network, NetworkEntry, NetworkEntryKind, NetworkVerdict};

use crate::failure::Failure;
use crate::network_request::rule;
use crate::output::Output;
use crate::server::{Server, cannot};

/// How often `--follow` asks for new entries.
const PAUSE: Duration = Duration::from_millis(500);

/// The entries of one request.
const PAGE: u32 = 1000;

/// Arguments of `shoal network`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal network show SANDBOX                          what it may reach, and what it tried\n  \
    shoal network log --refused                         what was refused to all your sandboxes\n  \
    shoal network log SESSION --follow                  what a session tries, as it happens\n  \
    shoal network allow SANDBOX index.example.org files.example.org\n  \
    shoal network block SANDBOX                         nothing from now on\n  \
    shoal network reset SANDBOX                         what its template allows\n\n\
    A policy is set in the template (`network = { allow = [\"api.example.com\"] }`); a sandbox can only\n\
    be allowed less. The log is in the memory of the server.\n\n\
    Exit codes: 0; 1 if the server refused; 3 if no server answers.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Show what a sandbox or session may reach, and what it tried
    Show(OneArgs),
    /// Show what sandboxes reached, and what was refused
    Log(LogArgs),
    /// Allow exactly these rules from now on, within the policy of the template
    Allow(AllowArgs),
    /// Allow nothing from now on
    Block(OneArgs),
    /// Go back to the policy of the template
    Reset(OneArgs),
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The sandbox or session
    #[arg(value_name = "SANDBOX|SESSION")]
    id: Uuid,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
struct AllowArgs {
    /// The sandbox or session
    #[arg(value_name = "SANDBOX|SESSION")]
    id: Uuid,
    /// HOST, *.DOMAIN or CIDR, with :PORT
    #[arg(value_name = "RULE", required = true, value_parser = rule)]
    rules: Vec<NetworkRule>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Args)]
struct LogArgs {
    /// Only of this sandbox or session
    #[arg(value_name = "SANDBOX|SESSION")]
    id: Option<Uuid>,
    /// Only what was refused or failed
    #[arg(long)]
    refused: bool,
    /// Go on with what happens, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    match arguments.act {
        Act::Show(one) => show(&one, output),
        Act::Log(log) => read_log(&log, output),
        Act::Allow(allowed) => {
            let AllowArgs { id, rules, json, server } = allowed;
            change(&OneArgs { id, json, server }, Some(NetworkPolicy::Allow(rules)), output)
        }
        Act::Block(one) => change(&one, Some(NetworkPolicy::None), output),
        Act::Reset(one) => change(&one, None, output),
    }
}

fn show(one: &OneArgs, output: &Output) -> Result<ExitCode, Failure> {
    let network = one.server.with(async |client| {
        let inside = find(&client, one.id).await?;
        inside.network().await.map_err(cannot("read the network policy"))
    })?;
    print(&network, one.json, output)
}

fn change(
    one: &OneArgs,
    network: Option<NetworkPolicy>,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let network = one.server.with(async |client| {
        let inside = find(&client, one.id).await?;
        inside.change_network(network).await.map_err(cannot("change the network policy"))
    })?;
    if one.json {
        output.say_value(&network)?;
    } else {
        print_policy(&network, output);
    }
    Ok(ExitCode::SUCCESS)
}

/// The sandbox or session of this id. Both look alike, so the server is asked; its refusal says what
/// became of a sandbox that has ended.
async fn find(client: &Client, id: Uuid) -> Result<Inside, Failure> {
    let sandbox = client.sandbox(SandboxId::from_uuid(id));
    match sandbox.get().await {
        Err(error) if error.code() == Some(ErrorCode::SandboxUnknown) => {}
        Err(error) if error.problem().is_none() => {
            return Err(cannot("find the sandbox or session")(error));
        }
        Ok(_) | Err(_) => return Ok(Inside::clone(&sandbox)),
    }
    let session = client.session(SessionId::from_uuid(id));
    match session.get().await {
        Err(error) if error.code() == Some(ErrorCode::SessionUnknown) => {
            let remedy = "no sandbox has this id either: `shoal ps` lists sandboxes, and \
                          `shoal session ls` sessions";
            Err(cannot("find the sandbox or session")(error).remedy(remedy))
        }
        Ok(_) | Err(_) => Ok(Inside::clone(&session)),
    }
}

fn print(network: &Network, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    if json {
        output.say_value(network)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_policy(network, output);
    for address in &network.refused_addresses {
        output.say(&format!("refused:   {address} (dialled by number, no rule allows it)"));
    }
    for entry in &network.log {
        output.say(&line(entry));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_policy(network: &Network, output: &Output) {
    output.say(&format!("may reach: {}", words(&network.policy)));
    if !network.attached {
        output
            .say("attached:  no, it reaches nothing: `shoal network reset` or `allow` tries again");
    }
    if network.policy != network.template_policy {
        output.say(&format!("template:  {}", words(&network.template_policy)));
    }
}

fn words(policy: &NetworkPolicy) -> String {
    match policy {
        NetworkPolicy::None => "nothing".to_owned(),
        NetworkPolicy::Open => "every public address".to_owned(),
        NetworkPolicy::Allow(rules) if rules.is_empty() => "nothing".to_owned(),
        NetworkPolicy::Allow(rules) => {
            rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
    }
}

fn line(entry: &NetworkEntry) -> String {
    let what = match (entry.verdict, entry.kind) {
        (NetworkVerdict::Refused, _) => "refused",
        (NetworkVerdict::Failed, _) => "failed",
        (NetworkVerdict::Noted, _) => "noted",
        (NetworkVerdict::Allowed, NetworkEntryKind::Name) => "name",
        (NetworkVerdict::Allowed, NetworkEntryKind::Connection) => "connected",
        (NetworkVerdict::Allowed, NetworkEntryKind::Closed) => "closed",
        (NetworkVerdict::Allowed, NetworkEntryKind::Secret) => "secret",
    };
    let mut parts = vec![format!("{} {what} {}", entry.at, entry.target())];
    if let (Some(address), true) = (&entry.address, entry.name.is_some()) {
        parts.push(format!("({address})"));
    }
    if let (Some(sent), Some(received)) = (entry.sent_bytes, entry.received_bytes) {
        parts.push(format!("sent {sent} received {received}"));
    }
    match (&entry.reason, &entry.rule) {
        (Some(reason), _) => parts.push(format!("({reason})")),
        (None, Some(rule)) => parts.push(format!("by {rule}")),
        (None, None) => {}
    }
    parts.join(" ")
}

fn read_log(log: &LogArgs, output: &Output) -> Result<ExitCode, Failure> {
    log.server.with(async |client| {
        let mut filter = NetworkLogFilter {
            // Entries outlive their sandbox: it need not exist.
            of: log.id,
            refused: log.refused,
            after: Some(0),
            limit: Some(PAGE),
            ..NetworkLogFilter::default()
        };
        loop {
            let page = client.network_log(filter).await.map_err(cannot("read the network log"))?;
            for entry in &page.entries {
                output.say(&if log.json { json_line(entry)? } else { line(entry) });
            }
            filter.after = page.entries.last().map(|entry| entry.seq).or(filter.after);
            if page.entries.len() >= PAGE as usize {
                continue;
            }
            if !log.follow {
                if page.dropped > 0 {
                    output.remark(&format!("{} older entries were dropped", page.dropped));
                }
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

fn json_line(entry: &NetworkEntry) -> Result<String, Failure> {
    serde_json::to_string(entry).map_err(|error| Failure::new("cannot write the result", error))
}
