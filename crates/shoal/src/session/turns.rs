//! Turns at the terminal: sends a message, prints the output as it comes, and turns the outcome
//! into an exit code. An interrupt aborts the turn that was started here, once.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use client::{Conversation, TurnEvent, TurnId, TurnRequest, TurnStream};
use model::lifecycle::TurnOutcome;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::timeout;
use wire::{TurnEnded, TurnError, TurnOutput, WhenBusy};

use super::arguments::{AbortArgs, FollowArgs, SendArgs};
use super::talk;
use crate::failure::Failure;
use crate::output::Output;
use crate::run::signals::Signals;
use crate::run::streams::write_all;
use crate::server::cannot;

/// Added to the number of the signal that ended us, as shells do.
const SIGNAL_BASE: i32 = 128;
/// The exit code of a program that writes to a closed pipe.
const BROKEN_PIPE: i32 = SIGNAL_BASE + 13;
/// How long to wait for an abort.
const ABORT_PATIENCE: Duration = Duration::from_secs(30);
/// The longest message from standard input: what a server accepts.
const MESSAGE_BYTES_MAX: u64 = 8 << 20;

pub(super) fn send(said: &SendArgs, output: &Output) -> Result<ExitCode, Failure> {
    let request = request(said)?;
    let code = talk(&said.server, async |client| {
        let mut signals = Signals::listen()?;
        let session = client.session(said.session);
        let begun = tokio::select! {
            begun = session.send(request) => begun.map_err(cannot("send the message"))?,
            number = signals.next_end() => {
                abort_turn(&session, output).await;
                return Ok(SIGNAL_BASE + number);
            }
        };
        let mut printer = TurnPrinter::new(begun, said.json, output);
        tokio::select! {
            code = printer.print_all() => code,
            number = signals.next_end() => {
                abort_turn(&session, output).await;
                Ok(SIGNAL_BASE + number)
            }
        }
    })?;
    Ok(exit(code))
}

fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

async fn abort_turn(session: &Conversation, output: &Output) {
    match timeout(ABORT_PATIENCE, session.abort(true)).await {
        Ok(Ok(_)) => output.note("the turn was aborted"),
        Ok(Err(error)) => output.note(&format!("the turn could not be aborted: {error}")),
        Err(_) => output.note("the turn is still being aborted"),
    }
}

fn request(said: &SendArgs) -> Result<TurnRequest, Failure> {
    let text = if said.message == "-" { read_message()? } else { said.message.clone() };
    let input = if said.object {
        let value: Value = serde_json::from_str(&text).map_err(|error| {
            Failure::new("cannot send the message", error).remedy("give a JSON object").usage()
        })?;
        if !value.is_object() {
            return Err(Failure::new(
                "cannot send the message",
                "the message is not a JSON object",
            )
            .usage());
        }
        value
    } else {
        Value::String(text)
    };
    let when_busy = said.queue.then_some(WhenBusy::Queue);
    Ok(TurnRequest { input, when_busy, id: None, wait_ms: None })
}

