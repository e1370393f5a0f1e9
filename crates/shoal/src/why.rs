//! `shoal why`: explains the state of a sandbox, or how it ended. For a session it explains the
//! sandbox that the session has, or had last.

use std::process::ExitCode;

use client::Client;
use model::{ErrorCode, SandboxId, SessionId};
use serde_json::json;
use wire::{Candidate, NetworkEntry, NetworkVerdict, Session, Time, Why, WhyAlive, WhyEnded};

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::relative_time;
use crate::server::{Server, cannot};
use crate::session::LastSandbox;

/// Arguments of `shoal why`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal why SANDBOX                  one sentence, and the facts behind it\n  \
    shoal why SESSION                  the same for the sandbox that a session has, or had last\n  \
    shoal why SANDBOX --json | jq '.cause // .ending // .slept'\n                                     \
    why it ended, is being ended, or is cold\n\n\
    The server still knows ended sandboxes, and how they ended. `reason` is one of a few words for\n\
    programs, such as `crash` or `policy`; `cause` says exactly what ended it, such as\n\
    `probe_failed`.\n\n\
    Exit codes: 0; 1 if the server knows no such sandbox or session; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// The sandbox, or a session
    #[arg(value_name = "SANDBOX|SESSION")]
    id: SandboxId,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// What there is to explain.
