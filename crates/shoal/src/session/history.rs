//! `shoal session history`: lists the turns of a session.

use std::process::ExitCode;

use model::lifecycle::TurnOutcome;
use serde_json::Value;
use wire::{Turn, TurnList};

use super::arguments::HistoryArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::relative_time;
use crate::server::cannot;
use crate::table::Table;

/// Turns per request.
const PAGE: u32 = 100;
/// Characters of a message that are shown.
const SHOWN_CHARS: usize = 48;

pub(super) fn main(wanted: &HistoryArgs, output: &Output) -> Result<ExitCode, Failure> {
    let mut table = Table::new(&["NUMBER", "TURN", "MESSAGE", "CREATED", "OUTCOME", "TOOK"]);
    let now = relative_time::now();
    wanted.server.with(async |client| {
        let session = client.session(wanted.session);
        let mut after = wanted.after;
        loop {
            let page = session.turns(after, Some(PAGE), wanted.events).await;
            let TurnList { turns, next } = page.map_err(cannot("read the history"))?;
            for turn in &turns {
                if wanted.json {
                    let line = serde_json::to_string(turn)
                        .map_err(|error| Failure::new("cannot write a turn", error))?;
                    output.say(&line);
                } else {
                    table.row(row(turn, now));
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    })?;
    if !wanted.json {
        table.say(output, "the session has no turns yet");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(turn: &Turn, now: wire::Time) -> [String; 6] {
    let outcome = turn.outcome.map(TurnOutcome::as_str);
    let waits = if turn.started_at.is_some() { "running" } else { "waiting" };
    let took = turn.started_at.zip(turn.ended_at);
    [
        turn.number.to_string(),
        turn.id.to_string(),
        shortened(&turn.input),
        relative_time::ago(turn.created_at, now),
        outcome.unwrap_or(waits).to_owned(),
        took.map_or_else(|| "-".to_owned(), |(from, to)| format!("{} ms", to.ms_after(from))),
    ]
}

fn shortened(said: &Value) -> String {
    let text = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
    let mut short: String = text.chars().take(SHOWN_CHARS).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_cuts_long_messages_between_characters() {
        let long = "ü".repeat(SHOWN_CHARS + 1);
        let cut = format!("{}…", "ü".repeat(SHOWN_CHARS));
        for (said, expected) in [
            (Value::from("ls"), "ls".to_owned()),
            (serde_json::json!({"command": "ls"}), "{\"command\":\"ls\"}".to_owned()),
            (Value::from(long), cut),
        ] {
            assert_eq!(shortened(&said), expected);
        }
    }
}
