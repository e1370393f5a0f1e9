//! `shoal session ls` and `shoal session show`.

use std::process::ExitCode;

use client::{Client, SessionFilter};
use model::SessionStatus;
use serde_json::json;
use wire::{Session, Time};

use super::arguments::{ListArgs, SessionArgs};
use super::deadline;
use super::last_sandbox::LastSandbox;
use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::plain_text::plain;
use crate::relative_time;
use crate::server::cannot;
use crate::table::Table;

/// Sessions per request.
const PAGE: u32 = 500;

pub(super) fn list(wanted: &ListArgs, output: &Output) -> Result<ExitCode, Failure> {
    let filter = SessionFilter {
        template: wanted.template.clone(),
        status: wanted.status,
        metadata: wanted.metadata.clone(),
        limit: Some(PAGE),
        after: None,
    };
    let sessions = wanted.server.with(async |client| all(&client, filter).await)?;
    if wanted.json {
        output.say_json(&json!({ "sessions": sessions }));
    } else if wanted.quiet {
        for session in &sessions {
            output.say(&session.id.to_string());
        }
    } else {
        table(&sessions, relative_time::now()).say(output, "there are no sessions");
    }
    Ok(ExitCode::SUCCESS)
}

/// Every page of them.
async fn all(client: &Client, mut filter: SessionFilter) -> Result<Vec<Session>, Failure> {
    let mut sessions = Vec::new();
    loop {
        let page = client.sessions(&filter).await.map_err(cannot("list sessions"))?;
        sessions.extend(page.sessions);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(sessions),
        }
    }
}

fn table(sessions: &[Session], now: Time) -> Table {
    let mut table = Table::new(&[
        "SESSION", "TEMPLATE", "STATUS", "SANDBOX", "TURN", "CREATED", "USED", "METADATA",
    ]);
    for session in sessions {
        let turn = match (session.turn, session.queued_turns) {
            (None, _) => "-".to_owned(),
            (Some(_), 0) => "running".to_owned(),
            (Some(_), queued) => format!("running, {queued} queued"),
        };
        let words: Vec<_> = session.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
        table.row([
            session.id.to_string(),
            session.template.to_string(),
            session.status.as_str().to_owned(),
            session.sandbox_id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            turn,
            relative_time::ago(session.created_at, now),
            relative_time::ago(session.last_active_at, now),
            words.join(","),
        ]);
    }
    table
}

pub(super) fn show(shown: &SessionArgs, output: &Output) -> Result<ExitCode, Failure> {
    let (session, last) = shown.server.with(async |client| {
        let session = client.session(shown.session).get().await;
        let session = session.map_err(cannot("show the session"))?;
        let last = match session.sandbox_id {
            None if !shown.json => LastSandbox::find(&client, shown.session).await,
            None | Some(_) => Ok(None),
        };
        // The rest can be shown without it.
        Ok((session, last.unwrap_or(None)))
    })?;
    if shown.json {
        output.say_value(&session)?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = relative_time::now();
    let next = match session.status {
        SessionStatus::Starting => "it is being started",
        SessionStatus::Active | SessionStatus::Paused => "the next message gets one",
        SessionStatus::Stopped => "it gets one when it is resumed",
        SessionStatus::Ended => "the session has ended",
    };
    let sandbox = match (session.sandbox_id, last.map(|last| last.story(now))) {
        (Some(id), _) => format!("{id}, generation {}", session.generation.0),
        (None, Some(story)) => format!("none: {story}; {next}"),
        (None, None) => format!("none; {next}"),
    };
    let turn = session.turn.map_or_else(
        || "none in progress".to_owned(),
        |turn| format!("{turn} in progress, {} queued", session.queued_turns),
    );
    let files = match (session.status, session.state_lost, session.files_durable) {
        (SessionStatus::Ended, _, _) => "deleted with the session",
        (_, true, _) => "some were lost; the next answer says why",
        (_, false, true) => "stored",
        (_, false, false) => "in memory, not saved yet",
    };
    for (name, value) in [
        ("session", session.id.to_string()),
        ("template", session.template.to_string()),
        ("status", session.status.as_str().to_owned()),
        ("sandbox", sandbox),
        ("turn", turn),
        ("files", files.to_owned()),
        ("forked from", session.parent_id.map_or_else(|| "-".to_owned(), |id| id.to_string())),
        ("created", relative_time::ago(session.created_at, now)),
        ("deadline", deadline::described(session.deadline, now)),
        ("used", relative_time::ago(session.last_active_at, now)),
    ] {
        output.say(&format!("{}  {value}", output.paint(Paint::Strong, &format!("{name:<11}"))));
    }
    for (name, value) in &session.metadata {
        let word = plain(&format!("{name}={value}"));
        output.say(&format!("{}  {word}", output.paint(Paint::Strong, "metadata   ")));
    }
    Ok(ExitCode::SUCCESS)
}
