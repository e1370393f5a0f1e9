//! `shoal events`: lists stored events, or follows new ones.

use std::process::ExitCode;

use client::{Client, EventUpdate, EventsQuery};
use model::{SandboxId, SessionId};
use serde_json::Value;
use wire::Event;

use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::plain_text::plain;
use crate::server::{Server, cannot};

/// Events per request.
const PAGE: u32 = 500;

/// Arguments of `shoal events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    shoal events                      all stored events\n  \
    shoal events --follow             new events as they happen, also across restarts of the server\n  \
    shoal events --follow --after 0   stored events, then new ones\n  \
    shoal events --sandbox SANDBOX\n  \
    shoal events --session SESSION\n  \
    shoal events --json | jq -r .type one object a line\n\n\
    Exit codes: 0; 1 if the server refused or is gone; 3 if no server answers.")]
pub(crate) struct Arguments {
    /// Only events of this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Only events of this session
    #[arg(long, value_name = "SESSION", conflicts_with = "sandbox")]
    session: Option<SessionId>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    server: Server,
}

/// Flags that select events and their format.
#[derive(Debug, clap::Args)]
pub(crate) struct Page {
    /// Follow new events as they happen
    #[arg(long, short = 'f')]
    follow: bool,
    /// Only events after this id
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
    /// Print at most this many events
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    limit: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: &Arguments, output: &Output) -> Result<ExitCode, Failure> {
    let Arguments { sandbox, session, page, server } = arguments;
    let query = EventsQuery { sandbox: *sandbox, session: *session, ..EventsQuery::default() };
    of(query, page, server, output)
}

/// Prints the events of a query.
pub(crate) fn of(
    query: EventsQuery,
    page: &Page,
    server: &Server,
    output: &Output,
) -> Result<ExitCode, Failure> {
    server.with(async |client| {
        if page.follow {
            follow(&client, query, page, output).await
        } else {
            page_through(&client, query, page, output).await
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn page_through(
    client: &Client,
    query: EventsQuery,
    wanted: &Page,
    output: &Output,
) -> Result<(), Failure> {
    let mut left = wanted.limit.unwrap_or(u64::MAX);
    let mut after = wanted.after.or(Some(0));
    while left > 0 {
        let limit = Some(u64::from(PAGE).min(left) as u32);
        let query = EventsQuery { after, limit, ..query };
        let page = client.events(query).await.map_err(cannot("list events"))?;
        left = left.saturating_sub(page.events.len() as u64);
        for event in &page.events {
            print_event(event, wanted.json, output)?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    Ok(())
}

async fn follow(
    client: &Client,
    query: EventsQuery,
    wanted: &Page,
    output: &Output,
) -> Result<(), Failure> {
    // Without this, a missing server would look like a server without events.
    client.health().await.map_err(cannot("follow events"))?;
    let mut events = client.watch_events(EventsQuery { after: wanted.after, ..query });
    loop {
        match events.next().await.map_err(cannot("follow events"))? {
            EventUpdate::Event(event) => print_event(&event, wanted.json, output)?,
            EventUpdate::Gap { oldest } => {
                output.note(&format!("events before {oldest} are no longer stored"));
            }
        }
    }
}

fn print_event(event: &Event, json: bool, output: &Output) -> Result<(), Failure> {
    let value = serde_json::to_value(event)
        .map_err(|error| Failure::new("cannot write an event", error))?;
    if json {
        output.say(&value.to_string());
        return Ok(());
    }
    let name = output.paint(Paint::Strong, event.body.name());
    output.say(&format!("{:>8}  {}  {name}  {}", event.id, event.at, details(&value)));
    Ok(())
}

/// The other fields of an event, in the order of their names.
fn details(event: &Value) -> String {
    let said = ["id", "at", "type", "key"];
    let fields = event.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, value)| !said.contains(&name.as_str()) && !value.is_null());
    let words = fields.map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) | Value::Null => {
            format!("{name}={value}")
        }
    });
    plain(&words.collect::<Vec<_>>().join(" "))
}