enum Explained {
    Sandbox(Why),
    /// A session, and its sandbox if the server still knows one.
    Session(Box<Session>, Option<LastSandbox>, Option<Why>),
    /// A session that has ended, what the server says of that, and its last sandbox.
    EndedSession(SessionId, String, Option<LastSandbox>, Option<Why>),
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let explained = arguments.server.with(async |client| explain(&client, arguments.id).await)?;
    match (&explained, arguments.json) {
        (
            Explained::Sandbox(why)
            | Explained::Session(_, _, Some(why))
            | Explained::EndedSession(_, _, _, Some(why)),
            true,
        ) => output.say_value(why)?,
        (Explained::Session(session, _, None), true) => output.say_value(session)?,
        (Explained::EndedSession(id, ended, _, None), true) => {
            output.say_json(&json!({ "id": id, "status": "ended", "detail": ended }));
        }
        (Explained::Sandbox(why), false) => print(why, output),
        (Explained::Session(session, last, why), false) => {
            output.say(&of_session(session, *last, relative_time::now()));
            if let Some(why) = why {
                print(why, output);
            }
        }
        (Explained::EndedSession(_, ended, last, why), false) => {
            output.say(&of_ended_session(ended, *last, relative_time::now()));
            if let Some(why) = why {
                print(why, output);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(client: &Client, id: SandboxId) -> Result<Explained, Failure> {
    let unknown = match client.sandbox(id).why().await {
        Ok(why) => return Ok(Explained::Sandbox(why)),
        Err(error) => error,
    };
    let failed = cannot("explain the sandbox");
    if unknown.code() != Some(ErrorCode::SandboxUnknown) {
        return Err(failed(unknown));
    }
    let session_id = SessionId::from_u128(id.as_u128());
    let session = match client.session(session_id).get().await {
        Ok(session) => session,
        Err(error) if error.code() == Some(ErrorCode::SessionUnknown) => {
            return Err(failed(unknown));
        }
        Err(error) if error.code() == Some(ErrorCode::SessionEnded) => {
            let last =
                LastSandbox::find(client, session_id).await.map_err(cannot("read events"))?;
            let why = explain_last(client, last).await?;
            let ended = error
                .problem()
                .map_or("the session has ended", |problem| &problem.detail)
                .to_owned();
            return Ok(Explained::EndedSession(session_id, ended, last, why));
        }
        Err(error) => return Err(cannot("explain the session")(error)),
    };
    let last = match session.sandbox_id {
        Some(id) => Some(LastSandbox { id, end: None }),
        None => LastSandbox::find(client, session_id).await.map_err(cannot("read events"))?,
    };
    let why = explain_last(client, last).await?;
    Ok(Explained::Session(Box::new(session), last, why))
}

/// None if there was no sandbox, or if the server has forgotten it.
async fn explain_last(client: &Client, last: Option<LastSandbox>) -> Result<Option<Why>, Failure> {
    let Some(last) = last else { return Ok(None) };
    match client.sandbox(last.id).why().await {
        Ok(why) => Ok(Some(why)),
        Err(error) if error.code() == Some(ErrorCode::SandboxUnknown) => Ok(None),
        Err(error) => Err(cannot("explain the sandbox")(error)),
    }
}

/// The line about a session that has ended.
fn of_ended_session(ended: &str, last: Option<LastSandbox>, now: Time) -> String {
    match last {
        Some(last) => format!("{ended}; its last sandbox: {}", last.story(now)),
        None => format!("{ended}; the server knows no sandbox of it"),
    }
}

/// The line about a session, before what its sandbox has to say.
fn of_session(session: &Session, last: Option<LastSandbox>, now: Time) -> String {
    let status = session.status.as_str();
    match (session.sandbox_id, last) {
        (Some(id), _) => format!("the session is {status}; its sandbox is {id}"),
        (None, None) => format!("the session is {status}; the server knows no sandbox of it"),
        (None, Some(last)) => {
            format!("the session is {status} without a sandbox; its last: {}", last.story(now))
        }
    }
}

fn print(why: &Why, output: &Output) {
    output.say(&output.paint(Paint::Strong, why.summary()));
    let facts = match why {
        Why::Alive(alive) => of_life(alive, relative_time::now()),
        Why::Ended(ended) => of_end(ended, relative_time::now()),
    };
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, fact) in facts {
        output.say(&format!("  {name:width$}  {fact}"));
    }
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
    .chain(alive.last_end.iter().flat_map(|end| of_last_end(end, now)))
    .chain(alive.network_detached.then(|| {
        let how = "its policy could not be attached, it reaches nothing: `shoal network reset` tries again";
        ("network", how.to_owned())
    }))
    .chain(of_refusals(&alive.network_refused, now))
    .collect()
}

/// How the last instance of a cold sandbox ended.
fn of_last_end(ended: &WhyEnded, now: Time) -> Vec<Fact> {
    let mut facts = vec![("cold since", relative_time::ago(ended.ended_at, now))];
    facts.extend(ended.detail.clone().map(|detail| ("detail", detail)));
    facts.extend(of_eviction(ended, now));
    facts
}

/// What was short, and the sandboxes among which the victim was chosen.
fn of_eviction(ended: &WhyEnded, now: Time) -> Vec<Fact> {
    let Some(eviction) = &ended.eviction else { return Vec::new() };
    let mut facts = vec![("evicted because", eviction.shortage.in_words().to_owned())];
    facts.extend(eviction.candidates.iter().map(|candidate| {
        let Candidate { tier, sandbox, last_used_at, of } = candidate;
        let tier = tier.as_str();
        let used = relative_time::ago(*last_used_at, now);
        ("candidate", format!("{sandbox}, last used {used}, first of {of} {tier}"))
    }));
    facts
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
        Some(("ended", relative_time::ago(ended.ended_at, now))),
        Some(("lived for", relative_time::span(lived_ms))),
    ]
    .into_iter()
    .flatten()
    .chain(of_eviction(ended, now))
    .chain(of_refusals(&ended.network_refused, now))
    .collect()
}

/// What it tried to reach and did not, and what else its user should know of.
fn of_refusals(refused: &[NetworkEntry], now: Time) -> Vec<Fact> {
    let fact = |entry: &NetworkEntry| {
        let reason = entry.reason.as_deref().unwrap_or("no rule allows it");
        let name = match entry.verdict {
            NetworkVerdict::Refused | NetworkVerdict::Allowed => "refused",
            NetworkVerdict::Failed => "failed",
            NetworkVerdict::Noted => "noted",
        };
        (name, format!("{}: {reason} ({})", entry.target(), relative_time::ago(entry.at, now)))
    };
    refused.iter().map(fact).collect()
}