fn read_message() -> Result<String, Failure> {
    let mut text = String::new();
    let read = io::stdin().take(MESSAGE_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(|error| Failure::new("cannot read the message", error))?;
    if read as u64 > MESSAGE_BYTES_MAX {
        let cause = format!("the message has more than {MESSAGE_BYTES_MAX} bytes");
        return Err(Failure::new("cannot read the message", cause).remedy("use `shoal session cp`"));
    }
    Ok(text)
}

pub(super) fn follow(followed: &FollowArgs, output: &Output) -> Result<ExitCode, Failure> {
    let code = talk(&followed.server, async |client| {
        let session = client.session(followed.session);
        let turn = match followed.turn {
            Some(turn) => turn,
            None => latest(&session).await?,
        };
        let mut printer =
            TurnPrinter::new(session.follow(turn, followed.after), followed.json, output);
        printer.print_all().await
    })?;
    Ok(exit(code))
}

/// The turn in progress, or the last one that is stored.
async fn latest(session: &Conversation) -> Result<TurnId, Failure> {
    let failed = cannot("find a turn");
    if let Some(turn) = session.get().await.map_err(&failed)?.turn {
        return Ok(turn);
    }
    let (mut after, mut last) = (None, None);
    loop {
        let page = session.turns(after, None, false).await.map_err(&failed)?;
        last = page.turns.last().map(|turn| turn.id).or(last);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    last.ok_or_else(|| Failure::new("nothing to follow", "the session has no turns yet"))
}

pub(super) fn abort(wanted: &AbortArgs, output: &Output) -> Result<ExitCode, Failure> {
    let aborted = wanted.server.with(async |client| {
        let session = client.session(wanted.session);
        session.abort(wanted.keep_sandbox).await.map_err(cannot("abort the turn"))
    })?;
    if wanted.json {
        output.say_value(&aborted)?;
    } else {
        match aborted.turn_id {
            Some(turn) => output.say(&turn.to_string()),
            None => output.note("no turn was in progress"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a turn as it happens.
struct TurnPrinter<'o> {
    stream: TurnStream,
    json: bool,
    output: &'o Output,
}

impl<'o> TurnPrinter<'o> {
    fn new(stream: TurnStream, json: bool, output: &'o Output) -> Self {
        Self { stream, json, output }
    }

    /// Prints all events. Gives the exit code of the shell command, if it was one.
    async fn print_all(&mut self) -> Result<i32, Failure> {
        while let Some(event) = self.stream.next().await.map_err(cannot("follow the turn"))? {
            if self.json {
                let line = serde_json::to_string(&event)
                    .map_err(|error| Failure::new("cannot write an event", error))?;
                self.output.say(&line);
            }
            match self.print_event(event) {
                Ok(None) => {}
                Ok(Some(code)) => return Ok(code),
                // Our output is closed. The turn goes on.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(BROKEN_PIPE),
                Err(error) => return Err(Failure::new("cannot write output", error)),
            }
        }
        Ok(0)
    }

    /// Prints one event. Gives the exit code if it is the last.
    fn print_event(&self, event: TurnEvent) -> io::Result<Option<i32>> {
        match event.event.as_str() {
            TurnEnded::NAME => return Ok(Some(self.ended(event.data))),
            _ if self.json => {}
            "output" => {
                if let Ok(written) = serde_json::from_value::<TurnOutput>(event.data) {
                    let bytes = written.text.as_bytes();
                    block_in_place(|| match written.stream.as_str() {
                        "stderr" => write_all(io::stderr().as_fd(), bytes),
                        _ => write_all(io::stdout().as_fd(), bytes),
                    })?;
                }
            }
            "message" => self.output.say(&event.data.to_string()),
            "error" => {
                let error: TurnError = serde_json::from_value(event.data).unwrap_or_default();
                self.output.note(&format!("{}: {}", error.code, error.message));
            }
            "sandbox_active" => self.sandbox(&event.data),
            // Repeated by the end, only for scripts, or unknown to this version.
            _ => {}
        }
        Ok(None)
    }

    fn sandbox(&self, data: &Value) {
        if let Some(text) = replacement(data) {
            self.output.note(&text);
        }
    }

    fn ended(&self, data: Value) -> i32 {
        let Ok(end) = serde_json::from_value::<TurnEnded>(data) else {
            self.output.note("the turn ended with an answer that this version does not understand");
            return 1;
        };
        if end.outcome != TurnOutcome::Completed {
            let error = end.error.unwrap_or_default();
            let outcome = end.outcome.as_str().replace('_', " ");
            self.output.note(&format!("the turn {outcome}: {}", error.message));
            return 1;
        }
        let result = end.result.unwrap_or_default();
        if let Some(code) = result["exit_code"].as_i64() {
            return i32::try_from(code).unwrap_or(1);
        }
        if !self.json && !result.is_null() {
            let text = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
            self.output.say(&text);
        }
        0
    }
}

/// What the user must know about the sandbox of a turn: none if it is the one before, or the first.
fn replacement(data: &Value) -> Option<String> {
    let lost = data["state_lost"] == true;
    let before = match data["cause"].as_str() {
        Some("replaced") => "the sandbox of the session had ended",
        Some("resumed") => "the sandbox of the session was cold",
        Some(_) | None => return lost.then(|| "files of the session are lost".to_owned()),
    };
    let files = if lost { "files are lost" } else { "the files are those that were saved last" };
    Some(format!("{before}: the session has a new one without processes, and {files}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replacement_of_a_sandbox_is_told_in_one_line() {
        let told = |cause: &str, state_lost: bool| {
            replacement(&json!({ "cause": cause, "state_lost": state_lost }))
        };
        assert_eq!(told("created", false), None);
        assert_eq!(told("reconnected", false), None);
        for (cause, lost, parts) in [
            ("replaced", false, ["had ended", "without processes", "saved last"]),
            ("replaced", true, ["had ended", "without processes", "files are lost"]),
            ("resumed", false, ["was cold", "without processes", "saved last"]),
            ("created", true, ["files", "of the session", "are lost"]),
        ] {
            let said = told(cause, lost).unwrap();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}
