//! `shoal session`: creates, uses and ends sessions, conversations that outlive their sandboxes.

mod arguments;
mod deadline;
mod history;
mod last_sandbox;
mod listing;
mod logs;
mod turns;

use std::process::ExitCode;

use client::{Client, EventsQuery, Inside, SessionId};
use uuid::Uuid;
use wire::Session;

pub(crate) use self::arguments::Arguments;
use self::arguments::{Act, CpArgs, CreateArgs, EndArgs, EventsArgs, SessionArgs};
pub(crate) use self::last_sandbox::LastSandbox;
use crate::failure::Failure;
use crate::output::Output;
use crate::server::{Server, cannot};
use crate::{cp, events, exec};

pub(crate) fn main(arguments: Arguments, output: &Output) -> Result<ExitCode, Failure> {
    match arguments.act {
        Act::Create(created) => create(&created, output),
        Act::Ls(wanted) => listing::list(&wanted, output),
        Act::Show(shown) => listing::show(&shown, output),
        Act::Send(said) => turns::send(&said, output),
        Act::Follow(followed) => turns::follow(&followed, output),
        Act::History(wanted) => history::main(&wanted, output),
        Act::Logs(wanted) => logs::main(&wanted, output),
        Act::Events(EventsArgs { session, page, server }) => {
            let query = EventsQuery { session: Some(session), ..EventsQuery::default() };
            events::of(query, &page, &server, output)
        }
        Act::Abort(abort) => turns::abort(&abort, output),
        Act::Pause(changed) => {
            change(&changed, "pause", output, async |client, id| client.session(id).pause().await)
        }
        Act::Resume(changed) => {
            change(&changed, "resume", output, async |client, id| client.session(id).resume().await)
        }
        Act::Stop(changed) => {
            change(&changed, "stop", output, async |client, id| client.session(id).stop().await)
        }
        Act::Deadline(wanted) => deadline::main(&wanted, output),
        Act::Fork(changed) => {
            change(&changed, "fork", output, async |client, id| client.session(id).fork().await)
        }
        Act::End(ended) => end(&ended, output),
        Act::Exec(ran) => {
            exec::in_session(ran.session, ran.program, ran.words, &ran.server, output)
        }
        Act::Cp(CpArgs { from, to, json, server }) => {
            let inside = |client: &Client, id: Uuid| {
                Inside::clone(&client.session(SessionId::from_uuid(id)))
            };
            cp::between(&from, &to, json, &server, inside, output)
        }
    }
}

fn create(created: &CreateArgs, output: &Output) -> Result<ExitCode, Failure> {
    let request = created.request(|key| std::env::var(key).ok())?;
    let session = created.server.with(async |client| {
        client.create_session(&request).await.map_err(cannot("make a session"))
    })?;
    print_session(&session, created.json, output)
}

/// Prints the id of a session, or all of it as JSON.
fn print_session(session: &Session, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    if json {
        output.say_value(session)?;
    } else {
        output.say(&session.id.to_string());
        output.remark(&format!("session is {}", session.status.as_str()));
    }
    Ok(ExitCode::SUCCESS)
}

fn change(
    changed: &SessionArgs,
    what: &str,
    output: &Output,
    act: impl AsyncFnOnce(&Client, SessionId) -> Result<Session, client::ClientError>,
) -> Result<ExitCode, Failure> {
    let session = changed.server.with(async |client| {
        act(&client, changed.session).await.map_err(cannot(&format!("{what} the session")))
    })?;
    print_session(&session, changed.json, output)
}

fn end(ended: &EndArgs, output: &Output) -> Result<ExitCode, Failure> {
    let failures = ended.server.with(async |client| end_all(&client, ended, output).await)?;
    for failure in &failures {
        failure.report(output);
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn end_all(
    client: &Client,
    ended: &EndArgs,
    output: &Output,
) -> Result<Vec<Failure>, Failure> {
    let mut failures = Vec::new();
    for id in &ended.sessions {
        match client.session(*id).end().await {
            Ok(()) => output.say(&id.to_string()),
            Err(error) => {
                let failure = Failure::of_client(format!("cannot end {id}"), &error);
                if error.problem().is_none() {
                    return Err(failure);
                }
                failures.push(failure);
            }
        }
    }
    Ok(failures)
}

/// Runs `act` with a client, on two threads, so that a slow reader of our output blocks only one.
fn talk<T>(
    server: &Server,
    act: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let client = server.client()?;
    let tokio = crate::native::tokio()?;
    let outcome = crate::native::block_on(&tokio, act(client));
    tokio.shutdown_background();
    outcome
}
