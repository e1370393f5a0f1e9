//! What a process wrote: all that is kept of it, or that and what comes, until it is over.

use std::process::ExitCode;

use client::{Client, LogPart, Logged};
use wire::LogStream;

use super::arguments::{LogsArgs, ProcessArgs};
use super::{code_of, pass_on};
use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::server::cannot;

pub(super) fn main(wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let client = wanted.of.server.client()?;
    // Two threads: a slow reader of our output must not keep us from hearing the server.
    let tokio = native::tokio()?;
    let code = native::block_on(&tokio, async {
        if wanted.follow {
            follow(&client, wanted, output).await
        } else {
            print(&client, wanted, output).await
        }
    });
    tokio.shutdown_background();
    code
}

fn part(wanted: &LogsArgs) -> LogPart {
    let stream = match (wanted.stdout, wanted.stderr) {
        (true, _) => Some("stdout"),
        (_, true) => Some("stderr"),
        (false, false) => None,
    };
    LogPart { stream, offset: wanted.offset, max_bytes: None }
}

async fn print(client: &Client, wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, json, .. } = &wanted.of;
    let (sandbox, failed) = (client.sandbox(*sandbox), cannot("read the log"));
    let mut at = part(wanted);
    if !json {
        // Both outputs go where they belong, in the order in which they came.
        at.offset = at.offset.or(Some(0));
    }
    loop {
        let page = sandbox.process_log(process, at).await.map_err(&failed)?;
        if *json {
            output.say_value(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        for piece in &page.pieces {
            let bytes = piece.output.bytes().map_err(|e| Failure::new("cannot read output", e))?;
            if !pass_on(&bytes, piece.stream == LogStream::Stderr)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if !page.more || at.offset == Some(page.next_offset) {
            return Ok(ExitCode::SUCCESS);
        }
        at.offset = Some(page.next_offset);
    }
}

async fn follow(client: &Client, wanted: &LogsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let ProcessArgs { sandbox, process, json, .. } = &wanted.of;
    let mut log = client.sandbox(*sandbox).follow_log(process, part(wanted));
    while let Some(told) = log.next().await.map_err(cannot("follow the log"))? {
        match told {
            Logged::Piece(piece) if *json => {
                let text = serde_json::to_string(&piece)
                    .map_err(|error| Failure::new("cannot write a piece", error))?;
                output.say(&text);
            }
            Logged::Piece(piece) => {
                let bytes =
                    piece.output.bytes().map_err(|e| Failure::new("cannot read output", e))?;
                if !pass_on(&bytes, piece.stream == LogStream::Stderr)? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Logged::Exit(process) => return Ok(code_of(&process, output)),
        }
    }
    Err(Failure::new("cannot follow the log", "it ended before the process"))
}
